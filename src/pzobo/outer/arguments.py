"""What is said of an argument of `fit` that is of another kind? What was found, in short, and what to give."""

from __future__ import annotations

from typing import Any

from pzobo.errors import OptionError


def wrong(name: str, value: Any, advice: str) -> OptionError:
    """The error for an argument; `advice` goes on as a sentence."""
    text = " ".join(repr(value).split())
    return OptionError(f"{name}={text[:60]}{'...' if len(text) > 60 else ''}: {advice}.")
