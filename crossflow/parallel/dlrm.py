"""The step of a recommendation model under hierarchical strategies as a program, for all design points at once [1]_; what ranks hold.

Layers become units; a unit has kernels forward and backward, collectives around them, and weights with their gradients. Units
become operations of a program: lookups first, the bottom MLP while pooled embeddings travel, interaction and top MLP, then all of it
backwards, gradients reduced in buckets beside, optimizer last. `crossflow.engine.runs.dlrm` prices and runs it.

References
----------
.. [1] Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. IV.
.. [2] Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
   ISCA 2022: fused lookups, indices sent ahead, pooled embeddings in half precision on the wire.
.. [3] Lin et al., "Towards Universal Performance Modeling for ML Training on Multi-GPU Platforms", TPDS 2024, Sec. IV-A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.base.arrays import Array
from crossflow.base.formats import DTYPE_BYTES
from crossflow.base.stages import stage
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.dlrm_units import Builder, Send, Unit, UnitPhase
from crossflow.parallel.sharding.pieces import Sharding, singles
from crossflow.parallel.strategy.hierarchy import Kind
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.builder import ProgramBuilder
from crossflow.program.kernels import Kernel, Lookup, Number, Pass
from crossflow.program.program import Program
from crossflow.workload.dlrm import DLRM_LAYERS, DlrmJob, DlrmLayer, Linear, Tables

FP32 = 4


# -------------------------------------------------------------------------------------------- lookups


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """Lookups of one device, and what travels for them; arrays of shape (n,).

    Attributes
    ----------
    groups : kernels of tables that are served together: the lookups, and of their gradients the sorts and the updates.
    indices, forward, backward, updates : collectives of the looked-up indices, of pooled rows, of their gradients, and among
        ranks that hold the same tables; of these both ways, of which one is taken (`crossflow.engine.runs.dlrm.dlrm_step`).
    parameters, rows : on the fullest device. [1]
    buffers : indices and what sorts them, pooled rows and their gradients. [B]
    """

    groups: tuple[tuple[tuple[Lookup, ...], tuple[Lookup, ...]], ...]
    indices: tuple[Send, ...]
    forward: tuple[Send, ...]
    backward: tuple[Send, ...]
    updates: tuple[Send, ...]
    parameters: Array
    rows: Array
    buffers: Array


def embedding(job: DlrmJob, plans: Hierarchies) -> Embedding:
    """Tables on the fullest device under each point's strategy.

    Pooled rows of all samples of a group of holders are scattered to the ranks whose samples they are: first summed over the
    ranks that hold parts of the rows, then exchanged among those that hold tables or columns.
    """
    model, mesh = job.model, plans.embedding
    tables, rows, columns = mesh.group("tables").size, mesh.group("table_rows").size, mesh.group("table_columns").size
    copies = mesh.copies
    own, held = plans.batch / plans.devices, model.count / tables
    load = np.where(tables > 1, np.ceil(held) / held * job.uneven, 1.0)
    samples = plans.batch / copies.size
    looks = [
        job.lookup(
            group, samples, tables=group.count / tables, rows=group.rows / rows, width=np.ceil(group.width / columns),
            pooling=group.pooling / rows, load=load, replicas=copies.size,
        )
        for group in model.tables
    ]  # fmt: skip
    pooled = load * samples * model.pooled / (tables * columns)
    summed, exchanged, sent = mesh.group("table_rows"), mesh.group("tables", "table_columns"), mesh.group("tables", "table_rows")
    listed = model.lookups * job.index + model.count * 4.0  # indices, and how many each table has
    looked = samples * listed / (tables * rows)
    parameters = load * model.table_parameters / (tables * rows * columns)
    held_rows = load * sum(group.count * group.rows for group in model.tables) / (tables * rows)
    summing = Send(collective="reduce_scatter", size=pooled, group=summed)
    giving = Send(collective="all_gather", size=pooled, group=summed)
    exchange = Send(collective="all_to_all", size=pooled / rows, group=exchanged)
    return Embedding(
        groups=tuple(((one,), (replace(one, part="sort"), replace(one, part="update"))) for one in looks),
        indices=(
            Send(collective="all_to_all", size=load * own * listed, group=sent),
            Send(collective="all_gather", size=np.where(columns > 1, looked, 0.0), group=mesh.group("table_columns")),
        ),
        forward=(_times_bytes(summing, job.forward), _times_bytes(exchange, job.forward)),
        backward=(_times_bytes(exchange, job.backward), _times_bytes(giving, job.backward)),
        updates=_updates(job, plans, parameters),
        parameters=parameters,
        rows=held_rows,
        buffers=2.0 * looked * load + pooled * (job.forward + job.backward * job.training) + looked * load * 2.0,
    )


def rank_embeddings(job: DlrmJob, plans: Hierarchies, sharding: Sharding) -> tuple[Embedding, ...]:
    """Look-ups of every rank that holds the tables, or parts of them, that a sharding gives it.

    One kernel serves all tables of a rank. Pooled rows of all samples go to the ranks whose samples they are, those of parts by rows as
    sums of what each has. An all-to-all takes as long as the most that a rank sends or receives [3]_.
    """
    tables, ranks, group = singles(job.model.tables), sharding.ranks, plans.embedding.group("tables")
    parts = [[piece.of(tables) for piece in sharding.of_rank(rank)] for rank in range(ranks)]
    samples = plans.batch
    pooled = _fullest([sum(part.width for part in some) for some in parts]) * samples
    listed = [sum(part.pooling for part in some) * job.index + len(some) * 4.0 for some in parts]
    exchange = Send(collective="all_to_all", size=pooled, group=group)
    indices = Send(collective="all_to_all", size=_fullest(listed) * samples, group=group)
    forward, backward = _times_bytes(exchange, job.forward), _times_bytes(exchange, job.backward)
    return tuple(
        Embedding(
            groups=_together(job, some, samples), indices=(indices,), forward=(forward,), backward=(backward,), updates=(),
            parameters=np.full(len(plans), float(sum(part.parameters for part in some))),
            rows=np.full(len(plans), float(sum(part.rows for part in some))),
            buffers=samples * (4.0 * mine + sum(part.width for part in some) * (job.forward + job.backward * job.training)),
        )
        for some, mine in zip(parts, listed, strict=True)
    )  # fmt: skip


def _fullest(amounts: Sequence[float]) -> float:
    """What the rank that sends or receives most has, of amounts that ranks gather for the samples of all, each its own share of them."""
    ranks, whole = len(amounts), sum(amounts)
    if ranks == 1:
        return whole
    received = max(whole - own for own in amounts) / (ranks - 1)  # as a buffer of which all but the rank's own part travels
    return max(*amounts, received)


def _together(job: DlrmJob, parts: Sequence[Tables], samples: Array) -> tuple[tuple[tuple[Lookup, ...], tuple[Lookup, ...]], ...]:
    """Kernels of tables that one launch serves, those alike as one."""
    alike = Counter(parts)
    looks = [job.lookup(table, samples, tables=float(count), batched=i > 0) for i, (table, count) in enumerate(alike.items())]
    backward = [replace(one, part=part) for part in ("sort", "update") for one in looks]
    return ((tuple(looks), tuple(backward)),) if looks else ()


def _times_bytes(send: Send, element: float) -> Send:
    """A collective of elements as one of bytes."""
    return replace(send, size=send.size * element)


def _updates(job: DlrmJob, plans: Hierarchies, parameters: Array) -> tuple[Send, Send]:
    """Gradients among ranks that hold the same tables, in either way: of whole tables, or of the rows that each rank looked up."""
    copies, own = plans.embedding.copies, plans.batch / plans.devices
    share = own * sum(group.lookups * group.distinct_of(own) * (job.index + group.width * FP32) for group in job.model.tables)
    return (
        Send(collective="all_reduce", size=parameters * FP32, group=copies),
        Send(collective="all_gather", size=share * copies.size, group=copies),
    )


# -------------------------------------------------------------------------------------------- the program

After = tuple[int, ...]  # operations to wait for


@dataclass(frozen=True, kw_only=True, eq=False)
class DlrmStep:
    """A step as a program.

    Attributes
    ----------
    program : its operations; layers are `DLRM_LAYERS`.
    hooks : operations before which the host runs a layer's hooks.
    plans : strategies of all points.
    parameters : of the whole model. [1]
    units : layers of the dense part.
    tables : look-ups of every class of ranks, one where all have the mean.
    """

    program: Program
    hooks: frozenset[int]
    plans: Hierarchies
    parameters: Number
    units: Sequence[Unit]
    tables: Sequence[Embedding]


RANKS = "ranks"  # axis along which ranks hold different tables


@stage("program")
def dlrm_program(job: DlrmJob, plans: Hierarchies, stack: SoftwareStack, tables: Sequence[Embedding]) -> DlrmStep:
    """One step of every design point as a program; each class of ranks with tables of its own meets the others to exchange."""
    units, several = Builder(job=job, plans=plans, stack=stack).build().units, len(tables) > 1
    axes: dict[str, Any] = {"axes": {RANKS: len(tables)}, "stages": RANKS} if several else {}
    program, hooks = ProgramBuilder(name=job.model.name, dtype=job.dtype, shared=several, **axes), set[int]()
    for rank, mine in enumerate(tables):
        writer = _StepWriter(job, plans, stack, units, mine, program, rank if several else None)
        writer.write()
        hooks |= writer.hooks
    return DlrmStep(
        program=program.build(training=job.training), hooks=frozenset(hooks), plans=plans, parameters=job.model.parameters, units=units,
        tables=tables,
    )  # fmt: skip


class _StepWriter:
    """Writes the operations of a step of one class of ranks in the order of the program; `rank` is None where there is no other."""

    def __init__(
        self, job: DlrmJob, plans: Hierarchies, stack: SoftwareStack, units: Sequence[Unit], tables: Embedding, program: ProgramBuilder,
        rank: int | None,
    ) -> None:  # fmt: skip
        self.job, self.plans, self.stack, self.units, self.embedding = job, plans, stack, units, tables
        self.program, self.rank, self.alone, self.sent = program, rank or 0, rank is None, 0
        self.hooks: set[int] = set()
        self.gathers: dict[int, After] = {}
        self.pending: dict[Kind, tuple[Array, After]] = {kind: (np.zeros(len(plans)), ()) for kind in ("dense", "transformer", "experts")}
        self.reduced: After = ()

    def write(self) -> None:
        """The whole step."""
        end = self._forward()
        if self.job.training:
            self._backward(end)

    def _send(self, sends: Iterable[Send], layer: DlrmLayer, after: After) -> After:
        """Collectives one after the other; those that no point sends are left out."""
        for send in sends:
            if ((send.size > 0) & (send.group.size > 1)).any():
                self.sent += 1  # all classes send the same, in the same order
                meets = "" if self.alone else f"{layer} {send.collective} {self.sent}"
                after = (self.program.send(send.collective, send.size, send.group, layer=layer, after=after, rank=self.rank, meets=meets),)
        return after

    def _compute(self, unit: Unit, phases: Sequence[UnitPhase], after: After) -> After:
        """Kernels of a unit in some phases."""
        kernels = [kernel for phase in phases for kernel in unit.kernels.get(phase, ())]
        if not kernels:
            return after
        name = f"{unit.name} {'forward' if 'forward' in phases else 'weight gradient' if 'weight' in phases else 'backward'}"
        phase = "forward" if "forward" in phases else "backward"
        place = self.program.compute(name, *kernels, layer=unit.layer, phase=phase, after=after, rank=self.rank)
        self.hooks.add(place)
        return (place,)

    def _moving(self, what: str, layer: DlrmLayer, kernels: Iterable[Kernel], after: After) -> After:
        """Kernels that memory binds: lookups, optimizer."""
        return (self.program.compute(f"{layer} {what}", *kernels, layer=layer, phase=what, after=after, rank=self.rank),)

    def _gather(self, unit: int, after: After) -> None:
        """Weights that are shared out arrive, once a pass."""
        if 0 <= unit < len(self.units) and unit not in self.gathers:
            found = self.units[unit]
            shards = self.plans.groups(found.kind).shards
            size = np.where(shards.size > 1, found.parameters * self.stack.weight_size(self.job.element), 0.0)
            self.gathers[unit] = self._send([Send(collective="all_gather", size=size, group=shards)], found.layer, after)

    def _pass(self, order: Sequence[int], at: int, before: After) -> After:
        """A unit's weights are there: gathered while the unit before it computed, or only now."""
        self._gather(order[at], before)
        if self.stack.overlap.gather and at + 1 < len(order):
            self._gather(order[at + 1], before)
        return self.gathers[order[at]]

    def _forward(self) -> After:
        found, order = self.embedding, range(len(self.units))
        if self.units and self.stack.overlap.gather:
            self._gather(0, ())
        indices = self._send(found.indices, "embedding", ())
        looked = () if self.job.ahead else indices  # of the next batch: nothing in this step waits for them but its end
        for lookups, _ in found.groups:
            looked = self._moving("lookups", "embedding", lookups, looked)
        pooled, last = self._send(found.forward, "embedding", looked), After()
        for i in order:
            unit = self.units[i]
            before = (*last, *pooled) if unit.name == "interaction" else last
            weights = self._pass(order, i, before)
            arrived = self._send(unit.before_forward, unit.layer, before)
            done = self._compute(unit, ["forward"], (*arrived, *weights))
            last = self._send(unit.after_forward, unit.layer, done)
        return last

    def _backward(self, last: After) -> None:
        job, self.gathers = self.job, {}
        order = [i for i, unit in reversed(list(enumerate(self.units))) if returns(job, unit)]
        exchanged, through_weights = After(), [i for i in order if self._needs_input(i)]
        for i in order:
            unit, back = self.units[i], i in through_weights
            weights = self._pass(through_weights, through_weights.index(i), last) if back else last
            arrived = self._send(unit.before_backward, unit.layer, last)
            through = self._compute(unit, ["activation", "input"] if back else ["activation"], (*arrived, *weights))
            if unit.name == "interaction" and job.trains("embedding"):
                exchanged = self._send(self.embedding.backward, "embedding", through)
            last = self._send(unit.after_input, unit.layer, through) if back else through
            if job.trains(unit.layer):
                waits = last if self.stack.overlap.tensor == "none" else through
                self._reduce(i, self._compute(unit, ["weight"], waits), final=not self._more(i))
        if job.trains("embedding"):
            last = self._update_tables(exchanged or last)
        self._optimizer(last)

    def _needs_input(self, i: int) -> bool:
        """Whether anything before a unit trains, so that its input needs a gradient."""
        layer = self.units[i].layer
        first = i == 0 or self.units[i - 1].layer != layer
        return self.job.passes_back(layer) or (self.job.trains(layer) and not first)

    def _more(self, i: int) -> bool:
        """Whether a unit of the same layer type has its gradients after this one."""
        return any(unit.kind == self.units[i].kind and self.job.trains(unit.layer) and unit.parameters.any() for unit in self.units[:i])

    def _reduce(self, i: int, ready: After, *, final: bool) -> None:
        """Gradients of a unit: scattered over shards at once, the shards and what is not shared reduced over copies in buckets."""
        unit, job = self.units[i], self.job
        mesh = self.plans.groups(unit.kind)
        size = unit.parameters * self.stack.gradient_size(job.element)
        ready = self._send([Send(collective="reduce_scatter", size=size, group=mesh.shards)], unit.layer, ready)
        filled, before = self.pending[unit.kind]
        filled, ready = filled + size / mesh.shards.size, (*before, *ready)
        if not self.stack.overlap.data and not final:
            self.pending[unit.kind] = (filled, ready)
            return
        full = (filled >= job.bucket) | final
        sent = self._send([Send(collective="all_reduce", size=np.where(full, filled, 0.0), group=mesh.copies)], unit.layer, ready)
        self.reduced += sent
        self.pending[unit.kind] = (np.where(full, 0.0, filled), ready)

    def _update_tables(self, ready: After) -> After:
        """Gradients of pooled rows have arrived: each looked-up row is updated."""
        last = self._send(self.embedding.updates, "embedding", ready)
        for _, kernels in self.embedding.groups:
            last = self._moving("update", "embedding", kernels, last)
        return last

    def _optimizer(self, last: After) -> None:
        """Step of the dense part: gradient r1, weight r1 w1, each state r1 w1, in fp32."""
        job = self.job
        for layer in DLRM_LAYERS[1:]:
            if job.trains(layer):
                traffic = owned(self.units, self.plans, layer) * FP32 * (3.0 + 2.0 * job.optimizer_states)
                once = 1.0 if self.stack.fuses("optimizer", DTYPE_BYTES[job.dtype]) else 1.0 + job.optimizer_states
                last = self._moving("optimizer", layer, [Pass(moved=once * traffic, launches=once)], (*last, *self.reduced))


def returns(job: DlrmJob, unit: Unit) -> bool:
    """Whether a backward pass reaches a unit."""
    return job.trains(unit.layer) or job.passes_back(unit.layer)


def owned(units: Sequence[Unit], plans: Hierarchies, layer: DlrmLayer) -> Array:
    """Parameters of a layer that one device keeps, shape (n,). [1]"""
    found = (unit.parameters / plans.groups(unit.kind).shards.size for unit in units if unit.layer == layer)
    return np.asarray(sum(found, np.zeros(len(plans))))


# -------------------------------------------------------------------------------------------- needs and holdings


def model_flops(job: DlrmJob, plans: Hierarchies) -> Array:
    """Operations that the model needs: forward, and as many again for each gradient that is wanted. [flop]"""
    model = job.model
    active = model.routing.active if model.routing else 1
    scores = model.forward_flops() - model.matrix_flops
    stacks: tuple[tuple[DlrmLayer, float, Sequence[Linear]], ...] = (("bottom", 1.0, model.bottom), ("top", active, model.top))
    total = model.forward_flops()
    for layer, copies, linears in stacks:
        products = [2.0 * copies * linear.weights for linear in linears]
        inputs = sum(products) if job.passes_back(layer) else sum(products[1:]) * job.trains(layer)
        total += inputs + sum(products) * job.trains(layer)
    if job.passes_back("interaction") or job.trains("interaction"):
        total += model.interaction_flops * (1.0 + job.trains("interaction")) + 2.0 * scores
    return np.asarray(total * plans.batch)


@stage("memory")
def dlrm_memory(job: DlrmJob, step: DlrmStep, stack: SoftwareStack, rank: int = 0) -> dict[str, Array]:
    """Bytes of the fullest device, or of a class of ranks, by kind, each of shape (n,). [B]"""
    plans, units, tables, none = step.plans, step.units, step.tables[rank], np.zeros(len(step.plans))
    weight, gradient = stack.weight_size(job.element), stack.gradient_size(job.element)
    held = {layer: owned(units, plans, layer) for layer in DLRM_LAYERS[1:]}
    trained = sum((held[layer] for layer in held if job.trains(layer)), none)
    states = {"sgd": np.zeros(1), "rowwise_adagrad": tables.rows, "adagrad": tables.parameters}[job.table_optimizer]
    gathered = [np.where(plans.groups(unit.kind).shards.size > 1, unit.parameters * weight, 0.0) for unit in units] or [none]
    layers = 2.0 if stack.overlap.gather else 1.0
    live = np.max([unit.kept for unit in units], axis=0) if units else none
    memory = {
        "weights": sum(held.values(), none) * weight + tables.parameters * job.table,
        "gradients": trained * gradient + sum((send.size for send in tables.updates[:1]), none) * job.trains("embedding"),
        "optimizer": trained * FP32 * job.optimizer_states + FP32 * states * job.trains("embedding"),
        "activations": np.asarray(sum((unit.kept for unit in units if returns(job, unit)), none)) if job.training else live,
        "buffers": tables.buffers + layers * np.max(gathered, axis=0),
    }
    framework = float(stack.memory.context[0]) + float(stack.memory.fragmentation[0]) * sum(memory.values(), none)
    return {**memory, "framework": framework}
