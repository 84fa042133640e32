"""Strategies and the program that they make of a model."""

from crossflow.parallel.layout import Layout
from crossflow.parallel.legality import plan_problem
from crossflow.parallel.materialise import draw, materialise
from crossflow.parallel.plan import Plan, parse_plan
from crossflow.parallel.plans import legal_plans
from crossflow.parallel.strategies import legal_strategies
from crossflow.parallel.strategy import Axis, Strategy, mesh_of, parse_strategy
from crossflow.parallel.transform import transform

__all__ = [
    "Axis",
    "Layout",
    "Plan",
    "Strategy",
    "draw",
    "legal_plans",
    "legal_strategies",
    "materialise",
    "mesh_of",
    "parse_plan",
    "parse_strategy",
    "plan_problem",
    "transform",
]
