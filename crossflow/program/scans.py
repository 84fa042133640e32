"""Sizes of the chunked scan of a state-space layer, whichever model it belongs to.

A scan cuts a sample into chunks of Q tokens. Within a chunk all pairs of tokens are worked on as matrix products; between chunks only the
states of the heads are handed on. So its work grows with the tokens, not with their square. Two scans are known:

- state-space duality [1]_, as the five kernels of mamba_ssm run it (`ssd_combined.py`): C B^T of each group, (L o C B^T) X of each head,
  the states of the chunks B^T X, the states handed from chunk to chunk, and C times the states;
- the gated delta rule [2]_, as flash-linear-attention runs it (`gated_delta_rule/chunk.py`): K K^T, the inverse of its triangle T, T K
  and T V, for each chunk W S and K^T (V - W S), then Q S and (L o Q K^T) (V - W S).

`WORK` counts what each needs, forward and backward, kernel by kernel. Of products of pairs a causal mask leaves half, as of attention.
Decays, masks and states handed on are pointwise work inside these kernels; as a softmax in attention it is not counted.

References
----------
.. [1] Dao and Gu, "Transformers are SSMs", ICML 2024, arXiv:2405.21060, Sec. 6 and Listing 1.
.. [2] Yang, Kautz and Hatamizadeh, "Gated Delta Networks", ICLR 2025, arXiv:2412.06464, Sec. 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossflow.base.arrays import Array
from crossflow.program.kernels import QUERIES, Scan

SINGLE = 4.0  # sums, decays, states within a scan and C B^T are fp32 [B]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one scan takes, in units that follow from its sizes. [1]"""

    # group_pairs, head_pairs: products of all pairs of a chunk over the elements of a state, once for a group of heads, and for each head
    group_pairs: float = 0.0
    head_pairs: float = 0.0
    pairs: float  # products of all pairs of a chunk over the elements of a head
    states: float  # products of a chunk's tokens with the state of a head
    # cubes of a chunk for each head, in multiplications and additions: a third for a triangle's inverse, two for a product
    inverse: float = 0.0
    # heads, groups, keys: times that main memory sees the elements of all heads, of the groups' B or C, of a B or C for each head
    heads: float
    groups: float
    keys: float = 0.0
    # group_squares, head_singles, head_squares: times that it sees a number for each pair of a chunk: of a group and of a head in fp32, and
    # of a head in the type of the elements
    group_squares: float = 0.0
    head_singles: float = 0.0
    head_squares: float = 0.0
    # singles, kept: times that it sees the states of all chunks in fp32, and in the type of the elements
    singles: float = 0.0
    kept: float
    gates: float  # bytes of decays and time steps for each head and token beyond one element. [B]
    # of `heads`, `groups` and elements for each head those that no kernel could leave out: the scan's own inputs and outputs
    ends: tuple[float, float, float]
    launches: float  # kernels


# By whether it is the delta rule's, and whether it is backward.
WORK: Mapping[tuple[bool, bool], Work] = {
    # cumulated decays; chunk states (r x B, w states); handing on (r w states); C B^T (r C B, w); scan (r C B^T, x, C, states, w y)
    (False, False): Work(
        group_pairs=1, pairs=1, states=2, heads=3, groups=4, group_squares=2, singles=2, kept=2, gates=24, ends=(2, 2, 1), launches=5
    ),
    # decays, C B^T, states and their handing on once more; gradients of states (C^T dy), handed back; dx (two products); dB and dC from
    # states; d(C B^T) from dy and x; dB and dC from it; the decays' gradient, for which dy x^T is computed once more; their sums
    (False, True): Work(
        group_pairs=3, pairs=3, states=5, heads=11, groups=15, group_squares=6, singles=4, kept=6, gates=72, ends=(3, 4, 2), launches=14
    ),
    # cumulated decays; K K^T (w A in fp32); its inverse (r A, w T); T K and T V (r k v T, w W U); states (r k W U, w V' and states);
    # output (r q k V' states, w o)
    (True, False): Work(
        head_pairs=3, pairs=2, states=3, inverse=1 / 3, heads=6, groups=5, keys=2, head_singles=2, head_squares=2, kept=2, gates=24,
        ends=(2, 2, 2), launches=6,
    ),
    # W, U, V' and states once more; dV from dO within chunks; gradients of states, handed back; dQ, dK, dW, and dK, dV through T
    (True, True): Work(
        head_pairs=9, pairs=5, states=8, inverse=4, heads=15, groups=9, keys=11, head_squares=2, kept=4, gates=72, ends=(3, 4, 4),
        launches=8,
    ),
}  # fmt: skip


def scan_sizes(shapes: Array, element: float, rows: Sequence[Scan]) -> Array:
    """Operations on matrix units, bytes of main memory, the least of them, blocks and launches of scans, shape (5, scans, n).

    The least bytes are those of inputs and outputs, each once. A block works on as many tokens as one of attention. [flop], [B], [1]

    Parameters
    ----------
    shapes : samples, heads, groups, tokens of a sample, elements of a head and of a state, tokens of a chunk, shape (7, scans, n). [1]
    """
    samples, heads, groups, length, width, state, chunk = shapes
    q, tokens = np.minimum(chunk, length), samples * length

    def of(name: str) -> Array:
        return np.array([[getattr(WORK[row.delta, row.backward], name)] for row in rows])

    over_state = of("group_pairs") * groups + of("head_pairs") * heads
    products = q * (state * over_state + width * heads * of("pairs")) + 2.0 * of("states") * state * width * heads
    flops = tokens * (products + of("inverse") * heads * q**2)
    elements = of("heads") * heads * width + of("groups") * groups * state + of("keys") * heads * state + heads
    pairs = q * (SINGLE * (of("group_squares") * groups + of("head_singles") * heads) + element * of("head_squares") * heads)
    states = heads * width * state / q * (SINGLE * of("singles") + element * of("kept"))
    moved = tokens * (element * elements + pairs + states + of("gates") * heads)
    ends = np.array([WORK[row.delta, row.backward].ends for row in rows]).T[..., None]
    least = tokens * element * (ends[0] * heads * width + ends[1] * groups * state + ends[2] * heads)
    blocks = samples * heads * np.ceil(length / np.minimum(q, QUERIES))
    return np.stack(np.broadcast_arrays(flops, moved, least, blocks, of("launches")))
