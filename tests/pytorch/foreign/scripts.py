"""Models as scripts of users have them: a GPT of one file, a Llama as torchtitan writes it, layers of torch, a recommendation model."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

BATCH, LENGTH, WORDS = 4, 32, 256

# ------------------------------------------------------------------------------------------------- a GPT of one file


class CausalSelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = heads, width

    def forward(self, x: Any) -> Any:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (one.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for one in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class GptMlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return self.c_proj(self.gelu(self.c_fc(x)))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), CausalSelfAttention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), GptMlp(width)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGpt(nn.Module):
    """The layout of nanoGPT: one matrix for queries, keys and values, a tied table, the loss in the forward pass."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(WORDS, width), "wpe": nn.Embedding(LENGTH, width), "drop": nn.Dropout(0.0),
            "h": nn.ModuleList(GptBlock(width, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(width),
        })  # fmt: skip
        self.lm_head = nn.Linear(width, WORDS, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, idx: Any, targets: Any = None) -> Any:
        places = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](places))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def nanogpt() -> Any:
    ids = torch.randint(0, WORDS, (BATCH, LENGTH))
    return NanoGpt(), (ids, ids), lambda out: out[1]


# --------------------------------------------------------------------------------------- a Llama as torchtitan writes it


class TitanAttention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.n_rep = heads // kv_heads
        self.wq, self.wo = nn.Linear(width, heads * self.head_dim, bias=False), nn.Linear(heads * self.head_dim, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: Any, freqs: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = (one(x).view(b, t, -1, self.head_dim) for one in (self.wq, self.wk, self.wv))
        q, k = (rotated(one, freqs) for one in (q, k))
        k, v = (
            one[:, :, :, None, :].expand(b, t, one.shape[2], self.n_rep, self.head_dim).reshape(b, t, -1, self.head_dim) for one in (k, v)
        )
        y = functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(b, t, -1))


def rotated(x: Any, freqs: Any) -> Any:
    """Rotary embedding by complex numbers, as the first code of Llama has it."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs[None, :, None, :]).flatten(3).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(inner, width, bias=False),
            nn.Linear(width, inner, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class TitanBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = TitanAttention(width, heads, kv_heads), FeedForward(width, 2 * width)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Any, freqs: Any) -> Any:
        h = x + self.attention(self.attention_norm(x), freqs)
        return h + self.feed_forward(self.ffn_norm(h))


class TitanLlama(nn.Module):
    """Layers in a ModuleDict by their numbers, and a buffer of complex rotations."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, width)
        freqs = 1.0 / (10000.0 ** (torch.arange(0, width // heads, 2).float() / (width // heads)))
        angles = torch.outer(torch.arange(LENGTH).float(), freqs)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.layers = nn.ModuleDict({str(i): TitanBlock(width, heads, kv_heads) for i in range(layers)})
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Any) -> Any:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        return self.output(self.norm(h))


def titan() -> Any:
    return TitanLlama(), torch.randint(0, WORDS, (BATCH, LENGTH))


# ---------------------------------------------------------------------------------------------------- layers of torch


class Translator(nn.Module):
    """`nn.Transformer` between two tables, as in torch's tutorial."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.transformer = nn.Transformer(width, 4, layers, layers, 2 * width, dropout=0.0, batch_first=True)
        self.generator, self.width = nn.Linear(width, WORDS), width

    def forward(self, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        scale = math.sqrt(self.width)
        return self.generator(self.transformer(self.source(source) * scale, self.target(target) * scale, tgt_mask=mask))


def translator() -> Any:
    return Translator(), (torch.randint(0, WORDS, (BATCH, LENGTH)), torch.randint(0, WORDS, (BATCH, LENGTH)))


class Dlrm(nn.Module):
    """Embedding bags, two MLPs and the products of all pairs of features."""

    def __init__(self, tables: int = 8, rows: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1))

    def forward(self, dense: Any, sparse: Any) -> Any:
        x = self.bottom(dense)
        features = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


def dlrm() -> Any:
    labels = torch.ones(BATCH)
    inputs = torch.randn(BATCH, 13), torch.randint(0, 1000, (BATCH, 8, 4))
    return Dlrm(), inputs, lambda out: functional.binary_cross_entropy_with_logits(out, labels[: len(out)])
