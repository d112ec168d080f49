"""How is a step compiled, and called again and again without being asked each time whether it still may?

torch.compile checks before every call that nothing it relied on has changed, which for a small problem takes longer
than the step itself. Along the paths of one call of `argmin` nothing changes but z, y and the solver's state: so the
first step is checked, and the next ones go straight to the machine code that it ran.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import CompileError
from pzobo.tensors.trees import Leaves

# Inductor compiles three probe programs to learn whether the compiler knows the CPU's vector instructions, which
# takes 9 of the 13 s of a first compilation; it has already asked the CPU itself.
CONFIG: dict[str, Any] = {"cpp.vec_isa_ok": True}


Heard = tuple[Callable[..., Any], tuple[Any, ...], Any]
"""A call that was listened to: machine code, its arguments, its answer."""


class Compiled:
    """A method, compiled at its first call; the messages of torch.compile are turned into one sentence."""

    def __init__(self, method: Any) -> None:
        guards: Any = {"guard_filter_fn": lambda guards: [_can_change(guard) for guard in guards]}
        self._function = torch.compile(_own_code(method), backend=self._backend, options=guards, fullgraph=True)
        self._listening = False
        self._heard: Heard | None = None

    def _backend(self, graph: Any, inputs: Any, **_: Any) -> Callable[..., Any]:
        with torch._inductor.config.patch(CONFIG):
            machine_code = torch._dynamo.lookup_backend("inductor")(graph, inputs)

        def run(*args: Any) -> Any:
            answer = machine_code(*args)
            if self._listening:
                self._heard = machine_code, args, answer
            return answer

        return run

    def __call__(self, *args: Any) -> Any:
        try:
            return self._function(*args)
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            reason = str(error).strip().splitlines()
            raise CompileError(
                f"torch.compile cannot take this loss: {reason[0] if reason else type(error).__name__} "
                "Use Argmin(..., compile=False), or rewrite the part of the loss that the message names."
            ) from error

    def repeat(
        self,
        times: int,
        leaves: Leaves,
        pairs: Sequence[tuple[Any, Any]],
        shift: Leaves | None,
        straight: Straight | None,
    ) -> tuple[Leaves, Straight | None]:
        """fn(fn(... fn(leaves, pairs, shift) ..., pairs, shift), pairs, shift), and how to do it straight."""
        z = tuple([t for t in pairs[0][0] if isinstance(t, Tensor)])
        if straight is None or not straight.fits(z, leaves):
            self._listening = True
            try:
                before, leaves = leaves, tuple(self(leaves, pairs, shift))
                straight = Straight.of(self._heard, z, before, leaves)
            finally:
                self._listening, self._heard = False, None
            times -= 1
            if straight is None:
                for _ in range(times):
                    leaves = tuple(self(leaves, pairs, shift))
                return leaves, None
        return straight.run(times, z, leaves), straight


class Straight:
    """A call of machine code as a function of z and of the leaves that it turns into new ones, all else as it was."""

    def __init__(self, machine_code: Callable[..., Any], args: Sequence[Any], forms: Any, places: Any) -> None:
        self._machine_code = machine_code
        self._args = list(args)
        self._forms = forms
        self._z_into, self._into, self._out_of = places

    @classmethod
    def of(cls, heard: Heard | None, z: Leaves, before: Leaves, after: Leaves) -> Straight | None:
        """None where a call is not such a function: where a leaf went in or came out otherwise, or changed its form."""
        forms = [_form(t) for t in before]
        if heard is None or forms != [_form(t) for t in after]:
            return None
        machine_code, args, answer = heard
        arguments = {id(arg): i for i, arg in enumerate(args)}
        results = {id(result): i for i, result in enumerate(answer)}
        z_into, into = ([arguments.get(id(t)) for t in leaves] for leaves in (z, before))
        out_of = [results.get(id(t)) for t in after]
        places = [*z_into, *into]
        if None in places or None in out_of or len(set(places)) < len(places):
            return None
        return cls(machine_code, args, ([_form(t) for t in z], forms), (z_into, into, out_of))

    def fits(self, z: Leaves, leaves: Leaves) -> bool:
        return bool(([_form(t) for t in z], [_form(t) for t in leaves]) == self._forms)

    def run(self, times: int, z: Leaves, leaves: Leaves) -> Leaves:
        args = list(self._args)
        for place, t in zip(self._z_into, z, strict=True):
            args[place] = t
        for _ in range(times):
            for place, t in zip(self._into, leaves, strict=True):
                args[place] = t
            answer = self._machine_code(*args)
            leaves = tuple([answer[place] for place in self._out_of])
        return leaves


def _form(t: Tensor) -> tuple[Any, ...]:
    return t.shape, t.stride(), t.dtype, t.device


def _own_code(method: Any) -> Any:
    """The method with a code object of its own: torch.compile keeps what it compiled, and how often, by code object."""
    function = method.__func__
    own = types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__
    )
    return types.MethodType(own, method.__self__)


def _can_change(guard: Any) -> bool:
    """Whether what a guard of torch.compile looks at could change: not the modules of torch and of this library."""
    fixed = ("G['torch']", "G['__import_torch", "G['__import_pzobo", "G['__builtins")
    return not (guard.is_global and guard.name.startswith(fixed))
