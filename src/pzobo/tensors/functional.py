"""How is an nn.Module used for x or for y? Its weights are a dict of tensors, and go back into it at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from pzobo.errors import StructureError
from pzobo.tensors.trees import copy_into


class Functional:
    """A module as a function of its weights: `weights()` gives x or y0, the call uses others, `put_back` keeps them.

    Weights are the parameters that require a gradient, by name; tied ones stand there once, and stay tied. Frozen
    parameters and buffers are the module's own. Buffers that the module writes in training mode (BatchNorm) are the
    same on every path of one `argmin` call.

    Args:
        module: the module. A lazy one must have been called once.

    Raises:
        StructureError: `module` is no module, or is a lazy one that was never called.

    Examples:
        >>> net = pzobo.Functional(torch.nn.Linear(3, 1))
        >>> def inner_loss(x, y, batch):
        ...     return (net(y, batch) - 1).square().mean() + x.exp() * y["weight"].square().sum()
        >>> argmin = pzobo.Argmin(inner_loss, solver=pzobo.GD(lr=0.2, steps=50), jacobian=pzobo.Unrolled())
        >>> x = torch.tensor(-5.0, requires_grad=True)
        >>> y = argmin(x, net.weights(), torch.eye(3))
        >>> net.put_back(y)                         # now the module is the trained one
        >>> sorted(y)
        ['bias', 'weight']
    """

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise StructureError(f"Functional takes an nn.Module, and got a {type(module).__name__}.")
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if nn.parameter.is_lazy(tensor):
                raise StructureError(f"{name} has no size yet: call the lazy module once on a batch before.")
        self.module = module
        self._names = self._named()

    def _named(self) -> set[str]:
        """The names of all parameters and buffers, those of tied ones too."""
        parts = (self.module.named_parameters, self.module.named_buffers)
        return {name for part in parts for name, _ in part(remove_duplicate=False)}

    def weights(self, requires_grad: bool = False) -> dict[str, Tensor]:
        """Copies of the module's weights as they are now.

        Args:
            requires_grad: whether they are to get gradients: True for x, and for a y0 that is learned.
        """
        return {
            name: p.detach().clone().requires_grad_(requires_grad)
            for name, p in self.module.named_parameters()
            if p.requires_grad
        }

    def __call__(self, weights: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """What the module gives with these weights.

        Args:
            weights: a tree like that of `weights()`; those that are left out are the module's own.
            *args: for the module.
            **kwargs: for the module.

        Returns:
            What the module gives with these weights.

        Raises:
            StructureError: a name that the module does not have.
        """
        for name in weights:
            if name not in self._names and name not in self._named():
                raise StructureError(f"{type(self.module).__name__} has no parameter or buffer {name!r}.")
        return functional_call(self.module, dict(weights), args, kwargs)

    def put_back(self, weights: Mapping[str, Tensor]) -> None:
        """Write weights into the module.

        Args:
            weights: a tree like that of `weights()`.

        Raises:
            StructureError: other names, shapes or dtypes; then nothing is written.
        """
        own = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        if set(own) != set(weights):
            wrong = sorted(set(own) ^ set(weights))
            raise StructureError(f"put_back got other names than the module's weights have: {', '.join(wrong)}.")
        copy_into({name: weights[name] for name in own}, own, "put_back")
