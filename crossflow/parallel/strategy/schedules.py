"""Pipeline schedules as data: for every stage the order of its slots, made by a published rule or read from a file.

A slot is the forward pass, the backward pass or, where that is apart, the weight gradient of one chunk of the model and one
microbatch. Chunks lie on stages in *rows*: row r is on stage r modulo the number of stages. A *chain* is the rows that a
microbatch passes, in the order of the model; most schedules have one, bidirectional ones two.

References
----------
.. [1] Huang et al., "GPipe", NeurIPS 2019, Sec. 2.3.
.. [2] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, Sec. 2.2.
.. [3] Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, Sec. 3: ZB-H1.
.. [4] Li and Hoefer, "Chimera: Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines", SC 2021, Sec. 3.
.. [5] Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, Sec. 3.2 and 3.3.
.. [6] DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, 2024, Sec. 3.2.1 and Table 2, and their code of the schedule,
   github.com/deepseek-ai/DualPipe. Its DualPipeV folds the pipeline in half, as Sea AI Lab did ("DualPipe could be better without the
   Dual", 2025).
.. [7] Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, Sec. 3 and 4: V-ZB.
.. [8] PyTorch, torch/distributed/pipelining/schedules.py, `ScheduleInterleavedZeroBubble`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import Field

from crossflow.base import files
from crossflow.base.arrays import Index
from crossflow.base.errors import Problem, SpecError
from crossflow.base.files import FileModel
from crossflow.base.limits import Whole
from crossflow.parallel.strategy.mesh import BIDIRECTIONAL, FOLDED, SCHEDULES

FORWARD, BACKWARD, WEIGHT = range(3)
LETTERS = "FBW"  # of kinds of slots, in files and pictures
Slot = tuple[int, int, int]  # kind, row, microbatch


@dataclass(frozen=True, kw_only=True, eq=False)
class PipelineOrder:
    """Order of the slots of every stage."""

    stages: int  # of the pipeline. [1]
    microbatches: int  # of a step. [1]
    chains: tuple[tuple[int, ...], ...]  # rows that a microbatch passes, in the order of the model; one chain for each direction
    slots: tuple[Index, ...]  # for every stage its slots in their order, shape (slots, 3): kind, row, microbatch
    # slots, and those at whose end their results leave the stage, where that is not their own end: numbers as in `ids`, shape (slots, 2)
    together: Index = field(default_factory=lambda: np.zeros((0, 2), dtype=np.intp))
    flush: bool = True  # whether weights are updated once all microbatches are through; otherwise after each, without waiting (PipeDream)

    @property
    def rows(self) -> int:
        """Rows of all stages."""
        return sum(len(chain) for chain in self.chains)

    @functools.cached_property
    def split(self) -> bool:
        """Whether weight gradients are slots of their own."""
        return any((slots[:, 0] == WEIGHT).any() for slots in self.slots)

    @functools.cached_property
    def forward_only(self) -> PipelineOrder:
        """The order without what comes back, that of a service: no stage waits for a later one."""
        forward = tuple(slots[slots[:, 0] == FORWARD] for slots in self.slots)
        return replace(self, slots=forward, together=np.zeros((0, 2), dtype=np.intp))

    @functools.cached_property
    def chunk(self) -> Index:
        """Chunk of the model that each row holds, shape (rows,)."""
        found = np.zeros(self.rows, dtype=np.intp)
        for chain in self.chains:
            found[list(chain)] = np.arange(len(chain))
        return found

    @functools.cached_property
    def ids(self) -> tuple[Index, ...]:
        """Slots of every stage as numbers, (kind x rows + row) x microbatches + microbatch."""
        return tuple(_numbers(slots, self.rows, self.microbatches) for slots in self.slots)

    @functools.cached_property
    def sources(self) -> Index:
        """For every number of a slot that of the slot whose result it needs, the number of numbers where it needs none.

        Forward the same microbatch one row earlier in its chain; backward one row later, in the last row its forward pass; a weight
        gradient its backward pass.
        """
        rows, count = self.rows, 3 * self.rows * self.microbatches
        needs = np.zeros((3, rows), dtype=np.intp)
        for chain in self.chains:
            for i, row in enumerate(chain):
                needs[FORWARD, row] = chain[i - 1] if i else -1
                needs[BACKWARD, row] = rows + chain[i + 1] if i + 1 < len(chain) else row
                needs[WEIGHT, row] = rows + row
        found = np.where(needs.ravel()[:, None] < 0, count, needs.ravel()[:, None] * self.microbatches + np.arange(self.microbatches))
        found = np.append(found.ravel(), count)
        leaves = np.arange(count + 1)
        leaves[self.together[:, 0]] = self.together[:, 1]
        elsewhere = np.repeat(needs % rows % self.stages != np.arange(rows) % self.stages, self.microbatches)
        return np.where(np.append(elsewhere, False), leaves[found], found)

    def kept(self) -> Index:
        """Microbatches whose activations each row of each stage keeps when the stage keeps most, shape (rows / stages, stages).

        A forward pass leaves them, the backward pass, or the weight gradient where that is apart, is done with them.
        """
        last = WEIGHT if self.split else BACKWARD
        found = np.zeros((self.rows // self.stages, self.stages), dtype=np.intp)
        for stage, slots in enumerate(self.slots):
            change = (slots[:, 0] == FORWARD).astype(int) - (slots[:, 0] == last)
            most = int(np.cumsum(change).argmax()) + 1
            np.add.at(found[:, stage], slots[:most, 1] // self.stages, change[:most])
        return found


def _numbers(slots: Index, rows: int, microbatches: int) -> Index:
    """Slots of shape (slots, 3) as numbers."""
    return np.asarray((slots[:, 0] * rows + slots[:, 1]) * microbatches + slots[:, 2])


# -------------------------------------------------------------------------------------------- rules


def _passes(stages: int, chunks: int, microbatches: int) -> tuple[Index, Index, Index]:
    """Chunks forward and backward, and microbatches, of a stage's passes: `stages` microbatches go through one chunk before the next."""
    k = np.arange(microbatches * chunks)
    if chunks == 1:
        return np.zeros_like(k), np.zeros_like(k), k
    group, within = np.divmod(k, stages * chunks)
    chunk = within // stages
    return chunk, chunks - 1 - chunk, group * stages + within % stages


def ahead(stages: int, chunks: int, stage: int) -> int:
    """Forward passes of a stage before its first pair of a forward and a backward pass, where there are as many [2]_."""
    return stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages


def _merged(forward: Index, backward: Index, first: int) -> Index:
    """Forward slots `first`, then pairs of a forward and a backward slot, then the backward slots that are left."""
    total = len(forward)
    first = min(first, total)
    steady = np.stack([forward[first:], backward[: total - first]], axis=1).reshape(-1, 3)
    return np.concatenate([forward[:first], steady, backward[total - first :]])


def _natural(stages: int, chunks: int, microbatches: int, ahead: Callable[[int], int]) -> PipelineOrder:
    """Chunks of the model in its order, of which each stage begins with so many forward passes."""
    there, back, batch = _passes(stages, chunks, microbatches)
    slots = []
    for stage in range(stages):
        forward = np.stack([np.full_like(batch, FORWARD), there * stages + stage, batch], axis=1)
        backward = np.stack([np.full_like(batch, BACKWARD), back * stages + stage, batch], axis=1)
        slots.append(_merged(forward, backward, ahead(stage)))
    return PipelineOrder(stages=stages, microbatches=microbatches, chains=(tuple(range(stages * chunks)),), slots=tuple(slots))


def one_f_one_b(stages: int, chunks: int, microbatches: int) -> PipelineOrder:
    """1F1B, also Dapple's; with several chunks a stage interleaved [2]_."""
    return _natural(stages, chunks, microbatches, functools.partial(ahead, stages, chunks))


def gpipe(stages: int, chunks: int, microbatches: int) -> PipelineOrder:
    """All forward passes, then all backward passes [1]_."""
    return _natural(stages, chunks, microbatches, lambda _: microbatches * chunks)


def zb_h1(stages: int, chunks: int, microbatches: int) -> PipelineOrder:
    """ZB-H1 [3]_: 1F1B whose weight gradients come as many passes later as stages lie before, so that they fill its end.

    No stage keeps more than the first one of 1F1B; the bubble is (p - 1) (F + B - W). With several chunks a stage it is PyTorch's
    interleaved form [8]_: a stage begins with one forward pass more than the next, not two, as gradients of inputs come back sooner.
    """
    plain = _natural(stages, chunks, microbatches, lambda stage: stages * chunks - 1 - stage)
    slots = []
    for stage, mine in enumerate(plain.slots):
        backward = np.flatnonzero(mine[:, 0] == BACKWARD)
        weights = mine[backward] + [WEIGHT - BACKWARD, 0, 0]
        place = backward[np.minimum(np.arange(len(backward)) + stage, len(backward) - 1)]
        slots.append(np.insert(mine, place + 1, weights, axis=0))
    return PipelineOrder(stages=stages, microbatches=microbatches, chains=plain.chains, slots=tuple(slots))


def chimera(stages: int, _chunks: int, microbatches: int) -> PipelineOrder:
    """Chimera [4]_: half of the microbatches pass the stages downwards, half upwards; units of `stages` microbatches follow each other.

    Slots are in the order of the grid that the paper draws, in which passes of both directions and both kinds never meet.
    """
    p, half = stages, stages // 2
    unit, within = np.divmod(np.arange(microbatches), p)
    up, i = within >= half, within % half
    slots = []
    for stage in range(p):
        depth = np.where(up, p - 1 - stage, stage)
        begin = 2 * (unit * p + i)
        times = np.concatenate([begin + depth, begin + 2 * p - 1 - depth])
        kinds = np.repeat([FORWARD, BACKWARD], microbatches)
        rows, batches = np.tile(np.where(up, p + stage, stage), 2), np.tile(np.arange(microbatches), 2)
        slots.append(np.stack([kinds, rows, batches], axis=1)[np.argsort(times, kind="stable")])
    down, upwards = tuple(range(p)), tuple(range(2 * p - 1, p - 1, -1))
    return PipelineOrder(stages=p, microbatches=microbatches, chains=(down, upwards), slots=tuple(slots))


def pipedream(stages: int, chunks: int, microbatches: int) -> PipelineOrder:
    """PipeDream [5]_: 1F1B that goes on from step to step; every stage updates its weights after each backward pass."""
    plain = one_f_one_b(stages, chunks, microbatches)
    return PipelineOrder(stages=stages, microbatches=microbatches, chains=plain.chains, slots=plain.slots, flush=False)


def dualpipe(stages: int, _chunks: int, microbatches: int) -> PipelineOrder:
    """DualPipe [6]_: half of the microbatches from each end, a forward pass of one beside a backward pass of the other; few weights apart.

    The bubble is (p / 2 - 1) (F&B + B - 3 W), where F&B is a forward beside a backward pass and B has its W in it. A stage holds two
    chunks of the model and keeps at most p + 1 microbatches. Passes beside each other are slots one after the other here, and results of
    both leave their stage when both are done, as that of a whole backward pass does when its weight gradients are there.
    """
    p, half = stages, microbatches // 2

    def places(stage: int) -> tuple[WayStart, WayStart]:
        down, up = (stage, 0), (p + stage, half)
        return (down, up) if stage < p // 2 else (up, down)

    made = [list(_grouped(_dualpipe_steps(p, half, min(stage, p - 1 - stage)), places(stage))) for stage in range(p)]
    return _paired(p, microbatches, (tuple(range(p)), tuple(range(2 * p - 1, p - 1, -1))), made)


def dualpipev(stages: int, _chunks: int, microbatches: int) -> PipelineOrder:
    """DualPipeV [6]_: DualPipe of twice as many stages, of which a device has both that hold the same layers, each of them once.

    What the other direction's microbatches do on a stage of DualPipe is here what a microbatch does on its way back.
    """
    p = stages
    made = [list(_grouped(_dualpipe_steps(2 * p, microbatches, stage), ((stage, 0), (p + stage, 0)))) for stage in range(p)]
    return _paired(p, microbatches, _there_and_back(p), made)


def zb_v(stages: int, _chunks: int, microbatches: int) -> PipelineOrder:
    """V-ZB [7]_: microbatches pass the stages there and back, in two chunks, and weight gradients fill what is left at the end.

    Where passes of all three kinds are alike no stage idles between its first and its last pass, with the activations of 1F1B at most.
    """
    p = stages
    made = [list(_grouped(_zb_v_steps(p, max(microbatches, 2 * p - 1), stage), ((stage, 0), (p + stage, 0)))) for stage in range(p)]
    kept = [[[slot for slot in group if slot[2] < microbatches] for group in mine] for mine in made]  # of fewer, the first of the same
    slots = tuple(np.array([slot for group in mine for slot in group], dtype=np.intp) for mine in kept)
    return PipelineOrder(stages=p, microbatches=microbatches, chains=_there_and_back(p), slots=slots)


def _there_and_back(p: int) -> tuple[tuple[int, ...]]:
    """The chain of a model whose chunks lie on stages 0 to p - 1, then on p - 1 to 0."""
    return ((*range(p), *range(2 * p - 1, p - 1, -1)),)


def _paired(p: int, microbatches: int, chains: tuple[tuple[int, ...], ...], made: Sequence[Sequence[Sequence[Slot]]]) -> PipelineOrder:
    """Order of groups of slots, whose results leave the stage with the last of the group."""
    slots = tuple(np.array([slot for group in mine for slot in group], dtype=np.intp) for mine in made)
    leaving = np.array([(slot, group[-1]) for mine in made for group in mine for slot in group[:-1]], dtype=np.intp)
    together = np.stack([_numbers(leaving[:, i], 2 * p, microbatches) for i in (0, 1)], axis=1)
    return PipelineOrder(stages=p, microbatches=microbatches, chains=chains, slots=slots, together=together)


def _zb_v_steps(p: int, m: int, stage: int) -> list[str]:
    """Steps of a stage of V-ZB with at least 2 p - 1 microbatches; way 0 is there, way 1 back."""
    back = p - stage  # stages from here to the turn
    return [
        *["F0"] * (2 * back - 1), *["F1", "F0"] * stage, *["F1", "B1"] * back, *["F0", "B0", "F1", "B1"] * (m - p - back + 1),
        *["B0", "F1", "B1"] * (back - 1), *["b0", "b1"] * stage, *["b0", "W"] * back, *["W"] * (2 * stage),
    ]  # fmt: skip


def _dualpipe_steps(p: int, half: int, near: int) -> list[str]:
    """Steps of a stage with `near` stages between it and the nearer end, of `half` of the microbatches each way: `DualPipe.step` [6]_.

    Way 0 is that of the microbatches from the nearer end of the pipeline.
    """
    ahead, beyond = p // 2 - near - 1, (near + 1) // 2
    last = [("b1" if i > beyond or (i == beyond and near % 2) else "B1") + (" b0" if i >= beyond else " B0") for i in range(near + 1)]
    return [
        *["F0"] * (2 * ahead), *["F0 F1"] * (near + 1), *["b1 W F1"] * ahead, *["F0B1 F1B0"] * (half - p + near + 1), *["B1 F1B0"] * ahead,
        *last, *["W b0"] * ahead, *["W"] * (near + 1),
    ]  # fmt: skip


WayStart = tuple[int, int]  # row of the slots of one way on a stage, and its first microbatch


def _grouped(steps: Sequence[str], places: tuple[WayStart, WayStart]) -> Iterator[list[Slot]]:
    """Slots of one stage that run together, by the steps of two ways through it.

    A backward pass `b` leaves its weight gradient for a later `W`, first come, first served; one `B` is followed by its own.
    """
    done, waiting = Counter[tuple[str, int]](), list[tuple[int, int]]()
    for word in " ".join(steps).split():
        group: list[Slot] = []
        for kind, way in re.findall(r"([FBbW])(\d?)", word):
            if kind == "W":
                group.append((WEIGHT, *waiting.pop(0)))
                continue
            row, first = places[int(way)]
            slot = row, first + done[kind.upper(), row]
            done[kind.upper(), row] += 1
            group.append((LETTERS.index(kind.upper()), *slot))
            if kind == "B":
                group.append((WEIGHT, *slot))
            elif kind == "b":
                waiting.append(slot)
        yield group


RULES: Mapping[str, Callable[[int, int, int], PipelineOrder]] = dict(
    zip(SCHEDULES, (one_f_one_b, gpipe, zb_h1, chimera, pipedream, dualpipe, zb_v, dualpipev), strict=True)
)


ONE_CHUNK = ("chimera", "pipedream", "dualpipe")  # rules that are never interleaved
NATURAL = ("1f1b", "gpipe", "zb-h1", "pipedream")  # rules whose rows are the chunks of the model in its order


def pipeline_order(schedule: str, stages: int, chunks: int, microbatches: int) -> PipelineOrder:
    """Order of a schedule, by the name of its rule or the path of its file."""
    return _ruled(schedule, stages, chunks, microbatches) if schedule in RULES else _of_file(schedule)


@functools.lru_cache(maxsize=512)
def _ruled(rule: str, stages: int, chunks: int, microbatches: int) -> PipelineOrder:
    return RULES[rule](stages, chunks, microbatches)


def schedule_problem(schedule: str, stages: int, chunks: int, microbatches: int) -> str | None:
    """Why a schedule cannot run on so many stages, in a sentence; None where it can."""
    if schedule not in RULES:
        made = _of_file(schedule)
        given = (stages, chunks, microbatches)
        wanted = (made.stages, made.rows // made.stages, made.microbatches)
        if given != wanted:
            words = "pp = {}, virtual_stages = {} and {} microbatches"
            return f"schedule {schedule} is of {words.format(*wanted)}, but the plan has {words.format(*given)}"
        return None
    if stages == 1 and schedule in (*ONE_CHUNK, *FOLDED, "zb-h1"):
        return f"schedule: {schedule} needs a pipeline, but pp = 1"
    if chunks > 1 and schedule in ONE_CHUNK:
        each = "a chunk a stage for each direction" if schedule in BIDIRECTIONAL else "one chunk a stage"
        return f"schedule: {schedule} has {each}, but virtual_stages = {chunks}"
    if schedule in BIDIRECTIONAL and stages % 2:
        return f"schedule: {schedule} needs an even number of stages, but pp = {stages}"
    if schedule in FOLDED and chunks != 2:
        return f"schedule: {schedule} has two chunks a stage; give virtual_stages = 2 (v2), not {chunks}"
    if schedule == "dualpipev" and microbatches < 2 * stages:
        return f"schedule: dualpipev needs at least 2 x pp = {2 * stages} microbatches, but there are {microbatches}"
    if schedule == "dualpipe" and (microbatches % 2 or microbatches < 2 * stages):
        return f"schedule: dualpipe needs an even number of microbatches, at least 2 x pp = {2 * stages}, but there are {microbatches}"
    if schedule == "chimera" and microbatches % stages:
        return f"schedule: chimera needs a multiple of pp = {stages} microbatches, but there are {microbatches}"
    return None


# -------------------------------------------------------------------------------------------- files


class ScheduleFile(FileModel):
    """A schedule as a file: slots such as ``F0 F1 B0 W0``, with the chunk of a stage that has several behind a dot, ``F0.1``."""

    kind: str = Field(pattern="^schedule$")
    name: str
    title: str = ""
    notes: str = ""
    chunks: tuple[Whole, ...] | None = Field(
        default=None, description="stage of every chunk in the order of the model; where absent 0, 1, ..., as often as slots name chunks"
    )
    order: tuple[str, ...] = Field(description="slots of every stage in their order, the first stage first")


_HELD: dict[str, tuple[str, PipelineOrder]] = {}  # files as the scenarios that name them have read them: their text and order


def hold_order(path: Path) -> None:
    """Keep the schedule of a file that a scenario names, so that its steps have the order that was read with it."""
    text = files.read_text(path)
    if _HELD.get(str(path), (None,))[0] != text:
        _HELD[str(path)] = (text, _read(path))


def _of_file(path: str) -> PipelineOrder:
    return _HELD[path][1] if path in _HELD else read_order(Path(path))


_READ: dict[Path, tuple[int, PipelineOrder]] = {}  # files as they were read when they last changed


def read_order(path: Path) -> PipelineOrder:
    """Schedule of a file.

    Raises
    ------
    SpecError
        With every slot that is not understood, missing or there twice, and where stages wait for each other in a circle.
    """
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    if _READ.get(path, (None,))[0] != changed:
        _READ[path] = (changed, _read(path))
    return _READ[path][1]


def _read(path: Path) -> PipelineOrder:
    document = files.read_yaml(path)
    if document.data.get("kind") != "schedule":
        raise document.error(("kind",), "expected a schedule (kind: schedule)")
    spec = files.validate(ScheduleFile, document)
    problems: list[Problem] = []
    stages = len(spec.order)
    written: list[list[tuple[int, int, int]]] = []
    for stage, text in enumerate(spec.order):
        written.append([])
        for word in text.split():
            match = re.fullmatch(r"([FBW])(\d{1,9})(?:\.(\d{1,9}))?", word)
            if match is None:
                problems.append(document.problem(("order", stage), f"'{word}' is not a slot such as F0, B0, W0 or F0.1"))
                continue
            written[-1].append((LETTERS.index(match[1]), int(match[3] or 0), int(match[2])))
    if not any(written):
        problems.append(document.problem(("order",), "expected the slots of each stage, such as 'F0 B0', got none"))
    # Every microbatch and chunk has a slot of its own, so that none has a number beyond those of all slots.
    most = sum(map(len, written))
    for stage, slots_ in enumerate(written):
        beyond = [slot for slot in slots_ if max(slot[1:]) >= most]
        if beyond:
            kind, chunk, batch = beyond[0]
            word = f"{LETTERS[kind]}{batch}" + (f".{chunk}" if chunk else "")
            problems.append(document.problem(("order", stage), f"{word}: microbatches and chunks are numbered from 0 without gaps"))
    if problems:
        raise SpecError(problems)
    chunks = 1 + max((chunk for slots in written for _, chunk, _ in slots), default=0)
    placed = spec.chunks if spec.chunks is not None else tuple(range(stages)) * chunks
    counted = Counter(placed)
    if sorted(counted) != list(range(stages)) or set(counted.values()) != {chunks}:
        raise document.error(("chunks",), f"expected each of {stages} stages {chunks} times, got {', '.join(map(str, placed))}")
    seen: Counter[int] = Counter()
    chain = []
    for stage in placed:
        chain.append(seen[stage] * stages + stage)
        seen[stage] += 1
    microbatches = 1 + max((batch for slots in written for _, _, batch in slots), default=0)
    slots = tuple(
        np.array([(kind, chunk * stages + stage, batch) for kind, chunk, batch in mine], dtype=np.intp).reshape(-1, 3)
        for stage, mine in enumerate(written)
    )
    order = PipelineOrder(stages=stages, microbatches=microbatches, chains=(tuple(chain),), slots=slots)
    problems = [document.problem(("order", stage), sentence) for stage, sentence in _wrong(order)]
    if not problems and (waiting := stuck(order)):
        words = ", ".join(f"stage {stage} at {_word(order, slot)}" for stage, slot in waiting)
        problems.append(document.problem(("order",), f"stages wait for each other: {words}"))
    if problems:
        raise SpecError(problems)
    return order


def _word(order: PipelineOrder, slot: Sequence[int]) -> str:
    """A slot as files write it."""
    kind, row, batch = (int(part) for part in slot)
    return f"{LETTERS[kind]}{batch}" + (f".{row // order.stages}" if order.rows > order.stages else "")


def _wrong(order: PipelineOrder) -> Iterator[tuple[int, str]]:
    """Stages whose slots are not every pass once, with what is wrong."""
    kinds = (FORWARD, BACKWARD, WEIGHT) if order.split else (FORWARD, BACKWARD)
    for stage, slots in enumerate(order.slots):
        rows = range(stage, order.rows, order.stages)
        wanted = {(kind, row, batch) for kind in kinds for row in rows for batch in range(order.microbatches)}
        found = Counter(map(tuple, slots.tolist()))
        missing = sorted(wanted - set(found))
        twice = sorted(slot for slot, times in found.items() if times > 1)
        for what, some in (("missing", missing), ("there more than once", twice)):
            if some:
                words = ", ".join(_word(order, slot) for slot in some[:6]) + (" ..." if len(some) > 6 else "")
                yield stage, f"{what}: {words} (of {order.microbatches} microbatches, each F and B{' and W' if order.split else ''} once)"


def stuck(order: PipelineOrder) -> list[tuple[int, Slot]]:
    """Slots at which stages wait for ever, none where the order can run."""
    sources, done = order.sources.tolist(), set()
    count = 3 * order.rows * order.microbatches
    position, todo = [0] * order.stages, [ids.tolist() for ids in order.ids]
    moved = True
    while moved:
        moved = False
        for stage, mine in enumerate(todo):
            while position[stage] < len(mine) and (sources[mine[position[stage]]] == count or sources[mine[position[stage]]] in done):
                done.add(mine[position[stage]])
                position[stage] += 1
                moved = True
    return [(stage, tuple(order.slots[stage][at].tolist())) for stage, at in enumerate(position) if at < len(todo[stage])]
