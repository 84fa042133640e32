"""What the host takes for each kernel of an eager step: steps of tiny models, over the kernels that the importer counts in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from crossflow.measurement.clock import TimedCall
from crossflow.measurement.kernels import SAME, Benchmark, BenchmarkSettings
from crossflow.torch import record

WIDTH, TOKENS, WORDS = 16, 4, 32  # so small that nothing but overhead is left


def host_benchmarks(settings: BenchmarkSettings) -> list[Benchmark]:
    """Whole steps of tiny models; each row is the time of a step over its kernels."""
    return [
        Benchmark(kind="host", label=f"{name} step", make=_made(make, settings), held=0.0, event=("", f"{name} step", ""), rotates=SAME)
        for name, make in (("perceptron", _perceptron), ("encoder", _encoder), ("embedding", _bag))
    ]


def kernels_of_step(benchmark: Benchmark) -> int:
    """Kernels of a step. [1]"""
    program = record(benchmark.make, kernels="eager")
    return sum(len(op.kernels) for op in program.ops)


def _made(make: Callable[[BenchmarkSettings], tuple[Any, Any, Any]], settings: BenchmarkSettings) -> Callable[[], TimedCall]:
    def step_of() -> TimedCall:
        model, inputs, optimizer = make(settings)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).float().mean().backward()
            optimizer.step()

        return step

    return step_of


def _perceptron(settings: BenchmarkSettings) -> tuple[Any, Any, Any]:
    model = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))).to(settings.tensor(1))
    return model, settings.tensor(TOKENS, WIDTH), torch.optim.SGD(model.parameters(), lr=1e-3)


def _encoder(settings: BenchmarkSettings) -> tuple[Any, Any, Any]:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, activation="gelu")
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).to(settings.tensor(1))
    words = torch.randint(0, WORDS, (1, TOKENS), device=settings.device)
    return model, words, torch.optim.AdamW(model.parameters(), lr=1e-4)


def _bag(settings: BenchmarkSettings) -> tuple[Any, Any, Any]:
    model = nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, mode="sum"), nn.Linear(WIDTH, WIDTH)).to(settings.tensor(1))
    words = torch.randint(0, WORDS, (TOKENS, 2), device=settings.device)
    return model, words, torch.optim.SGD(model.parameters(), lr=1e-3)
