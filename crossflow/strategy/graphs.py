"""Every strategy that a number of devices and a model allow."""

from __future__ import annotations

from collections.abc import Iterator

from crossflow.errors import StrategyError
from crossflow.parallel.transform import check_divides
from crossflow.strategy.mesh import parse_strategy
from crossflow.strategy.stages import assign_stages
from crossflow.workload.graph import Graph


def legal_strategies(graph: Graph, devices: int) -> tuple[str, ...]:
    """Strategies in the paper's notation that use all devices and divide the model evenly, data parallelism first.

    >>> from crossflow.workload.gemm import gemm
    >>> legal_strategies(gemm(m=4, n=4, k=4), 2)
    ('d2', 'RC-1-2', 'RC-2-1', 'CR-2')
    """
    return tuple(text for text in _written(devices) if _fits(graph, text))


def _written(devices: int) -> Iterator[str]:
    """All ways to write the number of devices as kernel x data x pipeline degrees."""
    for stages in _divisors(devices):
        for kernel in _divisors(devices // stages):
            replicas = devices // stages // kernel
            tail = "".join([f"-d{replicas}" if replicas > 1 else "", f"-p{stages}" if stages > 1 else ""])
            if kernel == 1:
                yield tail.removeprefix("-") or "d1"
                continue
            yield from (f"RC-{rows}-{kernel // rows}{tail}" for rows in _divisors(kernel))
            yield f"CR-{kernel}{tail}"


def _fits(graph: Graph, text: str) -> bool:
    strategy = parse_strategy(text)
    try:
        check_divides(graph, strategy)
        assign_stages(graph, strategy.degree("layers"))
    except StrategyError:
        return False
    return True


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
