"""On which machine, with which versions and on how many threads was it measured?"""

import json
import os
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "out"
PACKAGES = ("torch", "numpy", "optree", "pzobo", "jax", "jaxlib", "jaxopt", "torchopt", "higher")


def use_one_thread(bound: bool = True) -> None:
    """Take one thread, and with `bound` one core: always the same, so that two such processes at once share it.

    Call it before torch or JAX is imported: both size their pools at import. What counts processor time needs no core
    of its own, and recordings are made two at a time.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
        os.environ[variable] = "1"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    if bound and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    import torch

    torch.set_num_threads(1)


def describe() -> dict[str, Any]:
    from pzobo.runs.environment import environment, installed

    return {
        **environment(),
        "cores used": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "versions": {name: installed(name) for name in PACKAGES},
    }


def write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"environment": describe(), **results}, indent=2) + "\n")
    print(f"\nwritten: {path}")
