"""How do property tests run, and what does the end of a test run tell? Without a deadline, since machines are noisy; in
CI with the same examples every time. The end tells how many damaged files were tried. And torch's headers are
precompiled, since hundreds of functions are compiled."""

import os
from typing import Any

from hypothesis import settings

from pzobo.inner import compiled

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
compiled.CONFIG["cpp_cache_precompile_headers"] = True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Workers send it with their reports."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    tried = {r.nodeid.rpartition("[")[2].rstrip("]"): dict(r.user_properties).get("inputs tried") for r in reports}
    if found := {name: number for name, number in tried.items() if number is not None}:
        lines = ", ".join(f"{name} {number:,}" for name, number in sorted(found.items()))
        terminalreporter.write_line(f"damaged files tried: {sum(found.values()):,} ({lines})")
