"""Does a run survive the loss of a host? Hosts are network namespaces; one loses its link for good."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.hosts import hosts, missing
from tests.distributed.test_trouble import STEPS, same_run, whole

__all__ = ["whole"]
"""A fixture."""

NOT_RUN = missing()
PATIENCE = "last_call_timeout=2,timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3,read_timeout=60"


@pytest.mark.skipif(bool(NOT_RUN), reason=f"not run: hosts as network namespaces, since {NOT_RUN}")
@pytest.mark.parametrize("count", [2, 3])
def test_a_host_that_loses_its_link_for_good(count: int, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with hosts(count) as all_hosts:
        agents = [
            host.start(
                sys.executable,
                *("-m", "torch.distributed.run", f"--nnodes=1:{count}", "--nproc-per-node=1", "--max-restarts=3"),
                *("--rdzv-backend=c10d", f"--rdzv-endpoint={all_hosts[0].address}:29400", "--rdzv-id=run"),
                *(
                    f"--rdzv-conf={PATIENCE},is_host={int(host is all_hosts[0])}",
                    f"--local-addr={host.address}",
                    "--monitor-interval=0.2",
                ),
                *("-m", "tests.distributed.trouble", "go_on", out, STEPS),
                log=tmp_path / f"{host.name}.log",
                PZOBO_TEST_TIMEOUT="6",
            )
            for host in all_hosts
        ]

        def told() -> str:
            return "\n".join(path.read_text() for path in tmp_path.glob("*.log"))

        deadline = time.monotonic() + 120
        while told().count("at work") < 2:
            assert time.monotonic() < deadline, told()[-3000:]
            time.sleep(0.05)
        all_hosts[-1].unplug()
        for agent in agents[:-1]:
            assert agent.wait(timeout=180) == 0, told()[-3000:]
        agents[-1].send_signal(signal.SIGKILL)
        assert "done" in told()
    same_run(out, whole)
