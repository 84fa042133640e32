"""Technology components library: what can be built, with which area, power, voltage, energy and speed."""

from crossflow.technology.components import Compute, Link, LogicNode, LogicRule, Memory, OnChip, Substrate
from crossflow.technology.library import Choice, TechLibrary, load_library

__all__ = ["Choice", "Compute", "Link", "LogicNode", "LogicRule", "Memory", "OnChip", "Substrate", "TechLibrary", "load_library"]
