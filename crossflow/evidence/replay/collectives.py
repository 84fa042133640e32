"""Which collective a kernel of a trace is, of how many bytes, among which ranks: as far as the trace says."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossflow.base.arrays import rows_of
from crossflow.evidence.replay.edges import RankEdges
from crossflow.evidence.replay.kineto import RankTrace
from crossflow.evidence.replay.tensors import BYTES, plain_type
from crossflow.program.collectives import GATHERED

# Names of collectives in traces, lower case without separators, and ours; the longest that a name holds counts.
NAMES: Mapping[str, str] = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "send": "send", "recv": "recv",
    "barrier": "barrier", "sendrecv": "send_recv", "crossdevicereduce": "all_reduce",
}  # fmt: skip
OPS = tuple(dict.fromkeys(NAMES.values()))


@dataclass(frozen=True, kw_only=True)
class TracedCollective:
    """A collective of one rank in a trace.

    Attributes
    ----------
    op : which it is; ``send_recv`` where the trace says no more than that ranks exchanged messages.
    size : whole buffer per rank, nan where the trace does not say. [B]
    ranks : ranks that take part, 0 where the trace does not say. [1]
    """

    op: str
    size: float
    ranks: int


def traced_collectives(edges: RankEdges) -> Mapping[int, TracedCollective]:
    """The collectives of a rank, by work."""
    trace = edges.trace
    marks, named = trace.marks, np.array([*(name.startswith(("nccl:", "record_param_comms")) for name in trace.names), False])
    mine = np.flatnonzero(named[marks.name])
    works = np.flatnonzero(trace.works.collective)
    launched = edges.launched[works]
    called = np.where(launched >= 0, np.concatenate([edges.points.start, [-np.inf]])[launched], -np.inf)
    place = np.searchsorted(marks.start[mine], called, side="right") - 1
    found = {}
    for work, at, moment in rows_of(works, place, called):
        mark = int(mine[at]) if at >= 0 and marks.end[mine[at]] >= moment else -1
        around = (trace.names[marks.name[mark]], int(marks.shape[mark])) if mark >= 0 else None
        found[work] = _collective(trace.names[trace.works.name[work]], trace.works.args[work] or {}, around, trace)
    return found


def _collective(kernel: str, args: Mapping[str, Any], around: tuple[str, int] | None, trace: RankTrace) -> TracedCollective:
    """A collective by its kernel, what is said beside, and name and shape of the annotation around its launch."""
    said = (
        str(args.get("Collective name", "")),
        around[0].partition(":")[2] if around else "",
        kernel.split("(")[0].partition("Kernel")[2] or kernel.split("<")[0],
    )
    op = next(filter(None, map(op_of, said)), "collective")
    ranks = int(args.get("Group size", 0)) or len(_ranks(args.get("Process Group Ranks")))
    if "In msg nelems" in args:
        elements = max(_number(args["In msg nelems"]), _number(args.get("Out msg nelems", 0)))
        return TracedCollective(op=op, size=elements * BYTES.get(plain_type(args.get("dtype", "")), math.nan), ranks=ranks)
    if around is None or around[1] < 0:
        return TracedCollective(op=op, size=math.nan, ranks=ranks)
    sizes, types, _ = trace.shapes[around[1]]
    return TracedCollective(op=op, size=_bytes(sizes, types) * (max(ranks, 1) if op in GATHERED else 1), ranks=ranks)


def op_of(text: str) -> str:
    """The collective that a name of a trace means, "" for none.

    >>> op_of("_allgather_base"), op_of("AllReduce_RING_LL_Sum_float"), op_of("all_to_allv")
    ('all_gather', 'all_reduce', 'all_to_all')
    """
    plain = text.lower().replace("_", "")
    held = [name for name in NAMES if name in plain]
    return NAMES[max(held, key=len)] if held else ""


def _ranks(written: Any) -> Sequence[Any]:
    if isinstance(written, Sequence) and not isinstance(written, str):
        return written
    try:
        found = ast.literal_eval(str(written))
    except (SyntaxError, ValueError):
        return ()
    return found if isinstance(found, list | tuple) else ()


def process_group(args: Mapping[str, Any] | None) -> tuple[str, tuple[int, ...]]:
    """Name and ranks of the process group of a collective, "" and none where the trace does not say."""
    args = args or {}
    ranks = tuple(rank for rank in _ranks(args.get("Process Group Ranks")) if isinstance(rank, int))
    return str(args.get("Process Group Name", "")), ranks


def _number(written: Any) -> float:
    return float(written) if isinstance(written, int | float) else math.nan


def _bytes(sizes: Sequence[Any], types: Sequence[Any]) -> float:
    """Bytes of the first tensor of an operation's inputs."""
    first = sizes[0] if sizes else ()
    if not isinstance(first, list) or not all(isinstance(one, int) for one in first):
        return math.nan
    return math.prod(first) * BYTES.get(plain_type(types[0] if types else ""), math.nan)
