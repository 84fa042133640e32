"""Models as graphs of kernels."""

from crossflow.workload.graph import DTYPE_BYTES, Gemm, Graph, Layer, Node, Operation, Stream

__all__ = ["DTYPE_BYTES", "Gemm", "Graph", "Layer", "Node", "Operation", "Stream"]
