"""What attention does with the outputs of its heads before the product that takes them, a row for each way.

A transformer's file names a way by its key, of which it has one at most. All else follows from the row: what the products give, what
lies in the cache, what is read and written between attention and its last product, what a backward pass keeps, and what it does not
go together with.

References
----------
.. [1] Qiu et al., "Gated Attention for Large Language Models", 2025, arXiv:2505.06708, Eq. 5: a sigmoid of as many numbers as the output
   has, or of one for each head (Qwen3-Next; Step-3.5).
.. [2] Ye et al., "Differential Transformer", ICLR 2025, arXiv:2410.05258, Eq. 1 to 3: of two heads with queries and keys of d elements
   each, which share a value of 2 d, (softmax(q1 k1^T) - lambda softmax(q2 k2^T)) v, then a norm of each such pair; lambda is made of four
   vectors of d elements. Each softmax multiplies the whole value, in a kernel of its own (microsoft/unilm, Diff-Transformer,
   multihead_flashdiff_1.py), so that sums of values take twice the operations, and reading values twice the bytes. The norm learns
   nothing, as in transformers (models/diffllama); that of the paper's code has 2 d weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class OutputForm:
    """A way to treat the outputs of heads; counts are for each element that heads give, all of them together."""

    key: str  # of a transformer's file
    gates: Literal["none", "head", "element"] = "none"  # for what the product of the queries gives a number more
    # heads of keys that share a value, which is as wide as those of all of them; outputs of as many query heads become one. [1]
    together: int = 1
    vectors: int = 0  # parameters of a layer, in queries of one head. [1]
    moved: tuple[float, float]  # elements that its kernel reads and writes, forward and backward. [1]
    operations: tuple[float, float]  # its operations. [flop]
    kept: float  # elements that the backward pass needs beside the input of the last product. [1]
    without: tuple[str, ...] = ()  # keys with which it is not modelled
    unmeasured: str = ""  # what bands of errors call models that have it, nothing where it is a pass over few bytes


_GATE: Mapping[str, Any] = {"moved": (3.0, 5.0), "operations": (5.0, 10.0), "kept": 2.0}  # sigmoid and product: r2 w1, backward r3 w2
FORMS: Mapping[str, OutputForm] = {
    form.key: form
    for form in (
        OutputForm(key="attention_gate", gates="element", without=("encoder",), **_GATE),  # [1]
        OutputForm(key="head_gate", gates="head", **_GATE),  # [1]
        # The difference with its norm and scale in one pass: r1 w0.5, backward the same again with the gradient, r1.5 w1. Of each element
        # of the difference 2 operations for it, 4 for its norm, 1 for its scale, and twice as many backward.
        OutputForm(
            key="differential",
            together=2,
            vectors=4,
            moved=(1.5, 2.5),
            operations=(3.5, 7.0),
            kept=1.0,
            unmeasured="differential attention",
            without=("encoder", "latent", "compressed", "keys_as_values"),
        ),  # [2]
    )
}


def form_of(spec: Any) -> OutputForm | None:
    """The way of a transformer's file, None where the product takes outputs as they are."""
    return next((form for key, form in FORMS.items() if getattr(spec, key)), None)
