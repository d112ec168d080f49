"""Which algorithms must all behave alike? One of each, with numbers that are stable on the small problems."""

from __future__ import annotations

from typing import Any

import pzobo
from pzobo.algorithms import Algorithm

A = pzobo.algorithms

NUMBERS: dict[str, dict[str, Any]] = {
    "AmIGO": {"steps": 2, "v_steps": 2},
    "BOME": {"steps": 2},
    "BSA": {"steps": 2, "terms": 3},
    "BVFIM": {"steps": 2, "y_steps": 2},
    "DeltaSTN": {"steps": 2, "scale_rate": 0.1},
    "F2SA": {"steps": 2},
    "FSLA": {},
    "FdeHBO": {},
    "IAPTT": {"steps": 3},
    "MASOBA": {},
    "MEHA": {},
    "MRBO": {"terms": 3},
    "SABA": {},
    "SAMA": {"solver": pzobo.Adam(0.05, 2)},
    "SOBA": {},
    "SRBA": {"period": 3},
    "STABLE": {},
    "STN": {"steps": 2, "scale_rate": 0.1},
    "SUSTAIN": {"terms": 3},
    "TTSA": {"terms": 3},
    "VRBO": {"terms": 3, "steps": 2, "period": 3},
}


def make(name: str, **options: Any) -> Algorithm[Any]:
    made: Algorithm[Any] = getattr(A, name)(**{**NUMBERS[name], **options})
    return made
