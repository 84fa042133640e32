"""Legal strategies: each runs, none is missing, none twice."""

import itertools

import pytest

from crossflow.errors import StrategyError
from crossflow.parallel import legal_strategies, parse_strategy, transform


def brute(graph, devices):
    """Every degree tried."""
    found = set()
    for rows, columns, inner, data, stages in itertools.product(range(1, devices + 1), repeat=5):
        if rows * columns * inner * data * stages != devices or (inner > 1 and rows * columns > 1):
            continue
        kernel = f"CR-{inner}" if inner > 1 else f"RC-{rows}-{columns}" if rows * columns > 1 else ""
        parts = [kernel, f"d{data}" if data > 1 else "", f"p{stages}" if stages > 1 else ""]
        text = "-".join(part for part in parts if part) or "d1"
        try:
            transform(graph, parse_strategy(text))
        except StrategyError:
            continue
        found.add(text)
    return found


@pytest.mark.parametrize("devices", [1, 2, 6, 8, 12])
@pytest.mark.parametrize("hidden", [8, 12])
def test_legal_strategies_are_those_that_transform(lstm, devices, hidden):
    graph = lstm("d1", workload={"hidden": hidden, "vocabulary": 24, "sequence": 2, "global_batch": 12}).graph()
    found = legal_strategies(graph, devices)
    assert len(found) == len(set(found))
    assert set(found) == brute(graph, devices)
    assert all(parse_strategy(text).devices == devices for text in found)
