"""How fast is pzobo, beside its peers and beside hand-written code? Run `python -m benchmarks`."""
