"""What did a look at a problem find? Verdicts with sentences, the numbers behind them, and how they are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from pzobo.diagnosis.suggestion import Suggestion

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One verdict: a short name, how bad it is, and a sentence with the numbers and what to do."""

    name: str
    level: Level
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found. `print` it; the numbers are in the fields, NaN where they could not be had."""

    findings: tuple[Finding, ...]
    residual: float = math.nan
    """|dg/dy| at y^N as a part of that at y0."""
    curvature: tuple[float, float] = (math.nan, math.nan)
    """The extreme eigenvalues of d2g/dy2 at y^N."""
    steps_needed: int | None = None
    """Inner steps that would be enough."""
    direct: float = math.nan
    """|df/dx| as a part of the hypergradient's length."""
    indirect: float = math.nan
    """|(dy/dx)^T df/dy| as a part of the hypergradient's length."""
    path_error: float = math.nan
    """Of the exact hypergradient of the path, relative to the true one."""
    mu_error: float = math.nan
    """What mu adds, by smoothing or by rounding."""
    direction_error: float = math.nan
    """What the random directions add."""
    error: float = math.nan
    """Of the estimate in use, relative to the true one: a root mean square."""
    signal_to_noise: float = math.nan
    """|mean estimate| / root mean square deviation from it; infinite without randomness."""
    cosine: float = math.nan
    """Between the estimate in use and the true one, on average."""
    suggestion: Suggestion | None = None

    @property
    def healthy(self) -> bool:
        return all(f.level in ("ok", "note") for f in self.findings)

    def __contains__(self, name: str) -> bool:
        """Whether there is a finding of this name."""
        return any(f.name == name for f in self.findings)

    def __str__(self) -> str:
        mark = {"ok": "[ok]", "note": "[i] ", "warning": "[!] ", "problem": "[X] "}
        lines = [f"{mark[f.level]} {f.name}: {f.text}" for f in self.findings]
        if self.suggestion is not None:
            lines += ["Suggestion for PZOBO: " + str(self.suggestion).replace("\n", "\n  ")]
        return "\n".join(lines)

    def __rich__(self) -> Any:
        from rich.table import Table

        colour = {"ok": "green", "note": "blue", "warning": "yellow", "problem": "bold red"}
        table = Table(show_header=False, box=None, padding=(0, 1), title="pzobo doctor", title_justify="left")
        for f in self.findings:
            table.add_row(f"[{colour[f.level]}]{f.name}", f.text)
        if self.suggestion is not None:
            table.add_row("suggestion", str(self.suggestion))
        return table
