"""How is a step compiled, and called again and again without being asked each time whether it still may?

torch.compile checks before every call that nothing it relied on has changed, which for a small problem takes longer
than the step itself. Along one path nothing changes but y and the solver's state: so the first call of a path is
checked, and the next ones go straight to the machine code that the first one ran.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pzobo.errors import CompileError
from pzobo.trees import Leaves

# Inductor compiles three probe programs to learn whether the compiler knows the CPU's vector instructions, which
# takes 9 of the 13 s of a first compilation; it has already asked the CPU itself.
CONFIG: dict[str, Any] = {"cpp.vec_isa_ok": True}


class Compiled:
    """A method, compiled at its first call; the messages of torch.compile are turned into one sentence."""

    def __init__(self, method: Any) -> None:
        guards: Any = {"guard_filter_fn": lambda guards: [_can_change(guard) for guard in guards]}
        self._function = torch.compile(_own_code(method), backend=self._backend, options=guards, fullgraph=True)
        self._listening = False
        self._heard: tuple[Callable[..., Any], tuple[Any, ...], Any] | None = None

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

    def repeat(self, times: int, leaves: Leaves, *constants: Any) -> Leaves:
        """fn(fn(... fn(leaves, *constants) ..., *constants), *constants), checked once."""
        if times == 1:
            return tuple(self(leaves, *constants))
        self._listening = True
        try:
            after: Leaves = tuple(self(leaves, *constants))
            again = _straight(self._heard, leaves, after)
        finally:
            self._listening, self._heard = False, None
        for _ in range(times - 1):
            after = tuple(self(after, *constants)) if again is None else again(after)
        return after


def _straight(
    heard: tuple[Callable[..., Any], tuple[Any, ...], Any] | None, before: Leaves, after: Leaves
) -> Callable[[Leaves], Leaves] | None:
    """A call of machine code as a function of the leaves that it turned from `before` to `after`, all else as it was.

    None where that is not what it is: where a leaf went in or came out otherwise, or changed its form.
    """
    if heard is None or any(_form(a) != _form(b) for a, b in zip(before, after, strict=True)):
        return None
    machine_code, args, answer = heard
    places = {id(arg): i for i, arg in enumerate(args)}
    results = {id(result): i for i, result in enumerate(answer)}
    into = [places.get(id(t)) for t in before]
    out_of = [results.get(id(t)) for t in after]
    if None in into or None in out_of or len(set(into)) < len(into):
        return None
    arguments: list[Any] = list(args)

    def again(leaves: Leaves) -> Leaves:
        for place, leaf in zip(into, leaves, strict=True):
            arguments[place] = leaf  # type: ignore[index]
        answer = machine_code(*arguments)
        return tuple([answer[place] for place in out_of])

    return again


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
