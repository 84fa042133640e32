"""The step of a recommendation model on in-order streams (`crossflow.engine.streams`), priced and timed for all design points at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from crossflow.base.arrays import Array, divide, wide
from crossflow.base.stages import stage
from crossflow.cost.machine import Machine
from crossflow.cost.network import MessageCosts, Wires
from crossflow.cost.price import Prices, host_calls, kernel_prices, stacked
from crossflow.cost.roofline import resources
from crossflow.engine.runs.outcome import Outcome
from crossflow.engine.streams import run
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.dlrm import DlrmStep, Embedding, dlrm_memory, dlrm_program, embedding, model_flops, rank_embeddings
from crossflow.parallel.sharding.pieces import Sharding
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.collectives import Collective
from crossflow.program.program import MessageTable, Program
from crossflow.workload.dlrm import DLRM_LAYERS, DlrmJob, DlrmLayer

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Sent = tuple[DlrmLayer, Collective]  # collectives are told apart by the layer type that they serve
SENT: tuple[Sent, ...] = tuple((layer, collective) for layer in DLRM_LAYERS for collective in COLLECTIVES)


def dlrm_step(job: DlrmJob, plans: Hierarchies, machine: Machine, sharding: Sharding | None = None) -> DlrmStep:
    """The step as a program; with a sharding every rank is a class of its own, and without one all have the mean of the look-ups."""
    tables = (_soonest(embedding(job, plans), machine.wires),) if sharding is None else rank_embeddings(job, plans, sharding)
    return dlrm_program(job, plans, machine.stack, tables)


def _soonest(tables: Embedding, wires: Wires) -> Embedding:
    """Tables whose gradients go among their holders in the way that takes less time: whole, or as the rows that were looked up."""
    dense, sparse = tables.updates
    whole = wires.time("all_reduce", dense.size, dense.group) < wires.time("all_gather", sparse.size, sparse.group)
    kept = replace(dense, size=np.where(whole, dense.size, 0.0)), replace(sparse, size=np.where(whole, 0.0, sparse.size))
    return replace(tables, updates=kept)


@stage("price")
def dlrm_prices(program: Program, n: int, machine: Machine) -> Prices:
    """What the program of n design points costs; no lower bounds."""
    messages = MessageTable.of(program.messages, n)
    kernels, known = kernel_prices(program, machine.architecture, machine.stack, machine.profile, least=machine.least)
    (sent, measured), moved = machine.wires.times(messages), messages.moved
    return Prices(
        resources=resources(machine.architecture),
        kernels=kernels,
        lower_bound=np.zeros((len(program.kernels), 1)),
        messages=MessageCosts(time=sent, measured=measured, intra_bytes=moved[0], inter_bytes=moved[1]),
        call=host_calls(machine.stack),
        measured=stacked(wide(known, n), measured),
    )


@stage("run")
def dlrm_outcome(job: DlrmJob, step: DlrmStep, prices: Prices, stack: SoftwareStack) -> Outcome:
    """What comes out of a step of every design point."""
    program, plans, n, costs, sent = step.program, step.plans, len(step.plans), prices.kernels, prices.messages.time
    time, launched, none = wide(costs.time, n), wide(costs.launches, n), np.zeros_like(sent)
    computing, durations = program.by_op(time, none), program.by_op(time, sent)
    hooks = np.array([[float(i in step.hooks)] for i in range(len(program.ops))])
    launches = program.by_op(launched, np.ones_like(sent))
    issue = launches * float(stack.host.kernel[0]) + hooks * float(stack.host.layer[0])
    groups = [None if op.message is None else program.messages[op.message].group for op in program.ops]
    outside = [None if group is None else np.broadcast_to(group.size > group.per_node, (n,)) for group in groups]
    names = [f"{op.layer}.{op.name}" for op in program.ops]
    streams, last = run(program.ops, durations, outside, issue, names)
    total = streams.finish((last,)) + float(stack.host.step[0])
    waits = dict(zip(streams.names, streams.waits, strict=True))
    host = waits["host"] + waits["nothing"] + float(stack.host.step[0])
    places = {pair: [i for i, op in enumerate(program.ops) if (op.layer, op.name) == pair] for pair in SENT}
    times: dict[Sent, Array] = {pair: durations[mine].sum(axis=0) for pair, mine in places.items()}
    exposed = _exposed(times, waits)
    network = np.asarray(sum((waits.get(".".join(pair), np.zeros(n)) for pair in times), np.zeros(n)))
    bound, launch, devices = wide(costs.bound_times.sum(axis=1), n), wide(costs.launch.sum(axis=0), n), plans.devices
    by_layer = {}
    for layer in DLRM_LAYERS:
        by_layer[f"{layer}.compute"] = computing[[i for i, op in enumerate(program.ops) if op.layer == layer]].sum(axis=0)
        by_layer |= {f"{layer}.{what}": _summed(some, n, layer=layer) for what, some in (("communication", times), ("exposed", exposed))}
    used = [name for name in COLLECTIVES if any(found.any() for (_, kind), found in times.items() if kind == name)]
    return Outcome(
        total=total,
        breakdown={
            "compute": bound[0], "memory_bound_compute": bound[1:].sum(axis=0), "exposed_communication": network, "bubble": np.zeros(n),
            "other": launch + host,
        },
        communication={name: _summed(times, n, collective=name) for name in used},
        exposed={name: _summed(exposed, n, collective=name) for name in used},
        memory=dlrm_memory(job, step, stack),
        flops=wide(costs.flops.sum(axis=0), n) * devices,
        energy=wide(costs.energy.sum(axis=0), n) * devices,
        model_flops=model_flops(job, plans),
        traffic=wide(costs.traffic[-1].sum(axis=0), n) * devices,
        sent=(prices.messages.intra_bytes.sum(axis=0), prices.messages.inter_bytes.sum(axis=0)),
        bound={
            **dict(zip(prices.resources, bound, strict=True)), "launch": launch, "host": host, "network": network,
            "bubble": np.zeros(n),
        },
        by_layer={name: values for name, values in by_layer.items() if values.any()},
        measured=divide(prices.measured.sum(axis=0), time.sum(axis=0) + sent.sum(axis=0)),
    )  # fmt: skip


def _exposed(times: Mapping[Sent, Array], waits: Mapping[str, Array]) -> dict[Sent, Array]:
    """Waits for collectives of each layer type.

    Each is for the one that ends it, as far as its own time goes; the rest is for those that it queued behind.
    """
    ended = {pair: waits.get(".".join(pair), np.zeros_like(time)) for pair, time in times.items()}
    own = {pair: np.minimum(ended[pair], time) for pair, time in times.items()}
    rest = np.asarray(sum(ended[pair] - own[pair] for pair in own))
    room = {pair: time - own[pair] for pair, time in times.items()}
    share = divide(rest, np.asarray(sum(room.values())))
    return {pair: own[pair] + room[pair] * np.where(np.isfinite(share), share, 0.0) for pair in own}


def _summed(times: Mapping[Sent, Array], n: int, *, layer: str | None = None, collective: str | None = None) -> Array:
    """Times of one layer type's collectives, or of one collective over all layer types, shape (n,). [s]"""
    chosen = (time for (of, name), time in times.items() if layer in (None, of) and collective in (None, name))
    return np.asarray(sum(chosen, np.zeros(n)))
