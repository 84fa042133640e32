"""Attention by rules and over packed sequences: one kernel each way, whether or not the code was compiled before."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from crossflow.evidence.torch import record
from crossflow.program.kernels import Attention

TOKENS, HEADS, GROUPS, WIDTH = 128, 4, 2, 16


def causal(_sample, _head, query, key):
    return query >= key


def near(_sample, _head, query, key):
    return (query >= key) & (query - key < 24)


def around(_sample, _head, query, key):
    return (query - key).abs() < 24


@pytest.fixture(params=["plain", "compiled"])
def call(request):
    """Flex attention as it is, and as a script has it that compiled it before the import."""
    if request.param == "plain":
        return flex_attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what a compiler imports
        return torch.compile(flex_attention)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(64, HEADS * WIDTH), nn.Linear(64, 2 * GROUPS * WIDTH)

    def parts(self, x):
        keys, values = self.kv(x).chunk(2, -1)
        return self.q(x).unflatten(-1, (HEADS, WIDTH)), keys.unflatten(-1, (GROUPS, WIDTH)), values.unflatten(-1, (GROUPS, WIDTH))


class Ruled(Attending):
    def __init__(self, rule, call):
        super().__init__()
        self.rule, self.call, self.sink = rule, call, nn.Parameter(torch.zeros(HEADS, 1))

    def forward(self, x):
        tokens = x.shape[1]
        mask = create_block_mask(self.rule, None, None, tokens, tokens, device="cpu") if self.rule is not None else None
        parts = (one.transpose(1, 2) for one in self.parts(x))
        found, more = self.call(*parts, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
        return found * torch.sigmoid(more.lse - self.sink).unsqueeze(-1)  # as gpt-oss has it


def attended(program):
    return [
        (one.samples, one.heads, one.kv_heads, one.length, one.seen, one.causal, one.window, one.backward)
        for one in program.kernels
        if isinstance(one, Attention)
    ]


@pytest.mark.cases(4)
@pytest.mark.parametrize(("rule", "seen"), [(None, (False, 0)), (causal, (True, 0)), (near, (True, 24)), (around, (False, 0))])
def test_flex_attention_is_a_kernel_with_the_keys_that_its_rule_shows(rule, seen, call):
    found = record(lambda: (Ruled(rule, call), torch.randn(2, TOKENS, 64)))
    assert attended(found) == [(2, HEADS, GROUPS, TOKENS, TOKENS, *seen, back) for back in (False, True)]


def test_a_rule_that_depends_on_data_shows_all_keys():
    def build():
        documents = torch.randint(0, 3, (TOKENS,))

        def rule(sample, head, query, key):
            return causal(sample, head, query, key) & (documents[query] == documents[key])

        return Ruled(rule, flex_attention), torch.randn(2, TOKENS, 64)

    assert [one[5:7] for one in attended(record(build))] == [(False, 0)] * 2


def test_flex_attention_is_torchs_own_again_afterwards():
    record(lambda: (Ruled(causal, flex_attention), torch.randn(2, TOKENS, 64)))
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(*(torch.randn(1, 1, 4, 8, requires_grad=True) for _ in range(3)))


@pytest.mark.parametrize(("sides", "seen"), [((-1, -1), (False, 0)), ((-1, 0), (True, 0)), ((15, 0), (True, 16))])
def test_packed_sequences_are_those_of_the_mean_length(sides, seen):
    """A width of 15 to the left shows a token 16 keys, itself among them."""

    class Packed(Attending):
        def forward(self, x):
            ends = torch.tensor([0, 20, 52, 60, 128], dtype=torch.int32)
            return varlen_attn(*self.parts(x), ends, ends, 68, 68, window_size=sides, enable_gqa=True)

    found = record(lambda: (Packed(), torch.randn(TOKENS, 64)))
    assert attended(found) == [(4, HEADS, GROUPS, 32, 32, *seen, back) for back in (False, True)]
