"""Costs: time, traffic, energy and what binds each kernel and message."""

from crossflow.cost.price import Prices, price

__all__ = ["Prices", "price"]
