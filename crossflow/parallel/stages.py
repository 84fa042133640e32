"""Pipeline stages: contiguous layers, as evenly loaded as whole layers allow."""

from __future__ import annotations

from crossflow.errors import StrategyError
from crossflow.workload import Graph


def assign_stages(graph: Graph, stages: int) -> tuple[int, ...]:
    """Stage of every layer: contiguous, each stage at least one layer, the heaviest stage as light as can be.

    A layer weighs its multiplications per sample; exact by dynamic programming over cuts.
    """
    count = len(graph.layers)
    if stages > count:
        names = ", ".join(layer.name for layer in graph.layers)
        raise StrategyError(f"p = {stages} stages, but the model has {count} layers to divide ({names})")
    # A lookup does almost no arithmetic; its weight decides only between otherwise equal cuts.
    loads = [float(layer.rows * layer.columns) if layer.kind != "embedding" else float(layer.columns) for layer in graph.layers]
    prefix = [sum(loads[:i]) for i in range(count + 1)]
    best: dict[tuple[int, int], tuple[float, int]] = {(0, 0): (0.0, 0)}
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            options = [
                (max(best[stage - 1, start][0], prefix[end] - prefix[start]), start)
                for start in range(stage - 1, end)
                if (stage - 1, start) in best
            ]
            if options:
                best[stage, end] = min(options)
    result = [0] * count
    end = count
    for stage in range(stages, 0, -1):
        start = best[stage, end][1]
        result[start:end] = [stage - 1] * (end - start)
        end = start
    return tuple(result)
