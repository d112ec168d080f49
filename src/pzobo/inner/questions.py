"""What has a Jacobian been asked, and what was found by looking at its answers? Counted and kept by an `Argmin`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pzobo.inner.probe import Probe


@dataclass(frozen=True)
class Finding:
    """One thing that was found by looking at an answer."""

    name: str
    value: float
    holds: bool
    sentence: str


@dataclass(frozen=True)
class Audit:
    """What a look at one hypergradient found.

    Attributes:
        asked: the number of the backward pass that was looked at.
        numbers: what was measured, by name. "ratio": the slope that two more paths show along the answer, divided by
            the answer's own; "error": what two more paths in a random direction say of the whole answer; "products":
            the ratio of products with second derivatives, taken both ways round; "residual": of the linear system;
            "differences": the error to be expected of differences of gradients; "signal": the part of the answer's
            squared length that is no noise of random directions; "rounding": how many roundings the paths differ by;
            "repeat": how far from y^N the same path, run again, ends, of its way; "unanswered": the slope of paths
            along outer variables that got exactly zero. Of an algorithm with a memory, "slope_x" and "slope_y": the
            error of g's gradient beside values of g; "system": |H v| beside |df/dy|.
        holds: whether nothing speaks against the answer.
        sentence: all of it, in words; what speaks against the answer comes first.
    """

    asked: int
    numbers: dict[str, float] = field(default_factory=dict)
    holds: bool = True
    sentence: str = ""

    @classmethod
    def of(cls, asked: int, findings: list[Finding]) -> Audit:
        findings = sorted(findings, key=lambda finding: finding.holds)
        return cls(
            asked,
            {finding.name: finding.value for finding in findings},
            all(finding.holds for finding in findings),
            " ".join(finding.sentence for finding in findings) or "Nothing could be looked at.",
        )

    def __str__(self) -> str:
        return self.sentence


class Questions:
    """How often a Jacobian was asked, whether this pass is one to look at closely, and what was found by looking."""

    def __init__(self) -> None:
        self.asked = 0
        self.closely = False
        self.probes = (Probe(), Probe())
        """The lengths of differences: of products with d2g/dy2 alone, and of those with d2g/dz dy too."""
        self.findings: list[Finding] = []
        """What the pullback itself found in a pass that is looked at closely."""
        self.audit: Audit | None = None
        """What the last look found."""
        self.most: int | None = None
        """How many paths at once there was room for, where more were tried."""
        self.said: set[str] = set()
        """The names of faults that were said already."""

    def next(self) -> None:
        """A backward pass begins; the 1st, 2nd, 4th, 8th... are looked at closely."""
        self.asked += 1
        self.closely = self.asked & (self.asked - 1) == 0
        self.findings = []

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked, "probes": [probe.state_dict() for probe in self.probes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = state.get("asked", 0)
        for probe, found in zip(self.probes, state.get("probes", ()), strict=False):
            probe.load_state_dict(found)
