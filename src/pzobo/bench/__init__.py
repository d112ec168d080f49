"""Which experiments does the paper have? What is run, by which methods, and the report of it: `pzobo run`, `report`."""
