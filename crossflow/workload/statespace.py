"""State-space layers: a state of fixed size takes the place of keys and values that grow with the tokens.

Eleven mixers are known, each with the shape of its state and with what it computes for a token:

``mamba2``
    state-space duality [1]_: h = a h + (dt x) B^T, y = h C, with one decay a for each head;
``gated_delta``
    the gated delta rule [2]_: S = a S (I - b k k^T) + b v k^T, o = S q; here v is x, k is B and q is C;
``kda``
    Kimi delta attention [4]_: the same with a decay for every element of a key, S = S Diag(a) (I - b k k^T) + b v k^T;
``mamba1``
    the selective scan [3]_: the first with a decay for every channel and element of the state, so that it is no matrix product;
``lightning``
    lightning attention [5]_: S = a S + v k^T, o = S q, with one decay for each head that no token changes, and no convolution;
``mlstm``
    the matrix memory of xLSTM [8]_: C = f C + i v k^T, o = C q over the larger of |n q| and 1, where n = f n + i k; each token makes the
    gates i and f of every head. The vector n of a head is left out: it is one row of the state's hundreds;
``conv``
    a short convolution between two gates [6]_, which keeps the last tokens and no state;
``rglru``
    the gated linear recurrence of Griffin [7]_: h = a h + sqrt(1 - a^2) (i x) of every channel, with a decay a and a gate i that
    products of each head make of x;
``rwkv5``, ``rwkv6``, ``rwkv7``
    time mixing of RWKV, whose equations are in `crossflow.workload.rwkv`.

References
----------
.. [1] Dao and Gu, "Transformers are SSMs", ICML 2024, arXiv:2405.21060, Sec. 6 and 7.
.. [2] Yang, Kautz and Hatamizadeh, "Gated Delta Networks", ICLR 2025, arXiv:2412.06464, Sec. 3.
.. [3] Gu and Dao, "Mamba", 2023, arXiv:2312.00752, Algorithm 2.
.. [5] MiniMax, "MiniMax-01: Scaling Foundation Models with Lightning Attention", 2025, arXiv:2501.08313, Sec. 2.2.
.. [6] Liquid AI, "LFM2 Technical Report", 2025, arXiv:2511.23404, Sec. 2; transformers, models/lfm2/modeling_lfm2.py.
.. [7] De et al., "Griffin: Mixing Gated Linear Recurrences with Local Attention", 2024, arXiv:2402.19427, Sec. 2.4.
.. [8] Beck et al., "xLSTM 7B: A Recurrent LLM for Fast and Efficient Inference", 2025, arXiv:2503.13427, Sec. 2 and 3; transformers,
   models/xlstm/modeling_xlstm.py.
.. [4] Kimi Team, "Kimi Linear", 2025, arXiv:2510.26692, Sec. 3 and Appendix C; fla/ops/kda/chunk.py of flash-linear-attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES

Recurrence = Literal["mamba2", "gated_delta", "kda", "mamba1", "lightning", "mlstm", "conv", "rglru", "rwkv5", "rwkv6", "rwkv7"]
# Products of a head's state with a vector for one token: input and output; the delta rule also reads what the state holds for a key,
# and that of RWKV-7 takes it off at another key than it writes.
STATE_PRODUCTS = {
    "mamba2": 2,
    "mamba1": 2,
    "gated_delta": 3,
    "kda": 3,
    "lightning": 2,
    "mlstm": 2,
    "conv": 0,
    "rglru": 1,
    "rwkv5": 2,
    "rwkv6": 2,
    "rwkv7": 4,
}
# Operations that writing one token takes for each element of the state: decay, sum and product of every state product.
UPDATE = {"mamba2": 5.0, "gated_delta": 7.0, "kda": 7.0, "mamba1": 7.0, "lightning": 5.0, "mlstm": 5.0, "conv": 0.0, "rglru": 12.0}
UPDATE |= {kind: 1.0 + 2.0 * STATE_PRODUCTS[kind] for kind in ("rwkv5", "rwkv6", "rwkv7")}
SHIFTS = ("rwkv5", "rwkv6", "rwkv7")  # kinds that look back at one token by a mixture rather than a convolution
UNCONVOLVED = ("lightning", "mlstm", *SHIFTS)  # kinds without a short convolution before the recurrence
# Of the selective scan of a whole sample, forward: exp(dt A) and dt x B (3), a h + b (2), C h (2), as Megatron-Core counts. Backward: the
# first five again, dh (2), the gradients of C, B, x (2 each) and a (2), of dt and A (2 each).
# Of the gated recurrence, for each channel: two sigmoids (4 each), a power, a root, products and a sum; backward twice as many and a sum.
GATED = {"forward": 15.0, "input": 32.0}
SELECTIVE = {"forward": 7.0, "input": 19.0}


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """Geometry of a state-space mixer."""

    kind: Recurrence  # the recurrence
    heads: int  # heads of inputs and outputs. [1]
    groups: int  # groups of them that share B and C (keys and queries). [1]
    width: int  # elements of a head's input (value). [1]
    state: int  # of B and C (key and query); a head's state has width x state elements. [1]
    chunk: int  # tokens that are worked on as matrix products, 0 where the recurrence has none. [1]
    convolution: int  # tokens that the short causal convolution before the recurrence sees. [1]
    norm: bool  # whether a norm follows the recurrence (in Jamba's mamba1, norms of B, C and of the step)
    step_rank: int = 0  # elements of the latent that the time steps of mamba1, or the decays of kda and rwkv, are made of. [1]
    gate_rank: int = 0  # of the latent that the output's gate of kda or rwkv7 is made of, 0 where it has none. [1]
    mix_rank: int = 0  # of the latents that mixtures of rwkv6 are made of. [1]
    rate_rank: int = 0  # of the latent that rates of rwkv7 are made of, and that of shares of values (`value_rank`). [1]
    value_rank: int = 0
    stored: str = ""  # type in which a service keeps the state, "" for that of the activations

    @property
    def delta(self) -> bool:
        """Whether the state follows a delta rule."""
        return self.kind in ("gated_delta", "kda", "rwkv7")

    @property
    def shifts(self) -> bool:
        """Whether products take mixtures of a token with the one before it."""
        return self.kind in SHIFTS

    @property
    def decays(self) -> int:
        """Decays that a token has for each head beyond one: those of all but one element of a key. [1]"""
        return self.state - 1 if self.kind in ("kda", "rwkv6", "rwkv7") else 0

    @property
    def gates(self) -> int:
        """Numbers that a token has for each head: the time step; decays and the step of the delta rule; rates too of rwkv7. [1]"""
        if self.kind == "rglru":
            return 2 * self.width
        return {"mamba2": 1, "gated_delta": 2, "kda": 2, "mlstm": 2, "rwkv6": 1, "rwkv7": 1 + self.state}.get(self.kind, 0) + self.decays

    @property
    def normed(self) -> int:
        """Elements that one norm after the recurrence spans, 0 without: those of a group, of the delta rule and of mlstm those of a
        head, of lightning attention all. [1]
        """
        if not self.norm or self.kind in ("mamba1", "conv", "rglru"):
            return 0
        if self.delta or self.shifts or self.kind == "mlstm":
            return self.width
        return self.heads * self.width // (1 if self.kind == "lightning" else self.groups)

    def groups_on(self, ranks: Array) -> Array:
        """Groups on one of `ranks` ranks that share the heads: whole ones, which ranks repeat where there are fewer. [1]"""
        return np.asarray(np.ceil(self.groups / ranks))

    def convolved(self, ranks: Array) -> Array:
        """Elements of a token that pass the convolution on one of `ranks` ranks. [1]"""
        selected = 0.0 if self.kind in ("mamba1", "conv", "rglru") else 2.0 * self.groups_on(ranks) * self.state
        return np.asarray(self.heads * self.width / ranks + selected)

    def held(self, ranks: Array, element: float) -> Array:
        """Bytes that one request keeps on one of `ranks` ranks: the state, and the tokens that the convolution looks back at. [B]"""
        states = self.heads / ranks * self.width * self.state * (DTYPE_BYTES[self.stored] if self.stored else element)
        if self.shifts:  # the token before, whole on every rank, for time mixing and channel mixing
            return np.asarray(states + 2.0 * self.heads * self.width * element)
        return np.asarray(states + np.maximum(self.convolution - 1, 0) * self.convolved(ranks) * element)

    def flops(self, tokens: float) -> float:
        """Operations that the recurrence needs: state products of every token, whatever more an algorithm computes. [flop]"""
        return 2.0 * tokens * STATE_PRODUCTS[self.kind] * self.heads * self.width * self.state
