"""What is a row of metrics? What the outer loop knows at one step, and what an evaluation adds to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

Metric = float | int | None


@dataclass(frozen=True, eq=False)
class Row(Mapping[str, Any]):
    """One row of metrics; as a mapping it has the keys of a line of metrics.jsonl.

    Attributes:
        step: outer steps made before it.
        seconds: their time, without evaluation.
        outer_loss: f(x, y^N(x)).
        hypergradient_norm: its length; None in the last row, where none is taken.
        memory: the peak during steps, in MB; None where the system does not tell.
        last: whether it follows the last step.
        evaluated: whether the run was evaluated here. Only then the row has `inner_loss` and `metrics`.
        inner_loss: g where the last path ended, if there is an inner loss.
        metrics: what the evaluation gave.
        audit: what a look at the hypergradient measured, at steps where there was one: the key `audit_ratio` of a line
            is the number "ratio" of `pzobo.Argmin.last.audit`.
    """

    step: int
    seconds: float
    outer_loss: float
    hypergradient_norm: float | None = None
    memory: float | None = None
    last: bool = False
    evaluated: bool = False
    inner_loss: Metric = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    audit: Mapping[str, Metric] = field(default_factory=dict)

    AUDIT: ClassVar[str] = "audit_"
    """How the keys of an audit begin."""
    OWN: ClassVar[tuple[str, ...]]
    """The keys that are the loop's own, and not those of an evaluation."""

    def __post_init__(self) -> None:
        # NaN and infinity do not exist in JSON. There may be thousands of rows a second: most have nothing to change.
        for name, value in vars(self).items():
            if type(value) is float and math.isfinite(value):
                continue
            if isinstance(value, float):
                object.__setattr__(self, name, _finite(value))
        for name in ("metrics", "audit"):
            if values := getattr(self, name):
                object.__setattr__(self, name, _all_finite(values))

    @classmethod
    def of(cls, line: Any) -> Row:
        """The row that a line of metrics.jsonl holds. Version 0.1 wrote neither `last` nor `evaluated`.

        Raises:
            ValueError: it holds no row.
        """
        if not isinstance(line, Mapping) or type(line.get("step")) is not int:
            raise ValueError(f"{str(line)[:40]!r} is not a row of metrics")
        for key in ("seconds", "outer_loss", *line):
            if key not in line or not isinstance(line[key], (int, float, type(None))):
                raise ValueError(f"{key} is {str(line.get(key))[:40]!r} in a row of metrics, expected a number")
        own = {key: line[key] for key in cls.OWN if key in line}
        own.setdefault("evaluated", "inner_loss" in line)
        own.setdefault("last", line.get("hypergradient_norm") is None)
        audit = {key.removeprefix(cls.AUDIT): line[key] for key in line if key.startswith(cls.AUDIT)}
        rest = {key: value for key, value in line.items() if key not in cls.OWN and not key.startswith(cls.AUDIT)}
        return cls(**own, metrics=rest, audit=audit)

    def _keys(self) -> tuple[str, ...]:
        return self.OWN if self.evaluated else tuple(key for key in self.OWN if key != "inner_loss")

    def __getitem__(self, key: str) -> Any:
        if key.startswith(self.AUDIT):
            return self.audit[key.removeprefix(self.AUDIT)]
        return getattr(self, key) if key in self._keys() else self.metrics[key]

    def __iter__(self) -> Iterator[str]:
        yield from (*self._keys(), *(self.AUDIT + name for name in self.audit), *self.metrics)

    def __len__(self) -> int:
        return len(self._keys()) + len(self.audit) + len(self.metrics)


Row.OWN = tuple(f.name for f in fields(Row) if f.name not in ("metrics", "audit"))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _all_finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _finite(value) for key, value in values.items()}
