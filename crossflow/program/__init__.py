"""Programs: what every class of ranks computes and sends in a step, in order."""

from crossflow.program.blocks import Block
from crossflow.program.builder import ProgramBuilder
from crossflow.program.file import is_program, read_program, write_program
from crossflow.program.program import Attention, Kernel, Message, Op, Pass, Product, Program, Tensor

__all__ = [
    "Attention",
    "Block",
    "Kernel",
    "Message",
    "Op",
    "Pass",
    "Product",
    "Program",
    "ProgramBuilder",
    "Tensor",
    "is_program",
    "read_program",
    "write_program",
]
