"""Why does a hypergradient not help? The doctor, and the trials, spectra and suggestions that it needs."""
