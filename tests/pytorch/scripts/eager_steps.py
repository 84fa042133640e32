"""Training steps whose times are predicted and measured: of a perceptron, of an encoder like BERT, of a recommendation model."""

import torch
from torch import nn
from torch.nn import functional


def perceptron():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(384, 512), torch.randn(384, 256)

    def step():
        opt.zero_grad()
        functional.mse_loss(model(x), y).backward()
        opt.step()

    return step


class Block(nn.Module):
    def __init__(self, h, n):
        super().__init__()
        self.n = n
        self.qkv, self.o, self.up, self.down = nn.Linear(h, 3 * h), nn.Linear(h, h), nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        self.n1, self.n2 = nn.LayerNorm(h), nn.LayerNorm(h)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.n, h // self.n).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, h)
        x = self.n1(x + self.o(y))
        return self.n2(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self, L=2, h=384, n=6, V=5000, s=128):
        super().__init__()
        self.e, self.p = nn.Embedding(V, h), nn.Embedding(s, h)
        self.b = nn.ModuleList(Block(h, n) for _ in range(L))
        self.head = nn.Linear(h, V)

    def forward(self, t):
        x = self.e(t) + self.p(torch.arange(t.shape[1]))
        for b in self.b:
            x = b(x)
        return self.head(x)


def encoder():
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    t = torch.randint(0, 5000, (4, 128))

    def step():
        opt.zero_grad()
        functional.cross_entropy(model(t).flatten(0, 1), t.flatten()).backward()
        opt.step()

    return step


class Recommender(nn.Module):
    def __init__(self, rows=4000, d=64, tables=8):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, d, mode="sum", sparse=False) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, d), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(d * (tables + 1), 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense, idx):
        parts = [self.bottom(dense), *(bag(i) for bag, i in zip(self.bags, idx, strict=True))]
        return self.top(torch.cat(parts, 1))


def recommender():
    torch.manual_seed(0)
    model = Recommender()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    dense = torch.randn(1024, 13)
    idx = [torch.randint(0, 4000, (1024, 20)) for _ in range(8)]
    y = torch.rand(1024, 1)

    def step():
        opt.zero_grad()
        functional.binary_cross_entropy_with_logits(model(dense, idx), y).backward()
        opt.step()

    return step
