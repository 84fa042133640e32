"""Architectures: generated from technology and budgets, or read off datasheets."""

from crossflow.architecture.execution import Execution
from crossflow.architecture.model import Architecture, BudgetUse, Level, Limit, Port
from crossflow.architecture.system import architecture, resolve
from crossflow.architecture.template import DatasheetSystem, GeneratedSystem, NetworkLevel, NetworkSpec, SystemSpec

__all__ = [
    "Architecture",
    "BudgetUse",
    "DatasheetSystem",
    "Execution",
    "GeneratedSystem",
    "Level",
    "Limit",
    "NetworkLevel",
    "NetworkSpec",
    "Port",
    "SystemSpec",
    "architecture",
    "resolve",
]
