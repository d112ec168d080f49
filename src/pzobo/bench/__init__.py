"""What are the paper's experiments, and do its claims hold? What `pzobo run` runs, and what `pzobo report` writes."""
