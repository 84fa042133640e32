"""A single matrix product as a workload, as measured in kernel benchmarks and distributed by RC and CR."""

from __future__ import annotations

from crossflow.workload.graph import Graph, GraphLayer, Node, Size


def gemm(*, m: Size, n: Size, k: Size, dtype: str = "fp16", training: bool = False) -> Graph:
    """Graph of C[m, n] = A[m, k] B[k, n]; with `training` also both gradients and the update of B.

    `m` plays the part of the batch: data parallelism divides it.
    """
    layer = GraphLayer(name="gemm", kind="gemm", rows=k, columns=n)
    nodes = [Node(name="gemm.forward", layer=0, phase="forward")]
    if training:
        nodes.append(Node(name="gemm.backward", layer=0, phase="backward", after=(0,)))
        nodes.append(Node(name="gemm.update", layer=0, phase="update", after=(1,)))
    return Graph(model="gemm", batch=m, layers=(layer,), nodes=tuple(nodes), sizes={"m": m, "n": n, "k": k}, dtype=dtype, training=training)
