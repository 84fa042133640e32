"""Questions that people ask from Python: sweeps, fronts, searches and draws of uncertain numbers, without a file."""
