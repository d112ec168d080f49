"""How many damaged files does every parser survive? `python -m tests.fuzz [--seconds 300] [TARGET ...]`."""

from __future__ import annotations

import argparse
import time
import traceback

from tests.fuzz.targets import TARGETS, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Try damaged files on every parser.")
    parser.add_argument("targets", nargs="*", default=[], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first inputs")
    options = parser.parse_args()
    failed = 0
    for name in options.targets or TARGETS:
        try:
            run(name, options.seconds, options.seed)
            found = "nothing found"
        except Exception as error:
            failed += 1
            found = f"broken: {type(error).__name__}: {str(error)[:300]}"
            traceback.print_exc()  # hypothesis puts the smallest input below it
        tried = TARGETS[name].tried
        print(f"{name}: {sum(tried.values())} inputs ({tried}), seed {options.seed}: {found}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
