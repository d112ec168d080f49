"""How is a function compiled, and what happens when torch.compile cannot go on with it?

Every call goes through the guards of torch.compile, which look whether anything that the code depends on has changed.
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from pzobo.errors import CompileError, CompileWarning

# Inductor looks for CUDA's compiler, and says so where there is one and no device. Nobody who reads it can use it.
logging.getLogger("torch.utils.cpp_extension").addFilter(lambda record: "No CUDA runtime" not in str(record.msg))

CONFIG: dict[str, Any] = {
    # Inductor compiles three probe programs to learn whether the compiler knows the CPU's vector instructions, which
    # takes 9 of the 13 s of a first compilation; it has already asked the CPU itself.
    "cpp.vec_isa_ok": True,
    # What calls the machine code is machine code too. A loop spends most of its time there where problems are small.
    "cpp_wrapper": True,
    # That which calls is compiled apart from what it calls, and optimized less: half the time, and no slower to run.
    "cpp_wrapper_build_separate": True,
    # torch would precompile its headers, once on a machine: 12 s in the first call, to save 3 s in each that compiles.
    "cpp_cache_precompile_headers": False,
    # Inductor's own CUDA graphs write each answer over the last, and skip loops: ours would be one explicit graph.
    "triton.cudagraphs": False,
}


class Compiled:
    """A function, compiled at its first call; the messages of torch.compile are turned into one sentence.

    Where something changes with every call that torch.compile takes for a constant (a Python number, say), it soon
    refuses to compile once more. Then `plain` runs.

    Args:
        function: what is compiled.
        plain: the same without compilation; the function itself by default.
        instead: the same, compiled otherwise, for what torch.compile cannot take in this form. By default that is an
            error.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        plain: Callable[..., Any] | None = None,
        instead: Callable[..., Any] | None = None,
    ) -> None:
        self._plain = plain or function
        self._function = torch.compile(
            _own_code(function), backend=_inductor, fullgraph=True, options={"guard_filter_fn": _worth_a_look}
        )
        self._instead = instead
        self._in_use: Callable[..., Any] = self._compiled

    def __call__(self, *args: Any) -> Any:
        return self._in_use(*args)

    def _compiled(self, *args: Any) -> Any:
        try:
            with _HooksGuarded():
                return self._function(*args)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            return self._give_up(*args)
        # Some of what Dynamo cannot take inside of a loop fails an assertion of its own (a view by .mT, say).
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError, AssertionError) as error:
            if self._instead is None:
                raise CompileError(
                    f"torch.compile cannot take this loss: {_reason(error)} "
                    "Use Argmin(..., compile=False), or rewrite the part of the loss that the message names."
                ) from error
        answer = self._instead(*args)
        self._in_use = self._instead
        return answer

    def _give_up(self, *args: Any) -> Any:
        found = (
            f"torch.compile has compiled the inner loss {torch._dynamo.config.recompile_limit} times, since something "
            "in it changes again and again that it takes for a constant: a Python number in the batch, in the answer "
            "of prepare, or around the loss? (Its log names it.) "
        )
        before = torch.get_rng_state()
        answer = self._plain(*args)
        if not torch.equal(before, torch.get_rng_state()):
            # Compiled code draws other numbers than this did, so paths that belong together would not fit.
            raise CompileError(found + "Make it a tensor, or use Argmin(..., compile=False).")
        warnings.warn(found + "It goes on without compilation; to compile, make it a tensor.", CompileWarning, 2)
        self._in_use = self._plain
        return answer


def _worth_a_look(guards: Sequence[Any]) -> list[bool]:
    """All guards but those that look whether torch's own modules are still the same: three quarters of them.

    What belongs to a user's module is named by that one, also if it is torch that the module has imported.
    """
    return [not (guard.name.startswith("__import__('torch').") or _of_torch(guard.name)) for guard in guards]


def _of_torch(name: str) -> bool:
    """Whether a guard is named as a global of a module of torch: G['__import_torch_dot_func'].grad, say."""
    found = re.match(r"G\['__import_(\w+)'\]", name)
    module = found[1].replace("_dot_", ".") if found else ""
    return module.partition(".")[0] == "torch" and module in sys.modules


class _HooksGuarded:
    """Hooks of modules that are first called in a later call are guarded too, whatever the user has set."""

    def __enter__(self) -> None:
        self._override: Any = _override()
        self._before: Any
        if self._override is None:
            self._before = torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
            self._before.__enter__()
        else:
            self._before = self._override.set(False)

    def __exit__(self, *error: Any) -> None:
        if self._override is None:
            self._before.__exit__(*error)
        else:
            self._override.reset(self._before)


def _override() -> Any:
    """What `config.patch` sets, a hundred times as fast as the patch. None where torch keeps it elsewhere."""
    options: Any = getattr(torch._dynamo.config, "_config", {})
    return getattr(options.get("skip_nnmodule_hook_guards"), "user_override", None)


def _inductor(graph: fx.GraphModule, inputs: Any, **_: Any) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    from pzobo.inner.inductor import WithoutAlpha, decompositions

    with torch._inductor.config.patch(CONFIG | {"post_grad_custom_pre_pass": WithoutAlpha()}):
        return cast(Callable[..., Any], compile_fx(graph, inputs, decompositions=decompositions()))


def _reason(error: Exception) -> str:
    """Its first line, and the one that explains it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join([lines[0], *(line.strip() for line in lines[1:] if line.strip().startswith("Explanation:"))])


_NUMBERS = itertools.count()


def _own_code(function: Any) -> Any:
    """The function with a code object and a name of its own.

    torch.compile keeps by code object what it compiled, and how often; by file, line and name it keeps what changed
    between calls, which it then takes for a variable, also where it was another function that was called.
    """
    return types.FunctionType(
        function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
