"""Requests of a service as arrays: the one form of traces, of draws from distributions and of sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import Array, Index, NumberLists


@dataclass(frozen=True, kw_only=True)
class RequestClass:
    """Requests with targets of their own; a target that is absent is always met."""

    name: str
    priority: int = 0  # larger is served first where an engine has priorities. [1]
    ttft: float | None = None  # time to the first token that is still on target. [s]
    tpot: float | None = None  # mean time of a token after the first. [s]
    e2e: float | None = None  # time from the arrival to the last token. [s]


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestTrace:
    """Requests in order of their arrival; arrays of shape (n,).

    A request that follows another one (the next turn of a session, an agent after its tool, the next request of a user in a closed loop)
    arrives `pause` seconds after that one's last token, and no sooner than `arrival`.
    """

    arrival: Array  # not falling. [s]
    prompt: Index  # tokens of the prompt, at least one. [1]
    output: Index  # tokens that are written, at least one. [1]
    kind: Index  # index of its class. [1]
    classes: tuple[RequestClass, ...]
    follows: Index  # index of an earlier request, -1 for none. [1]
    pause: Array  # between the last token of that one and the arrival of this. [s]
    blocks: NumberLists | None = None  # hashes of its prompt's full blocks from the first on; equal numbers are equal prefixes
    block: int = 0  # tokens of such a block. [1]

    def __len__(self) -> int:
        return len(self.arrival)

    @classmethod
    def of(cls, arrival: Array, prompt: Index, output: Index, **more: Any) -> RequestTrace:
        """Requests of one class that do not follow each other, unless `more` says otherwise.

        >>> RequestTrace.of(np.array([0.0, 0.5]), np.array([100, 20]), np.array([8, 1])).follows.tolist()
        [-1, -1]
        """
        n = len(arrival)
        plain = {
            "kind": np.zeros(n, dtype=np.intp), "classes": (RequestClass(name="all"),),
            "follows": np.full(n, -1, dtype=np.intp), "pause": np.zeros(n),
        }  # fmt: skip
        return cls(
            arrival=np.asarray(arrival, dtype=float), prompt=np.asarray(prompt, dtype=np.intp),
            output=np.asarray(output, dtype=np.intp), **{**plain, **more},
        )  # fmt: skip
