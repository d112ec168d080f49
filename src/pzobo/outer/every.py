"""When is a run evaluated? After so many steps, or after so many seconds of steps."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pzobo.errors import OptionError
from pzobo.options import whole
from pzobo.runs.rows import Row


@dataclass(frozen=True)
class Every:
    """Every `steps` outer steps, or every `seconds` of them; never if both are None."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, name: str, value: Any) -> Every:
        """What a number of steps, or a text such as "2s", says."""
        if isinstance(value, str):
            found = re.fullmatch(r"([0-9]*\.?[0-9]+)s", value)
            if found is None or float(found[1]) == 0:
                raise OptionError(
                    f'{name}={value!r}: give a number of steps, or of seconds as a text such as "2s" or "0.5s".'
                )
            return cls(seconds=float(found[1]))
        return cls() if value == 0 else cls(steps=whole(name, value))

    def due(self, step: int, seconds: float, rows: Sequence[Row]) -> bool:
        """Whether the row of this step, after so many seconds, is evaluated; `rows` came before it."""
        if self.steps is not None:
            return step % self.steps == 0
        if self.seconds is None:
            return False
        last = next((row.seconds for row in reversed(rows) if row.evaluated), None)
        return last is None or math.floor(seconds / self.seconds) > math.floor(last / self.seconds)

    def ahead(self, step: int, seconds: float, pace: float) -> int:
        """How many steps until the next evaluation at the latest, if one takes `pace` seconds; at least one."""
        if self.steps is not None:
            return self.steps - step % self.steps
        if self.seconds is None or pace <= 0:
            return 10**9
        return max(1, math.ceil((self.seconds - seconds % self.seconds) / pace))
