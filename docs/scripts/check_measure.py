"""Compare steps of nine PyTorch scripts with what `crossflow measure` predicts of them.

``crossflow measure -o DIR --threads N`` on an idle machine, then ``python docs/scripts/check_measure.py DIR N`` within minutes: of one
thread it compares the time of the process, of several the time on the wall, each the 20 % quantile of the steps of two seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import crossflow
from crossflow.evidence.measurement.clock import low
from crossflow.evidence.torch import record
from crossflow.program import write_program

Step = Callable[[], None]
SECONDS, WARM = 2.0, 4


class Encoder(nn.Module):
    """A BERT-like model of words."""

    def __init__(self, words: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places, self.norm = nn.Embedding(words, width), nn.Embedding(length, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    **{name: nn.Linear(width, width) for name in ("query", "key", "value", "out")},
                    **{"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)},
                    **{name: nn.LayerNorm(width) for name in ("one", "two")},
                }
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of all words at each place."""
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            heads = (layer[name](x).unflatten(2, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value"))
            x = layer["one"](x + layer["out"](functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)))
            x = layer["two"](x + layer["down"](functional.gelu(layer["up"](x))))
        return self.head(x)


class Recommender(nn.Module):
    """Bags of embeddings between two small networks."""

    def __init__(self, rows: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum") for count in rows)
        self.bottom = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, width))
        self.top = nn.Sequential(nn.Linear(width * (len(rows) + 1), 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: Tensor, indices: list[Tensor]) -> Tensor:
        """Score of each sample."""
        bags = (bag(chosen) for bag, chosen in zip(self.bags, indices, strict=True))
        return self.top(torch.cat([self.bottom(dense), *bags], 1))


def trained(model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], loss: Callable[[], Tensor], **settings: float) -> Step:
    """A training step of a model."""
    updates = optimizer(model.parameters(), **settings)

    def step() -> None:
        updates.zero_grad()
        loss().backward()
        updates.step()

    return step


def network(*layers: nn.Module, batch: int, **settings: object) -> Step:
    """A step of layers in a row on random samples."""
    model = nn.Sequential(*layers)
    x, y = torch.randn(batch, layers[0].in_features), torch.randn(batch, layers[-1].out_features)
    return trained(model, loss=lambda: functional.mse_loss(model(x), y), **settings)


def encoder(words: int, width: int, heads: int, layers: int, shape: tuple[int, int], **settings: object) -> Step:
    """A step of an encoder on random words."""
    model, tokens = Encoder(words, width, heads, layers, shape[1]), torch.randint(0, words, shape)
    return trained(model, loss=lambda: functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()), **settings)


def recommender(rows: tuple[int, ...], width: int, batch: int, pool: int) -> Step:
    """A step of a recommendation model on random indices."""
    model, dense, y = Recommender(rows, width), torch.randn(batch, 32), torch.rand(batch, 1)
    indices = [torch.randint(0, count, (batch, pool)) for count in rows]
    return trained(model, torch.optim.SGD, lambda: functional.binary_cross_entropy_with_logits(model(dense, indices), y), lr=1e-2)


def scripts() -> Iterator[tuple[str, Callable[[], Step]]]:
    """The scripts by name; each makes its step."""
    plain, momentum, adam = (
        {"optimizer": torch.optim.SGD},
        {"optimizer": torch.optim.SGD, "momentum": 0.9},
        {"optimizer": torch.optim.AdamW},
    )
    linear = nn.Linear
    deep = [layer for _ in range(6) for layer in (linear(512, 512), nn.ReLU())]
    yield "mlp, six layers", lambda: network(*deep, linear(512, 32), batch=320, **plain)
    wide = (linear(1024, 1536), nn.GELU(), nn.LayerNorm(1536), linear(1536, 256))
    yield "mlp, momentum", lambda: network(*wide, batch=640, **momentum)
    small = (linear(256, 1024), nn.GELU(), linear(1024, 1024), nn.GELU(), linear(1024, 16))
    yield "mlp, AdamW", lambda: network(*small, batch=96, **adam)
    yield "encoder, AdamW", lambda: encoder(4000, 384, 6, 2, (8, 128), **adam)
    yield "encoder, four layers", lambda: encoder(1500, 192, 6, 4, (2, 256), **plain)
    yield "encoder, momentum", lambda: encoder(2500, 512, 8, 2, (4, 96), **momentum)
    yield "recommender, three tables", lambda: recommender((5000, 2000, 8000), 64, 512, 8)
    yield "recommender, four tables", lambda: recommender((20000, 10000, 4000, 1000), 32, 1024, 16)
    yield "recommender, wide", lambda: recommender((3000, 3000), 128, 256, 20)


def main() -> None:
    """Print prediction, measurement and error of each script."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    now = time.process_time if threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory() as scratch:
        for name, make in scripts():
            program = Path(scratch) / "step.program.json"
            write_program(record(make, kernels="eager"), program)
            found = crossflow.predict(crossflow.from_dict({"system": {"template": str(folder / "machine.yaml")}, "workload": str(program)}))
            step, times, end = make(), [], 0.0
            for _ in range(WARM):
                step()
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                began = now()
                step()
                times.append(now() - began)
            measured = low(times)
            print(f"{name:28} {1e3 * found.step_time:8.2f} ms  {1e3 * measured:8.2f} ms  {found.step_time / measured - 1:+.1%}")


if __name__ == "__main__":
    main()
