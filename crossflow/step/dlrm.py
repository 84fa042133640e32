"""One step of a recommendation model under hierarchical strategies, for all design points at once [1]_.

Layers become units; a unit has kernels forward and backward, collectives around them, and weights with their gradients. Units
in program order become events on in-order streams (`crossflow.timeline.streams`): lookups first, the bottom MLP while pooled
embeddings travel, interaction and top MLP, then all of it backwards, gradients reduced in buckets beside, optimizer last.

References
----------
.. [1] Hsia et al., "MAD-Max Beyond Single-Node", ISCA 2024, Sec. IV.
.. [2] Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation Models",
   ISCA 2022: fused lookups, indices sent ahead, pooled embeddings in half precision on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossflow.arrays import Array, divide, wide
from crossflow.cost.lookups import LookupCosts, Shard, Widths, lookup_costs
from crossflow.cost.parts import Wires, part_times, sent_bytes
from crossflow.cost.roofline import KernelCosts, pass_costs
from crossflow.formats import DTYPE_BYTES
from crossflow.program.collectives import Collective
from crossflow.step.outcome import Machine, Outcome
from crossflow.step.units import Builder, Send
from crossflow.strategy.hierarchy import KINDS
from crossflow.strategy.levels import Hierarchies
from crossflow.timeline.streams import Event, Logged, Streams
from crossflow.workload.dlrm import DLRM_LAYERS, DlrmJob, DlrmLayer, Linear
from crossflow.workload.spec import OPTIMIZER_STATES, DlrmSpec

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Sent = tuple[DlrmLayer, Collective]  # collectives are told apart by the layer type that they serve
# Phases of a unit: forward; backward through its activation, where anything follows; input's and weight's gradient.
FORWARD, ACTIVATION, INPUT, WEIGHT = range(4)
FP32 = 4
PRICED = ("launch", "flops", "energy", "traffic")  # figures of kernels that a step adds up


def dlrm_job(spec: DlrmSpec) -> DlrmJob:
    """What a step of a workload section computes."""
    exchange = spec.exchange
    return DlrmJob(
        model=spec.dlrm(),
        dtype=spec.dtype,
        training=spec.task == "training",
        optimizer_states=OPTIMIZER_STATES[spec.optimizer],
        table_optimizer=spec.table_optimizer,
        table=DTYPE_BYTES[spec.table_dtype],
        forward=DTYPE_BYTES[exchange.forward],
        backward=DTYPE_BYTES[exchange.backward],
        index=DTYPE_BYTES["int32"] * (2 if exchange.indices == "int64" else 1),
        ahead=exchange.ahead,
        bucket=float(exchange.bucket[0]),
        uneven=spec.uneven,
        frozen=frozenset(spec.frozen),
    )


# -------------------------------------------------------------------------------------------- lookups


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """Lookups of one device, and what travels for them; arrays of shape (n,).

    Attributes
    ----------
    costs : of every group of tables.
    indices, forward, backward, updates : collectives of the looked-up indices, of pooled rows, of their gradients, and among
        ranks that hold the same tables.
    parameters, rows : on the fullest device. [1]
    buffers : indices and what sorts them, pooled rows and their gradients. [B]
    """

    costs: tuple[LookupCosts, ...]
    indices: tuple[Send, ...]
    forward: tuple[Send, ...]
    backward: tuple[Send, ...]
    updates: tuple[Send, ...]
    parameters: Array
    rows: Array
    buffers: Array


def embedding(job: DlrmJob, plans: Hierarchies, machine: Machine, wires: Wires) -> Embedding:
    """Tables on the fullest device under each point's strategy.

    Pooled rows of all samples of a group of holders are scattered to the ranks whose samples they are: first summed over the
    ranks that hold parts of the rows, then exchanged among those that hold tables or columns.
    """
    model, mesh = job.model, plans.embedding
    tables, rows, columns = mesh.group("tables").size, mesh.group("table_rows").size, mesh.group("table_columns").size
    copies = mesh.copies
    own, held = plans.batch / plans.devices, model.count / tables
    load = np.where(tables > 1, np.ceil(held) / held * job.uneven, 1.0)
    shard = Shard(samples=plans.batch / copies.size, tables=tables, rows=rows, columns=columns, load=load, replicas=copies.size)
    widths = Widths(table=job.table, output=job.forward, gradient=job.backward, index=job.index)
    costs = tuple(lookup_costs(group, shard, widths, machine.architecture, states=job.table_optimizer) for group in model.tables)
    pooled = load * shard.samples * model.pooled / (tables * columns)
    summed, exchanged, sent = mesh.group("table_rows"), mesh.group("tables", "table_columns"), mesh.group("tables", "table_rows")
    listed = model.lookups * job.index + model.count * 4.0  # indices, and how many each table has
    looked = shard.samples * listed / (tables * rows)
    parameters = load * model.table_parameters / (tables * rows * columns)
    held_rows = load * sum(group.count * group.rows for group in model.tables) / (tables * rows)
    dense, sparse = _updates(job, plans, parameters, wires)
    summing = Send(collective="reduce_scatter", size=pooled, group=summed)
    giving = Send(collective="all_gather", size=pooled, group=summed)
    exchange = Send(collective="all_to_all", size=pooled / rows, group=exchanged)
    return Embedding(
        costs=costs,
        indices=(
            Send(collective="all_to_all", size=load * own * listed, group=sent),
            Send(collective="all_gather", size=np.where(columns > 1, looked, 0.0), group=mesh.group("table_columns")),
        ),
        forward=(_times_bytes(summing, job.forward), _times_bytes(exchange, job.forward)),
        backward=(_times_bytes(exchange, job.backward), _times_bytes(giving, job.backward)),
        updates=(dense, sparse),
        parameters=parameters,
        rows=held_rows,
        buffers=2.0 * looked * load + pooled * (job.forward + job.backward * job.training) + looked * load * 2.0,
    )


def _times_bytes(send: Send, element: float) -> Send:
    """A collective of elements as one of bytes."""
    return replace(send, size=send.size * element)


def _updates(job: DlrmJob, plans: Hierarchies, parameters: Array, wires: Wires) -> tuple[Send, Send]:
    """Gradients among ranks that hold the same tables: of whole tables, or of the rows that each rank looked up, if that is faster."""
    mesh, own = plans.embedding, plans.batch / plans.devices
    share = own * sum(group.lookups * group.distinct * (job.index + group.width * FP32) for group in job.model.tables)
    dense, sparse = parameters * FP32, share * mesh.copies.size
    whole = wires.time("all_reduce", dense, mesh.copies) < wires.time("all_gather", sparse, mesh.copies)
    return (
        Send(collective="all_reduce", size=np.where(whole, dense, 0.0), group=mesh.copies),
        Send(collective="all_gather", size=np.where(whole, 0.0, sparse), group=mesh.copies),
    )


# -------------------------------------------------------------------------------------------- the step


def dlrm_step(job: DlrmJob, plans: Hierarchies, machine: Machine) -> Outcome:
    """One step of every design point."""
    return _Step(job, plans, machine).run()


def dlrm_log(job: DlrmJob, plans: Hierarchies, machine: Machine) -> tuple[Outcome, list[Logged]]:
    """One step of every design point, and its events in the order of the program."""
    step = _Step(job, plans, machine)
    return step.run(), step.streams.log


class _Step:
    """A step under construction: events so far, and what they add up to."""

    def __init__(self, job: DlrmJob, plans: Hierarchies, machine: Machine) -> None:
        self.job, self.plans, self.machine, self.n = job, plans, machine, len(plans)
        self.wires = machine.wires
        builder = Builder(job=job, plans=plans, stack=machine.stack).build()
        self.units = builder.units
        self.times = part_times(builder.kernels(), job, machine.architecture, machine.stack, least=machine.least)
        self.embedding = embedding(job, plans, machine, self.wires)
        self.sent: dict[Sent, Array] = {(layer, collective): np.zeros(self.n) for layer in DLRM_LAYERS for collective in COLLECTIVES}
        self.streams = Streams(self.n, [".".join(pair) for pair in self.sent])
        self.computed = {layer: np.zeros(self.n) for layer in DLRM_LAYERS}
        self.sums = {name: np.zeros(self.n) for name in ("launch", "flops", "energy", "traffic", "inside", "outside")}
        self.bound = np.zeros((len(self.times.resources), self.n))  # time in kernels that each resource binds
        self.gathers: dict[int, Event] = {}
        self.pending = {kind: (np.zeros(self.n), self.streams.start) for kind in ("dense", "transformer", "experts")}
        self.reduced: list[Event] = []

    def run(self) -> Outcome:
        """Events in program order."""
        end = self._forward()
        if self.job.training:
            end = self._backward(end)
        total = self.streams.finish((end, *self.reduced)) + float(self.machine.stack.host.step[0])
        return self._outcome(total)

    # ---------------------------------------------------------------------------------- events

    def _send(self, sends: Iterable[Send], layer: DlrmLayer, after: Sequence[Event]) -> Event:
        """Collectives one after the other."""
        last = tuple(after)
        for send in sends:
            time = self.wires.time(send.collective, send.size, send.group)
            crosses = send.group.size > send.group.per_node
            self.sent[layer, send.collective] += time
            for place, amount in zip(("inside", "outside"), sent_bytes(send.collective, send.size, send.group), strict=True):
                self.sums[place] += amount
            host = float(self.machine.stack.host.kernel[0])
            outside, cause = np.broadcast_to(crosses, (self.n,)), f"{layer}.{send.collective}"
            last = (self.streams.send(send.collective, time, outside, last, host, cause),)
        return self.streams.latest(last)

    def _compute(self, unit: int, phases: Sequence[int], after: Sequence[Event]) -> Event:
        """Kernels of a unit in some phases."""
        parts = {name: getattr(self.times, name)[unit, list(phases)].sum(axis=0) for name in ("compute", "kernels", *PRICED)}
        self._add(self.units[unit].layer, self.times.bound[:, unit, list(phases)].sum(axis=1), parts)
        host = self.machine.stack.host
        name = f"{self.units[unit].name} {'forward' if FORWARD in phases else 'weight gradient' if WEIGHT in phases else 'backward'}"
        return self.streams.compute(name, parts["compute"], after, parts["kernels"] * float(host.kernel[0]) + float(host.layer[0]))

    def _moving(self, what: str, layer: DlrmLayer, costs: KernelCosts, after: Sequence[Event]) -> Event:
        """Kernels that memory binds: lookups, optimizer."""
        figures = {"launch": costs.launch, "flops": costs.flops, "energy": costs.energy, "traffic": costs.traffic[-1]}
        parts = {name: wide(values.sum(axis=0), self.n) for name, values in figures.items()}
        self._add(layer, costs.bound_times.sum(axis=1), parts)
        host = wide(costs.launches.sum(axis=0), self.n) * float(self.machine.stack.host.kernel[0])
        return self.streams.compute(f"{layer} {what}", wide(costs.time.sum(axis=0), self.n), after, host)

    def _add(self, layer: DlrmLayer, bound: Array, parts: Mapping[str, Array]) -> None:
        """Count kernels of a layer."""
        self.bound += bound
        self.computed[layer] += bound.sum(axis=0) + parts["launch"]
        for name in PRICED:
            self.sums[name] += parts[name]

    def _gather(self, unit: int, after: Sequence[Event]) -> None:
        """Weights that are shared out arrive, once a pass."""
        if 0 <= unit < len(self.units) and unit not in self.gathers:
            found = self.units[unit]
            shards = self.plans.groups(found.kind).shards
            size = np.where(shards.size > 1, found.parameters * self.machine.stack.weight_size(self.job.element), 0.0)
            self.gathers[unit] = self._send([Send(collective="all_gather", size=size, group=shards)], found.layer, after)

    def _pass(self, order: Sequence[int], at: int, before: Sequence[Event]) -> Event:
        """A unit's weights are there: gathered while the unit before it computed, or only now."""
        if self.machine.stack.overlap.gather:
            self._gather(order[at], before)
            if at + 1 < len(order):
                self._gather(order[at + 1], before)
        else:
            self._gather(order[at], before)
        return self.gathers[order[at]]

    def _forward(self) -> Event:
        found, order = self.embedding, range(len(self.units))
        if self.units and self.machine.stack.overlap.gather:
            self._gather(0, ())
        indices = self._send(found.indices, "embedding", ())
        if self.job.ahead:
            self.reduced.append(indices)  # of the next batch: nothing in this step waits for them but its end
        looked = () if self.job.ahead else (indices,)
        for costs in found.costs:
            looked = (self._moving("lookups", "embedding", costs.forward, looked),)
        pooled = self._send(found.forward, "embedding", looked)
        last = self.streams.start
        for i in order:
            unit = self.units[i]
            before = (last, pooled) if unit.name == "interaction" else (last,)
            weights = self._pass(order, i, before)
            arrived = self._send(unit.before_forward, unit.layer, before)
            done = self._compute(i, [FORWARD], (arrived, weights))
            last = self._send(unit.after_forward, unit.layer, (done,))
        return last

    def _backward(self, last: Event) -> Event:
        job, self.gathers = self.job, {}
        order = [i for i in reversed(range(len(self.units))) if self._returns(i)]
        exchanged = None
        through_weights = [i for i in order if self._needs_input(i)]
        for i in order:
            unit, back = self.units[i], i in through_weights
            weights = self._pass(through_weights, through_weights.index(i), (last,)) if back else last
            arrived = self._send(unit.before_backward, unit.layer, (last,))
            through = self._compute(i, [ACTIVATION, INPUT] if back else [ACTIVATION], (arrived, weights))
            if unit.name == "interaction" and job.trains("embedding"):
                exchanged = self._send(self.embedding.backward, "embedding", (through,))
            last = self._send(unit.after_input, unit.layer, (through,)) if back else through
            if job.trains(unit.layer):
                waits = last if self.machine.stack.overlap.tensor == "none" else through
                self._reduce(i, self._compute(i, [WEIGHT], (waits,)), final=not self._more(i))
        if job.trains("embedding"):
            last = self._update_tables(exchanged or last)
        return self._optimizer(last)

    def _returns(self, i: int) -> bool:
        """Whether a backward pass reaches a unit."""
        layer = self.units[i].layer
        return self.job.trains(layer) or self.job.passes_back(layer)

    def _needs_input(self, i: int) -> bool:
        """Whether anything before a unit trains, so that its input needs a gradient."""
        layer = self.units[i].layer
        first = i == 0 or self.units[i - 1].layer != layer
        return self.job.passes_back(layer) or (self.job.trains(layer) and not first)

    def _more(self, i: int) -> bool:
        """Whether a unit of the same layer type has its gradients after this one."""
        return any(unit.kind == self.units[i].kind and self.job.trains(unit.layer) and unit.parameters.any() for unit in self.units[:i])

    def _reduce(self, i: int, ready: Event, *, final: bool) -> None:
        """Gradients of a unit: scattered over shards at once, the shards and what is not shared reduced over copies in buckets."""
        unit, job = self.units[i], self.job
        mesh = self.plans.groups(unit.kind)
        size = unit.parameters * self.machine.stack.gradient_size(job.element)
        scattered = np.where(mesh.shards.size > 1, size, 0.0)
        ready = self._send([Send(collective="reduce_scatter", size=scattered, group=mesh.shards)], unit.layer, (ready,))
        filled, before = self.pending[unit.kind]
        filled, ready = filled + size / mesh.shards.size, self.streams.latest((before, ready))
        if not self.machine.stack.overlap.data and not final:
            self.pending[unit.kind] = (filled, ready)
            return
        full = (filled >= job.bucket) | final
        sent = self._send([Send(collective="all_reduce", size=np.where(full, filled, 0.0), group=mesh.copies)], unit.layer, (ready,))
        self.reduced.append(sent)
        self.pending[unit.kind] = (np.where(full, 0.0, filled), ready)

    def _update_tables(self, ready: Event) -> Event:
        """Gradients of pooled rows have arrived: each looked-up row is updated."""
        last = (self._send(self.embedding.updates, "embedding", (ready,)),)
        for costs in self.embedding.costs:
            last = (self._moving("update", "embedding", costs.backward, last),)
        return last[0]

    def _optimizer(self, last: Event) -> Event:
        """Step of the dense part: gradient r1, weight r1 w1, each state r1 w1, in fp32."""
        job, stack = self.job, self.machine.stack
        for layer in DLRM_LAYERS[1:]:
            if not job.trains(layer):
                continue
            owned = self._owned(layer)
            traffic = owned * FP32 * (3.0 + 2.0 * job.optimizer_states)
            once = 1.0 if stack.fuses("optimizer", DTYPE_BYTES[job.dtype]) else 1.0 + job.optimizer_states
            moved, none, launches = (once * traffic)[None], np.zeros((1, self.n)), np.full((1, 1), once)
            costs = pass_costs(moved, none, launches, self.machine.architecture, job.dtype, least=self.machine.least)
            last = self._moving("optimizer", layer, costs, (last, *self.reduced))
        return last

    def _owned(self, layer: str) -> Array:
        """Parameters of a layer that one device keeps. [1]"""
        owned = (unit.parameters / self.plans.groups(unit.kind).shards.size for unit in self.units if unit.layer == layer)
        return np.asarray(sum(owned, np.zeros(self.n)))

    # ---------------------------------------------------------------------------------- results

    def _outcome(self, total: Array) -> Outcome:
        waits = dict(zip(self.streams.names, self.streams.waits, strict=True))
        host = waits["host"] + waits["nothing"] + float(self.machine.stack.host.step[0])
        exposed = self._exposed(waits)
        network = np.asarray(sum((waits[".".join(pair)] for pair in self.sent), np.zeros(self.n)))
        used = [name for name in COLLECTIVES if any(self.sent[layer, name].any() for layer in DLRM_LAYERS)]
        sums, devices, memory = self.sums, self.plans.devices, self.bound[1:].sum(axis=0)
        by_layer = {}
        for layer in DLRM_LAYERS:
            by_layer[f"{layer}.compute"] = self.computed[layer]
            by_layer |= {
                f"{layer}.{what}": _summed(times, layer=layer) for what, times in (("communication", self.sent), ("exposed", exposed))
            }
        return Outcome(
            total=total,
            breakdown={
                "compute": self.bound[0], "memory_bound_compute": memory, "exposed_communication": network,
                "bubble": np.zeros(self.n), "other": sums["launch"] + host,
            },
            communication={name: _summed(self.sent, collective=name) for name in used},
            exposed={name: _summed(exposed, collective=name) for name in used},
            memory=self._memory(),
            flops=sums["flops"] * devices,
            energy=sums["energy"] * devices,
            model_flops=self._model_flops(),
            traffic=sums["traffic"] * devices,
            sent=(sums["inside"], sums["outside"]),
            bound={
                **dict(zip(self.times.resources, self.bound, strict=True)), "launch": sums["launch"], "host": host, "network": network,
                "bubble": np.zeros(self.n),
            },
            by_layer={name: values for name, values in by_layer.items() if values.any()},
        )  # fmt: skip

    def _exposed(self, waits: Mapping[str, Array]) -> dict[Sent, Array]:
        """Waits for collectives of each layer type.

        Each is for the one that ends it, as far as its own time goes; the rest is for those that it queued behind.
        """
        ended = {pair: waits[".".join(pair)] for pair in self.sent}
        own = {pair: np.minimum(ended[pair], sent) for pair, sent in self.sent.items()}
        rest = np.asarray(sum((ended[pair] - own[pair] for pair in own), np.zeros(self.n)))
        room = {pair: sent - own[pair] for pair, sent in self.sent.items()}
        share = divide(rest, np.asarray(sum(room.values(), np.zeros(self.n))))
        return {pair: own[pair] + room[pair] * np.where(np.isfinite(share), share, 0.0) for pair in own}

    def _model_flops(self) -> Array:
        """Operations that the model needs: forward, and as many again for each gradient that is wanted. [flop]"""
        model, job = self.job.model, self.job
        active = model.routing.active if model.routing else 1
        scores = model.forward_flops() - model.matrix_flops
        stacks: tuple[tuple[DlrmLayer, float, Sequence[Linear]], ...] = (("bottom", 1.0, model.bottom), ("top", active, model.top))
        total = model.forward_flops()
        for layer, copies, linears in stacks:
            products = [2.0 * copies * linear.weights for linear in linears]
            inputs = sum(products) if job.passes_back(layer) else sum(products[1:]) * job.trains(layer)
            total += inputs + sum(products) * job.trains(layer)
        products_of_encoder = model.encoder.matrix_flops if model.encoder else 0.0
        if job.passes_back("interaction") or job.trains("interaction"):
            total += products_of_encoder + 2.0 * scores + products_of_encoder * job.trains("interaction")
        return np.asarray(total * self.plans.batch)

    def _memory(self) -> dict[str, Array]:
        """Bytes of the fullest device by kind. [B]"""
        job, found, stack = self.job, self.embedding, self.machine.stack
        weight, gradient = stack.weight_size(job.element), stack.gradient_size(job.element)
        owned = {layer: self._owned(layer) for layer in DLRM_LAYERS[1:]}
        trained = sum((owned[layer] for layer in owned if job.trains(layer)), np.zeros(self.n))
        states = {"sgd": np.zeros(1), "rowwise_adagrad": found.rows, "adagrad": found.parameters}[job.table_optimizer]
        shared = {kind: self.plans.groups(kind).shards.size > 1 for kind in KINDS}
        gathered = [np.where(shared[unit.kind], unit.parameters * weight, 0.0) for unit in self.units] or [np.zeros(self.n)]
        layers = 2.0 if stack.overlap.gather else 1.0
        kept = [u.kept for i, u in enumerate(self.units) if self._returns(i)]
        live = np.max([u.kept for u in self.units], axis=0) if self.units else np.zeros(self.n)
        memory = {
            "weights": sum(owned.values(), np.zeros(self.n)) * weight + found.parameters * job.table,
            "gradients": trained * gradient + found.updates[0].size * job.trains("embedding"),
            "optimizer": trained * FP32 * job.optimizer_states + FP32 * states * job.trains("embedding"),
            "activations": np.asarray(sum(kept, np.zeros(self.n))) if job.training else live,
            "buffers": found.buffers + layers * np.max(gathered, axis=0),
        }
        habits = stack.memory
        framework = float(habits.context[0]) + float(habits.fragmentation[0]) * sum(memory.values(), np.zeros(self.n))
        return {**memory, "framework": framework}


def _summed(times: Mapping[Sent, Array], *, layer: str | None = None, collective: str | None = None) -> Array:
    """Times of one layer type's collectives, or of one collective over all layer types. [s]"""
    return np.asarray(sum(time for (of, name), time in times.items() if layer in (None, of) and collective in (None, name)))
