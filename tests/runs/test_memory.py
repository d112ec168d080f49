"""Is the peak that of what counts, also where it is asked for late?"""

from __future__ import annotations

import sys

import pytest
import torch

from pzobo.runs.memory import Peak


def use(megabytes: int) -> None:
    torch.ones(megabytes * 2**17, dtype=torch.float64).sum()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_what_is_used_aside_does_not_count() -> None:
    peak = Peak(torch.device("cpu"))
    if peak.megabytes is None:
        pytest.skip("this system does not let the mark be set back")
    use(100)
    with peak.aside():  # asks: the 100 are seen, although nobody asked since
        use(300)
    assert 95 < peak.megabytes < 160
    use(200)
    with peak.aside():
        pass
    assert 195 < peak.megabytes < 260
