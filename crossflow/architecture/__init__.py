"""Architectures: generated from technology and budgets, or read off datasheets."""

from crossflow.architecture.execution import Execution
from crossflow.architecture.host import Host
from crossflow.architecture.model import Architecture, BudgetUse, Level, Limit, Port
from crossflow.architecture.network import FabricKind, FabricParameters, NetworkLevel, NetworkSpec
from crossflow.architecture.system import architecture, resolve
from crossflow.architecture.template import DatasheetSystem, GeneratedSystem, SystemSpec

__all__ = [
    "Architecture",
    "BudgetUse",
    "DatasheetSystem",
    "Execution",
    "FabricKind",
    "FabricParameters",
    "GeneratedSystem",
    "Host",
    "Level",
    "Limit",
    "NetworkLevel",
    "NetworkSpec",
    "Port",
    "SystemSpec",
    "architecture",
    "resolve",
]
