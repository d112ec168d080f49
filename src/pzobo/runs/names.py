"""What are the files of a run called? Each name stands here once."""

from __future__ import annotations

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.pt"
RESULT = "result.json"
THEORY = "theory.json"
"""Beside the folders of the runs: what a check of the theory found."""
