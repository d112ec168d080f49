"""Is the peak that of what counts, also where it is asked for late? In a process of its own, since Linux counts all of
a process, and what other tests leave to be freed would be missing from the peak."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from pzobo.runs.memory import Peak

def use(megabytes):
    torch.ones(megabytes * 2**17, dtype=torch.float64).sum()

use(1)
peak = Peak()
if peak.megabytes is not None:
    use(100)
    with peak.aside():  # asks: the 100 are seen, although nobody asked since
        use(300)
    print(peak.megabytes)
    use(200)
    with peak.aside():
        pass
    print(peak.megabytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_what_is_used_aside_does_not_count() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    if not done.stdout:
        pytest.skip("this system does not let the mark be set back")
    first, second = map(float, done.stdout.split())
    assert 95 < first < 160
    assert 195 < second < 260
