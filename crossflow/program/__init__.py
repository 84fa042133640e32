"""Programs: what every class of ranks computes and sends in a step, in order."""

from crossflow.program.blocks import Block
from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import is_program, read_program, write_program
from crossflow.program.groups import DeviceGroup
from crossflow.program.kernels import Attention, Experts, Kernel, Lookup, Pass, Product, Scan, Timed
from crossflow.program.program import Message, Op, Program, Tensor

__all__ = [
    "Attention", "Block", "DeviceGroup", "Experts", "Kernel", "Lookup", "Message", "Op", "Pass", "Product", "Program", "ProgramBuilder",
    "Scan", "Tensor", "Timed", "is_program", "read_program", "write_program",
]  # fmt: skip
