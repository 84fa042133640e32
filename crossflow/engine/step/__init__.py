"""One step of a layered workload (a transformer, a recommendation model) on a machine, for all design points at once."""
