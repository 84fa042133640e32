"""Reference steps: small training steps of several models, of which what their kernels do not take is what the host takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from crossflow.evidence.measurement.clock import TimedCall
from crossflow.evidence.measurement.kernels import SAME, Benchmark, BenchmarkSettings, KernelName, kernel_name
from crossflow.evidence.torch import record

ReferenceModel = tuple[Any, Any, Callable[[Any], Any]]  # a model, what it is given, and what makes its optimizer
OPTIMIZERS: tuple[Callable[[Any], Any], ...] = (
    lambda weights: torch.optim.SGD(weights, lr=1e-3),
    lambda weights: torch.optim.AdamW(weights, lr=1e-4),
    lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
)
PERCEPTRONS = ((4, 16), (32, 64), (32, 256), (256, 128), (1024, 64), (64, 512), (1024, 256))  # samples, and elements of a layer
ENCODERS = ((4, 16), (64, 32), (128, 128), (512, 64))  # tokens, and elements of one
BAGS = ((4, 16, 32), (128, 16, 1000), (512, 64, 1000), (1024, 32, 20_000))  # samples, and elements and rows of a table


def host_benchmarks(settings: BenchmarkSettings) -> list[Benchmark]:
    """Whole steps, each of models of one kind and size with the next optimizer."""
    made: list[tuple[str, Callable[[], ReferenceModel]]] = []
    for name, make, sizes in (("perceptron", _perceptron, PERCEPTRONS), ("encoder", _encoder, ENCODERS), ("embedding", _bags, BAGS)):
        made += [(f"{name} {'x'.join(map(str, size))}", _of(make, settings, size)) for size in sizes]
    return [
        Benchmark(
            kind="host", label=f"{name} step", make=_stepping(one, OPTIMIZERS[i % len(OPTIMIZERS)]), held=0.0,
            event=("", f"{name} step", ""), sets=SAME,
        )
        for i, (name, one) in enumerate(made)
    ]  # fmt: skip


def kernels_of_step(benchmark: Benchmark, dtype: str) -> Counter[KernelName]:
    """Kernels of a step as profiles name them, and how often each runs. [1]"""
    program = record(benchmark.make, kernels="eager")
    return Counter(kernel_name(kernel, dtype) for op in program.ops for kernel in (program.kernels[i] for i in op.kernels))


def _of(make: Callable[..., ReferenceModel], settings: BenchmarkSettings, size: tuple[int, ...]) -> Callable[[], ReferenceModel]:
    return lambda: make(settings, *size)


def _stepping(make: Callable[[], ReferenceModel], optimized: Callable[[Any], Any]) -> Callable[[], TimedCall]:
    def step_of() -> TimedCall:
        model, inputs, loss = make()
        optimizer = optimized(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            loss(model(inputs)).backward()
            optimizer.step()

        return step

    return step_of


def _perceptron(settings: BenchmarkSettings, samples: int, width: int) -> ReferenceModel:
    parts = [part for act in (nn.ReLU, nn.GELU, nn.ReLU, nn.Tanh) for part in (nn.Linear(width, width), act())]
    given, wanted = settings.tensor(samples, width), settings.tensor(samples, width)
    return nn.Sequential(*parts).to(given), given, lambda found: nn.functional.mse_loss(found, wanted)


def _encoder(settings: BenchmarkSettings, tokens: int, width: int) -> ReferenceModel:
    layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, activation="gelu")
    parts = nn.Embedding(4 * width, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 4 * width)
    words = torch.randint(0, 4 * width, (4, tokens // 4), device=settings.device)
    model = nn.Sequential(*parts).to(settings.tensor(1))
    return model, words, lambda found: nn.functional.cross_entropy(found.flatten(0, 1), words.flatten())


class _Bags(nn.Module):
    """Four tables, and layers over their sums."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(4))
        self.top = nn.Sequential(nn.Linear(4 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))

    def forward(self, words: Any) -> Any:
        return self.top(torch.cat([table(mine) for table, mine in zip(self.tables, words, strict=True)], 1))


def _bags(settings: BenchmarkSettings, samples: int, width: int, rows: int) -> ReferenceModel:
    words = [torch.randint(0, rows, (samples, 4), device=settings.device) for _ in range(4)]
    wanted = settings.tensor(samples, 1).clamp(max=1.0)
    return (
        _Bags(rows, width).to(settings.tensor(1)), words, lambda found: nn.functional.binary_cross_entropy_with_logits(found, wanted)
    )  # fmt: skip
