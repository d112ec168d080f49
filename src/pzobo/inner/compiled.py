"""How is a method compiled, and what happens when torch.compile cannot go on with it?

Every call goes through the guards of torch.compile, which look whether anything that the code depends on has changed.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pzobo.errors import CompileError, CompileWarning

CONFIG: dict[str, Any] = {
    # Inductor compiles three probe programs to learn whether the compiler knows the CPU's vector instructions, which
    # takes 9 of the 13 s of a first compilation; it has already asked the CPU itself.
    "cpp.vec_isa_ok": True,
}


class Compiled:
    """A method, compiled at its first call; the messages of torch.compile are turned into one sentence.

    Where something changes with every call that torch.compile takes for a constant (a Python number, say), it soon
    refuses to compile once more. Then the method runs as it is.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._function = torch.compile(_own_code(method), backend=_inductor, fullgraph=True)
        self._given_up = False

    def __call__(self, *args: Any) -> Any:
        if self._given_up:
            return self._method(*args)
        try:
            return self._function(*args)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            return self._give_up(*args)
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            raise CompileError(
                f"torch.compile cannot take this loss: {_reason(error)} "
                "Use Argmin(..., compile=False), or rewrite the part of the loss that the message names."
            ) from error

    def _give_up(self, *args: Any) -> Any:
        found = (
            f"torch.compile has compiled the inner loss {torch._dynamo.config.recompile_limit} times, since something "
            "in it changes again and again that it takes for a constant: a Python number in the batch, in the answer "
            "of prepare, or around the loss? (Its log names it.) "
        )
        before = torch.get_rng_state()
        answer = self._method(*args)
        if not torch.equal(before, torch.get_rng_state()):
            # Compiled code draws other numbers than this did, so paths that belong together would not fit.
            raise CompileError(found + "Make it a tensor, or use Argmin(..., compile=False).")
        warnings.warn(found + "It goes on without compilation; to compile, make it a tensor.", CompileWarning, 2)
        self._given_up = True
        return answer


def _inductor(graph: fx.GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
    from pzobo.inner.alpha import WithoutAlpha

    with torch._inductor.config.patch(CONFIG | {"post_grad_custom_pre_pass": WithoutAlpha()}):
        machine_code: Callable[..., Any] = torch._dynamo.lookup_backend("inductor")(graph, inputs)
        return machine_code


def _reason(error: Exception) -> str:
    """Its first line, and the one that explains it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join([lines[0], *(line.strip() for line in lines[1:] if line.strip().startswith("Explanation:"))])


def _own_code(method: Any) -> Any:
    """The method with a code object of its own: torch.compile keeps what it compiled, and how often, by code object."""
    function = method.__func__
    own = types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__
    )
    return types.MethodType(own, method.__self__)
