"""Models as graphs of kernels."""

from crossflow.formats import DTYPE_BYTES
from crossflow.workload.graph import Gemm, Graph, Layer, Node, Operation, Stream

__all__ = ["DTYPE_BYTES", "Gemm", "Graph", "Layer", "Node", "Operation", "Stream"]
