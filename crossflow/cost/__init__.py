"""Costs: time, traffic, energy and what binds each kernel and message."""

from crossflow.cost.costs import Costs, cost

__all__ = ["Costs", "cost"]
