"""Execution traces of PyTorch, joined with the Kineto traces of the same run.

An execution trace has no times. It says of every operation the tensors that it takes and makes, and of every collective its buffers.
Schemas 1.0.1 to 1.1.1 write the same in two ways: lists beside each other (`inputs`, `input_shapes`, `input_types`), or objects
(`inputs: {values, shapes, types}`) and a list of attributes. Both number the operations of a thread in the order in which they began
(`rf_id`), as Kineto does with `External id`, so that the two orders name the same operations.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossflow.base.errors import CrossflowError, Problem, SpecError
from crossflow.base.limits import opened
from crossflow.evidence.replay.chakra import chakra_nodes
from crossflow.evidence.replay.collectives import op_of
from crossflow.evidence.replay.events import EventFile, event_files
from crossflow.evidence.replay.kineto import STEP, DeviceWorks, HostSpans, RankTrace
from crossflow.evidence.replay.owners import owners
from crossflow.evidence.replay.tensors import TracedOperation, TracedTensor, recorded, tensors_of

SCHEMAS = ("1.0.", "1.1.")  # how the names of the schemas begin that are read
ROOT = "[pytorch|profiler|execution_"  # how the names of the process and of its threads begin, which are no operations
GROUPS = "## process_group:init ##"
COLLECTIVE = "record_param_comms"
MARKED = (STEP, GROUPS)  # how names begin of what the profiler or the observer marks by itself, in one of the traces or in both
NO_RANK = -1


@dataclass(frozen=True, kw_only=True)
class ExecutionNode:
    """One operation of an execution trace.

    Attributes
    ----------
    name : as Kineto has it.
    order : its `rf_id`.
    thread : number of its thread in the trace.
    operation : what it takes and makes.
    said : further attributes by name; of collectives, what the profiler would have written.
    """

    name: str
    order: int
    thread: int
    operation: TracedOperation
    said: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExecutionTrace:
    """An execution trace of one rank.

    Attributes
    ----------
    source : its file.
    process : number of its process, "" where it is not said.
    rank : as its collectives say it, `NO_RANK` where none does.
    nodes : its operations, in order.
    groups : ranks of its process groups by name.
    """

    source: str
    process: str
    rank: int
    nodes: tuple[ExecutionNode, ...]
    groups: Mapping[str, tuple[int, ...]]

    def producers(self) -> tuple[tuple[int, ...], ...]:
        """Of every operation those that made the tensors that it takes, the last before it of each tensor, by place.

        Tensors are compared by their numbers. What is there before the trace begins, weights and the batch, has no producer.
        """
        made: dict[int, int] = {}
        found = []
        for place, node in enumerate(self.nodes):
            taken = (made.get(tensor.number) for tensor in tensors_of(node.operation.args))
            found.append(tuple(dict.fromkeys(one for one in taken if one is not None)))
            made.update((tensor.number, place) for tensor in tensors_of(node.operation.out or ()))
        return tuple(found)


# -------------------------------------------------------------------------------------------- reading


def read_executions(paths: Iterable[str | Path]) -> tuple[ExecutionTrace, ...]:
    """Execution traces of ranks, in the order of their files.

    Parameters
    ----------
    paths : files (.json, .json.gz, .et of Chakra), archives (.tar.gz) or folders.

    Raises
    ------
    SpecError
        For a file that is no execution trace, or one of a schema that is not supported.
    """
    found = []
    for path in map(Path, paths):
        found += [_read_chakra(path)] if path.suffix == ".et" else [_read(file) for file in event_files(path)]
    return tuple(found)


def _read_chakra(path: Path) -> ExecutionTrace:
    """A Chakra trace in protobuf, which says no process."""
    try:
        with opened(path) as stream:
            found = _trace(str(path), chakra_nodes(stream))
    except OSError as error:
        raise SpecError([Problem(file=str(path), message=f"cannot be read: {error.strerror or error}")]) from None
    except ValueError as error:
        raise SpecError([Problem(file=str(path), message=f"expected a Chakra trace in protobuf, but {error}")]) from None
    if not found.nodes:
        message = "the Chakra trace has no operations of PyTorch (no attribute rf_id); write it with the converter of Chakra from PyTorch"
        raise SpecError([Problem(file=str(path), message=message)])
    return found


def _read(file: EventFile) -> ExecutionTrace:
    found = _trace(file.name, file.events())
    schema = str(file.head.get("schema", ""))
    if not schema.startswith(SCHEMAS):
        what = f"its schema is '{schema}'" if schema else "it names no schema"
        raise SpecError([Problem(file=file.name, message=f"{what}; execution traces of PyTorch with schemas 1.0 and 1.1 are supported")])
    if file.truncated:
        raise SpecError([Problem(file=file.name, message="the execution trace ends in the middle, so that it joins no Kineto trace")])
    return replace(found, process=str(file.head.get("pid", "")))


def _trace(source: str, events: Iterable[Mapping[str, Any]]) -> ExecutionTrace:
    nodes = sorted(filter(None, map(_node, events)), key=lambda node: node.order)
    groups = dict(pair for node in nodes if node.name == GROUPS for pair in _groups(node.operation.args))
    rank = next((rank for node in nodes if (rank := _rank(node)) != NO_RANK), NO_RANK)
    return ExecutionTrace(source=source, process="", rank=rank, nodes=tuple(nodes), groups=groups)


def _node(event: Mapping[str, Any]) -> ExecutionNode | None:
    """A node of either schema; None for what is no operation."""
    name, attributes = str(event.get("name", "")), event.get("attrs")
    if not name or name.startswith(ROOT):
        return None
    if isinstance(attributes, list):
        said: dict[str, Any] = {str(one.get("name")): one.get("value") for one in attributes if isinstance(one, Mapping)}
        sides = [_side(event.get(side)) for side in ("inputs", "outputs")]
    else:
        said = dict(event)
        sides = [(event.get(f"{side}s"), event.get(f"{side}_shapes"), event.get(f"{side}_types")) for side in ("input", "output")]
    order, thread = said.get("rf_id"), said.get("tid", 0)
    if not isinstance(order, int) or not isinstance(thread, int):
        return None
    taken, made = (recorded(*side) for side in sides)
    kept = said if name == COLLECTIVE else {}
    return ExecutionNode(name=name, order=order, thread=thread, operation=TracedOperation(taken, made), said=kept)


def _side(written: Any) -> tuple[Any, Any, Any]:
    held = written if isinstance(written, Mapping) else {}
    return held.get("values"), held.get("shapes"), held.get("types")


def _groups(args: Sequence[Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Process groups as a job names them when it begins, in JSON."""
    try:
        listed = json.loads(args[0])
    except (IndexError, TypeError, ValueError):
        return
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, Mapping):
            ranks = one.get("ranks") or range(int(one.get("group_size", 0)))
            yield str(one.get("pg_name", "")), tuple(int(rank) for rank in ranks)


def _rank(node: ExecutionNode) -> int:
    """Rank that a collective says: the number before its name."""
    args = node.operation.args
    named = next((i for i, one in enumerate(args) if isinstance(one, str)), 0) if node.name == COLLECTIVE else 0
    if not named or args[named] == "wait" or not isinstance(args[named - 1], int):
        return NO_RANK
    return int(args[named - 1])


# -------------------------------------------------------------------------------------------- joining


def joined(traces: Sequence[RankTrace], executions: Sequence[ExecutionTrace]) -> tuple[RankTrace, ...]:
    """Kineto traces with what the execution traces of the same ranks say: sizes of all tensors, bytes and ranks of collectives.

    Each execution trace goes with the Kineto trace of its process, else of its rank, else of its place among the files.

    Raises
    ------
    CrossflowError
        Where an execution trace is of another run or rank: its operations are not those of the Kineto trace, or both say other ranks.
    """
    if not executions:
        return tuple(traces)
    found, ways, several = list(traces), dict[str, int](), 1
    for place, execution in enumerate(executions):
        mine, way = _partner(place, execution, traces, executions)
        found[mine], often = join(traces[mine], execution)
        ways[way] = ways.get(way, 0) + sum(not node.name.startswith(MARKED) for node in execution.nodes)
        several = max(several, often)
    told = [f"execution traces were joined by {way}: the names of all {count:,} operations agree" for way, count in ways.items()]
    if several > 1:
        told.append(f"the execution trace of one step says the sizes of {several} steps that run the same operations")
    found[0] = replace(found[0], notes=(*found[0].notes, *told))
    return tuple(found)


def _partner(place: int, execution: ExecutionTrace, traces: Sequence[RankTrace], executions: Sequence[ExecutionTrace]) -> tuple[int, str]:
    """Place of the Kineto trace that an execution trace goes with, and by what."""
    processes, ranks = Counter(one.process for one in executions), Counter(one.rank for one in executions)
    by_process = [i for i, trace in enumerate(traces) if trace.process and trace.process == execution.process]
    by_rank = [i for i, trace in enumerate(traces) if trace.rank == execution.rank]
    if len(by_process) == 1 and processes[execution.process] == 1:
        return by_process[0], "process"
    if by_rank and ranks[execution.rank] == 1:
        return by_rank[0], "rank"
    if len(traces) == len(executions):
        mine = traces[place]
        if mine.ranked and execution.rank not in (NO_RANK, mine.rank):
            both = f"{execution.source} is of rank {execution.rank}, and {mine.source} of rank {mine.rank}"
            raise CrossflowError(f"{both}; give the execution traces of the same ranks")
        return place, "the order of the files"
    read = f"{len(executions)} execution traces and {len(traces)} Kineto traces"
    raise CrossflowError(f"{execution.source}: neither its process nor its rank is that of one Kineto trace; of {read} none is left out")


def join(trace: RankTrace, execution: ExecutionTrace) -> tuple[RankTrace, int]:
    """One Kineto trace with what an execution trace of the same run says, and in how many of its steps.

    The operations of each thread stand in the same order in both, and all names must agree. An execution trace of one step says the sizes
    of every step of the Kineto trace that runs the same operations.
    """
    threads: dict[int, list[ExecutionNode]] = defaultdict(list)
    for node in execution.nodes:
        if not node.name.startswith(MARKED):
            threads[node.thread].append(node)
    events, often = _events(trace), list[int]()
    details, said = dict[int, TracedOperation](), dict[int, Mapping[str, Any]]()
    for nodes in threads.values():
        thread, places = _thread([node.name for node in nodes], events)
        if thread is None:
            raise CrossflowError(_other_run(trace, execution, nodes, events))
        rows = events.pop(thread)
        often.append(len(places))
        for place in places:
            for node, (_, op) in zip(nodes, rows[place : place + len(nodes)], strict=True):
                if op >= 0:
                    details[op] = node.operation
                    if node.name == COLLECTIVE:
                        said[op] = _collective(node, execution)
    return replace(trace, details=details, works=_with_sizes(trace, said)), max(often, default=0)


NamedOp = tuple[str, int]  # name of an operation or annotation, and its place among the operations, -1 for an annotation


def _events(trace: RankTrace) -> dict[int, list[NamedOp]]:
    """Operations and annotations of every thread in the order of their numbers."""
    found: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
    for spans, are_ops in ((trace.ops, True), (trace.marks, False)):
        for op, (number, thread, name) in enumerate(_numbered(spans)):
            text = trace.names[name]
            if not text.startswith(MARKED) and number >= 0:
                found[thread].append((number, text, op if are_ops else -1))
    return {thread: [(text, op) for _, text, op in sorted(rows)] for thread, rows in found.items()}


def _numbered(spans: HostSpans) -> Iterator[tuple[int, int, int]]:
    return zip(spans.correlation.tolist(), spans.thread.tolist(), spans.name.tolist(), strict=True)


def _thread(names: Sequence[str], events: Mapping[int, Sequence[NamedOp]]) -> tuple[int | None, list[int]]:
    """Thread of the Kineto trace that ran the same operations, one after the other, and where; None where none did.

    The one with as many operations comes first, so that an execution trace of the whole is joined with the whole.
    """
    for thread, rows in sorted(events.items(), key=lambda item: len(item[1]) != len(names)):
        texts, places, at = [text for text, _ in rows], list[int](), 0
        while at + len(names) <= len(texts):
            if texts[at] == names[0] and texts[at : at + len(names)] == names:
                places.append(at)
                at += len(names)
            else:
                at += 1
        if places:
            return thread, places
    return None, []


def _other_run(trace: RankTrace, execution: ExecutionTrace, nodes: Sequence[ExecutionNode], events: Mapping[int, Sequence[NamedOp]]) -> str:
    """Why two traces do not belong together, in a sentence."""
    begin = f"{execution.source} is of another run or step than {trace.source}"
    if trace.process and execution.process and trace.process != execution.process:
        begin += f" (process {execution.process}, not {trace.process})"
    if not events:
        return f"{begin}: a thread with {len(nodes)} operations has none in the Kineto trace"
    nearest = min(events.values(), key=lambda rows: abs(len(rows) - len(nodes)))
    if len(nearest) != len(nodes):
        return f"{begin}: a thread has {len(nodes)} operations in the first, {len(nearest)} in the second"
    place = next(i for i, (node, (text, _)) in enumerate(zip(nodes, nearest, strict=True)) if node.name != text)
    return f"{begin}: operation {place + 1} of a thread is {nodes[place].name} in the first, {nearest[place][0]} in the second"


def _collective(node: ExecutionNode, execution: ExecutionTrace) -> Mapping[str, Any]:
    """What the profiler writes beside the kernel of a collective, by what an execution trace says of the call."""
    args, said = node.operation.args, node.said
    name = next((one for one in args if isinstance(one, str) and op_of(one)), said.get("collective_name", ""))
    sides = [[*tensors_of(side)] for side in (args, node.operation.out or ())]
    if not name or not sides[0]:
        return {}
    splits = [one for one in args[args.index(name) + 1 :] if isinstance(one, tuple)] if name in args else []
    found: dict[str, Any] = {"Collective name": name, "dtype": sides[0][0].type}
    found |= {f"{way} msg nelems": _elements(side) for way, side in zip(("In", "Out"), sides, strict=True)}
    found |= {f"{way} split size": [*split] for way, split in zip(("In", "Out"), splits, strict=False)}
    group = next((one[0] for one in args if isinstance(one, tuple) and one and isinstance(one[0], str)), "")
    ranks = execution.groups.get(group, ())
    if group:
        found["Process Group Name"] = group
    if len(ranks) or (splits and splits[0]):
        found["Group size"] = len(ranks) or len(splits[0])
    return found


def _elements(tensors: Sequence[TracedTensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _with_sizes(trace: RankTrace, said: Mapping[int, Mapping[str, Any]]) -> DeviceWorks:
    """Works of the device, collectives with the sizes of the calls that launched them; a group of one size is that of all."""
    own = owners(trace)
    sizes = {one["Group size"] for one in said.values() if "Group size" in one}
    args = list(trace.works.args)
    for work in np.flatnonzero(trace.works.collective).tolist():
        call = next((said[op] for op in own.chain(work) if op in said), {})
        if call:
            usual = {"Group size": max(sizes)} if len(sizes) == 1 and "Process Group Name" not in call else {}
            args[work] = {**usual, **call, **(args[work] or {})}
    return replace(trace.works, args=tuple(args))
