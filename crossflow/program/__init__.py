"""Programs: what every class of ranks computes and sends in a step, in order."""

from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import is_program, read_program, write_program
from crossflow.program.program import Attention, Kernel, Lookup, Message, Op, Pass, Product, Program, Scan, Tensor

__all__ = [
    "Attention",
    "Kernel",
    "Lookup",
    "Message",
    "Op",
    "Pass",
    "Product",
    "Program",
    "ProgramBuilder",
    "Scan",
    "Tensor",
    "is_program",
    "read_program",
    "write_program",
]
