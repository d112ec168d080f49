"""Which inputs break a parser? `python -m tests.fuzz [--seconds 300] [TARGET ...]` tries many."""
