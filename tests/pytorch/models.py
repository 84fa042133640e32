"""Models that tests import: a GPT without transformers, and what users write in many ways."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, WORDS, LAYERS = 64, 256, 2


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head = width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        batch, length, _ = x.shape
        y = self.first(x)
        q, k, v = (part(y).view(batch, length, -1, self.head).transpose(1, 2) for part in (self.q, self.k, self.v))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, width=WIDTH, layers=LAYERS, heads=4, words=WORDS):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt():
    return Gpt()


def wide():
    return Gpt(width=1024, heads=8)


def deep():
    return Gpt(layers=4)


def tied():
    model = deep()
    model.head.weight = model.table.weight
    return model


def half_frozen():
    """Weights before the third layer are not trained, as those of a backbone."""
    model = deep()
    for part in (model.table, *model.blocks[:2]):
        part.requires_grad_(False)
    return model


class Apart(Gpt):
    """The weights of the head are read without a call of it, as MobileBERT does."""

    def forward(self, tokens):
        self.head, head = nn.Identity(), self.head
        x = super().forward(tokens)
        self.head = head
        return nn.functional.linear(x, head.weight)


def tied_apart():
    model = Apart(layers=4)
    model.head.weight = model.table.weight
    return model


class Shared(Gpt):
    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.table.weight.T


def shared():
    return Shared(layers=4)


def stack(batch=1):
    blocks = (nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048)) for _ in range(16))
    return nn.Sequential(*blocks), torch.randn(batch, 2048, 2048)


def large():
    return Gpt(width=4096, layers=32, heads=32, words=32000)


def mlp():
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)))


def without_inputs():
    return nn.Conv2d(3, 8, 3)


def own_replicas():
    dist.init_process_group("nccl")
    return DistributedDataParallel(mlp()), torch.randn(4, 32)


def mapping():
    model = DistributedDataParallel(mlp())
    return {"model": model, "inputs": torch.randn(4, 32), "loss": lambda y: y.sum(), "optimizer": torch.optim.Adam(model.parameters())}


def step():
    model, data = DistributedDataParallel(mlp()), torch.randn(4, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def normed(**options):
    dist.init_process_group("nccl")
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 36, 10)
    return DistributedDataParallel(nn.Sequential(*layers), **options), torch.randn(4, 3, 8, 8)


def without_buffers():
    return normed(broadcast_buffers=False)


def own_mesh():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh, model = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor")), mlp()
    for block in model:
        parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return DistributedDataParallel(model, process_group=mesh["data"].get_group()), torch.randn(4, 32)


def pairs():
    model, group = mlp(), dist.new_group([0, 3])
    data = torch.randn(4, 32)

    def run():
        model(data).sum().backward()
        dist.all_reduce(data.detach(), group=group)

    return run


def convolutions():
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(32, 10)), torch.randn(4, 3, 32, 32)


def recurrent():
    return nn.LSTM(32, 64, batch_first=True), torch.randn(4, 10, 32)


def pooled():
    return nn.EmbeddingBag(1000, 16, mode="sum"), torch.zeros(8, 4, dtype=torch.long)


class Routed(nn.Module):
    """What it takes is no choice among a known number of places."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for i, expert in enumerate(self.experts):
            x = x + expert(x[torch.nonzero(x[:, i] > 0.0).flatten()]).sum()
        return x


def routed():
    return Routed(), torch.randn(4, 8)


def on_device():
    return mlp().cuda(), torch.randn(4, 32)


def raises():
    raise KeyError("no such thing")


def leaves():
    raise SystemExit(3)


def number():
    return "gpt"
