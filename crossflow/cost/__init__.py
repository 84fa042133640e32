"""Costs: time, traffic, energy and what binds each kernel and message."""
