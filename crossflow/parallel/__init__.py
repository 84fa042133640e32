"""Strategies and the super-graph that they make of a model."""

from crossflow.parallel.materialise import draw, materialise
from crossflow.parallel.strategies import legal_strategies
from crossflow.parallel.strategy import Axis, Strategy, parse_strategy
from crossflow.parallel.supergraph import Message, SuperGraph, Task, Work
from crossflow.parallel.transform import transform

__all__ = [
    "Axis",
    "Message",
    "Strategy",
    "SuperGraph",
    "Task",
    "Work",
    "draw",
    "legal_strategies",
    "materialise",
    "parse_strategy",
    "transform",
]
