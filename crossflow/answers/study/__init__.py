"""Studies: many points of one scenario, or searches of a space, as tables, plots and a record of the run."""
