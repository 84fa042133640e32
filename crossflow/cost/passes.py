"""What one microbatch takes on every unit of a transformer, and what its weights take: the parts of which steps consist."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from crossflow.base.arrays import Array, Index, Mask, at_points, divide, share_of
from crossflow.base.formats import FORMATS
from crossflow.base.stages import stage
from crossflow.cost.halves import beside_half, exposed
from crossflow.cost.machine import Machine
from crossflow.cost.price import LayerCosts, layer_costs
from crossflow.cost.profile import Profile, optimizer_shape, where_measured
from crossflow.cost.roofline import KernelCosts, pass_costs
from crossflow.cost.shared_links import USES, LinkStream, LinkUse, longer
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.activations import activations
from crossflow.parallel.blocks import PHASES, unit_starts, units
from crossflow.parallel.offload import MASTER, Copies, activations_on_host, kept_on_host, master_size, states_size
from crossflow.parallel.shapes import Between, Shape
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.tables import COLLECTIVES, OF, Sends, StepTables
from crossflow.parallel.tiers import FarTraffic, far_traffic, far_update
from crossflow.parallel.weights import Weights, weight_sizes
from crossflow.program.program import Program
from crossflow.workload.job import Job

WEIGHT = PHASES.index("weight")
OF_WEIGHTS = ("reduce", "scatter", "gather", "regather", "reduce_use", "scatter_use", "gather_use", "regather_use")  # arrays of `State`
NODE = 8.0  # devices of which the slowest sets the pace that stacks were fitted to


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What one microbatch takes on one unit (part of a layer, embedding, head), forward and backward.

    Attributes
    ----------
    device : time of kernels by what binds them (compute, memory levels) and between them, shape (kinds, passes, units, n); the backward
        pass without the weights' gradients. [s]
    weight : the same of the weights' gradients, shape (kinds, units, n). [s]
    sent : time of collectives, shape (collectives, passes, units, n). [s]
    blocking : of it, what the device waits for when nothing hides it, shape as `sent`. [s]
    hides : time of collectives that run beside the weights' gradients, shape (collectives, units, n). [s]
    measured : of the time of collectives, what was measured, shape (passes, units, n). [s]
    host : time that the host needs, shape (passes, units, n); of the weights' gradients, shape (units, n). [s]
    use : how collectives use the links (`crossflow.cost.shared_links`), shape (USES, passes, units, n). [s]
    spare : by how much longer those inside a node and between nodes could be that hide beside kernels, but for those beside the weights'
        gradients, at most twice as long; shape (2, passes, units, n). [s]
    hides_use : use of those beside the weights' gradients, shape (USES, units, n). [s]
    """

    device: Array
    weight: Array
    sent: Array
    blocking: Array
    hides: Array
    measured: Array
    host: Array
    host_weight: Array
    use: LinkUse
    spare: Array
    hides_use: LinkUse

    def at(self, points: Index) -> Passes:
        """Passes of some of the points."""
        return Passes(**{field.name: at_points(getattr(self, field.name), points) for field in dataclasses.fields(Passes)})


@dataclass(frozen=True, kw_only=True)
class State:
    """Weights of every unit on one device, and what keeping them in step takes; shape (units, n).

    Attributes
    ----------
    reduce, scatter : time to reduce its gradients over the ranks that hold the same, with every update, and of sharded weights with
        every microbatch, shape (collectives, units, n). [s]
    gather : time to gather its weights, where they are sharded. [s]
    regather : time to gather updated weights after a sharded optimizer's step. [s]
    optimizer : cost of the optimizer on the parameters whose states the device holds.
    far : bytes that an update reads and writes on the second memory, shape (2, units, n); None where nothing lies there. [B]
    copies : what is copied to the host and back, where anything is kept there.
    reduce_use, scatter_use, gather_use, regather_use : how the collectives use the links, shape (USES, units, n). [s]
    """

    reduce: Array
    scatter: Array
    gather: Array
    regather: Array
    optimizer: KernelCosts
    copies: Copies | None
    reduce_use: LinkUse
    scatter_use: LinkUse
    gather_use: LinkUse
    regather_use: LinkUse
    far: Array | None = None

    @property
    def update(self) -> Array:
        """Time of the optimizer. [s]"""
        return self.optimizer.time

    def at(self, points: Index) -> State:
        """State of some of the points."""
        arrays = {name: at_points(getattr(self, name), points) for name in OF_WEIGHTS}
        copies, far = self.copies, None if self.far is None else at_points(self.far, points)
        return State(**arrays, optimizer=self.optimizer.at(points), copies=None if copies is None else copies.at(points), far=far)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What steps consist of: kernels and passes of every unit, what keeps weights in step, and times of what goes between stages. [s]"""

    tables: StepTables
    times: LayerCosts
    passes: Passes
    state: State
    between: Between
    transfer_use: LinkUse  # how transfers inside a node and between nodes use the links, shape (USES, 2, n)
    far: FarTraffic | None = None  # what passes move on the second memory, where any plan keeps anything there

    def of(self, shape: Shape) -> Steps:
        """With the passes and the state of points whose pipelines have one shape; all else is still of all points."""
        if len(shape.at) == self.passes.sent.shape[-1]:
            return self
        return dataclasses.replace(self, passes=self.passes.at(shape.at), state=self.state.at(shape.at))


@stage("price")
def steps_of(job: Job, layout: Layout, machine: Machine, tables: StepTables) -> Steps:
    """What the steps of all design points consist of."""

    def times_of(program: Program) -> LayerCosts:
        runs_on = machine.architecture, machine.stack, machine.profile
        return layer_costs(program, tables.units, PHASES, len(layout), *runs_on, least=machine.least)

    times = times_of(tables.program)
    if tables.mean is not None:  # the fullest rank takes the time, all ranks together do what they do in the mean
        mean = times_of(tables.mean)
        times = dataclasses.replace(times, flops=mean.flops, energy=mean.energy, traffic=mean.traffic)
    second, far = machine.architecture.second, None
    if layout.far and second is not None:
        from crossflow.cost.tiers import over_products, with_second_memory

        far = over_products(far_traffic(job, layout, machine.stack, second.page), times)
        times = with_second_memory(times, far, machine.architecture.memory, second)
    each, meets = tables.between.each(layout), _meets(tables) and not (machine.apart or machine.least)
    inside, outside, whole, tied = (machine.wires.time(*one) for one in each)
    transfer_use = np.zeros((USES, 2, len(layout)))
    for place, (one, time) in enumerate(zip(each[:2], (inside, outside), strict=True) if meets else ()):
        transfer_use[:, place] = machine.wires.used(*one, time)
    if job.training and machine.architecture.execution.variation.any():
        bound = times.bound.copy()
        bound[0] *= slowest(layout.devices, machine.architecture.execution.variation)
        times = dataclasses.replace(times, bound=bound)
    return Steps(
        tables=tables, times=times, passes=_passes(job, layout, machine, tables, times, meets=meets),
        state=_state(job, layout, machine, tables.weights, meets=meets),
        between=Between(transfer=np.array([inside, outside]), whole=whole, tied=tied), transfer_use=transfer_use, far=far,
    )  # fmt: skip


def _meets(tables: StepTables) -> bool:
    """Whether streams of a step may meet on links: collectives of passes, those of weights, and what stages hand over."""
    several = (
        any(group.several for _, group, _ in tables.sends.table.kinds),
        any(message.group.several for message in tables.weights.messages),
        bool(tables.between.transfer.any()),
    )
    return sum(several) > 1 or len(tables.sends.exchanged) > 0


def slowest(devices: Array, variation: Array) -> Array:
    """Time of computing on the slowest of so many devices over that on the slowest of eight, at least one; shape (n,). [1]

    Rates are normal with a standard deviation of `variation` times the mean. The mean of the largest of N such numbers lies at the
    quantile (N - 3/8) / (N + 1/4) (Blom, "Statistical Estimates and Transformed Beta-Variables", 1958).
    """
    many = np.maximum(np.asarray(devices, dtype=float), NODE)
    normal = NormalDist()
    quantile = {count: normal.inv_cdf((count - 0.375) / (count + 0.25)) for count in {NODE, *many.tolist()}}
    beyond = np.array([quantile[count] - quantile[NODE] for count in many.tolist()])
    return np.asarray(1.0 + variation * beyond)


def _passes(job: Job, layout: Layout, machine: Machine, tables: StepTables, times: LayerCosts, *, meets: bool) -> Passes:
    """Passes of every unit, with what is computed and sent again; `meets` says whether other streams may be on the same links."""
    stack, host, full = machine.stack, machine.stack.host, tables.recomputed
    sends, shape = tables.sends, full.shape
    of, phase, unit = sends.collective, sends.backward, sends.unit
    alone, known = machine.wires.times(sends.table)
    took, known = sends.counts * alone, sends.counts * known
    each = sends.counts * machine.wires.table_used(sends.table, alone) if meets else np.zeros((USES, *alone.shape))
    sent = np.zeros((len(COLLECTIVES), 2, *shape))
    calls, listed, measured = np.zeros((3, 2, *shape))
    hides = np.zeros((len(COLLECTIVES), *shape))
    np.add.at(sent, (of, phase, unit), took)
    np.add.at(calls, (phase, unit), np.where(took > 0, sends.counts, 0.0))
    hiding, shared = sends.weights, sends.shared
    np.add.at(hides, (of[hiding], unit[hiding]), took[hiding])
    np.add.at(listed, (phase[shared], unit[shared]), np.where(took[shared] > 0, sends.ranks, 0.0))
    if machine.profile is not None:
        np.add.at(measured, (phase, unit), known)
    parts = np.concatenate([times.bound, times.launch[None]])
    backward = (parts * tables.back).sum(axis=2)
    backward[-1] += full * _firsts(tables.units) * host.stall
    blocking, spare = sent.copy(), np.zeros_like(took)
    blocking[:, 1] -= hides
    for i in sends.pieces:
        product, group = times.each[list(sends.ops[i].beside)].sum(axis=0), tables.program.messages[i].group
        assert group is not None
        blocking[of[i], phase[i], unit[i]] -= hidden_in_pieces(took[i], product, group.size)
        spare[i] = left_beside(took[i], product * (group.size - 1.0) / group.size)
    for i in sends.kernels if stack.overlap.context else ():  # what the next step of a ring needs travels beside the kernel of this one
        kernel = sends.counts[i] * times.each[sends.ops[i].beside[0]]
        blocking[of[i], phase[i], unit[i]] -= np.minimum(took[i], kernel)
        spare[i] = left_beside(took[i], kernel)
    blocking = np.maximum(blocking, 0.0)  # rounding may leave a difference of equal sums below zero
    for forward_too in (sent.swapaxes(0, 1), blocking.swapaxes(0, 1), measured, calls, listed):
        forward_too[1] += _once_more(full, forward_too[0])
    device, left_over = np.stack([(parts * tables.ahead).sum(axis=2), backward], axis=1), np.zeros((2, 2, *shape))
    if len(sends.exchanged):
        busy = device.sum(axis=0)
        busy[1] += parts[:, :, WEIGHT].sum(axis=0)
        if job.training:
            blocking, left_over = _beside_microbatch(job, layout, machine, tables, blocking, busy, each)
        else:
            blocking = beside_half(job, layout, machine, tables, times, blocking, took, busy[0], each)
    launched = times.kernels + _more_launches(job, layout, stack)
    issued = np.array([(launched * way).sum(axis=1) for way in (tables.ahead, tables.back)]) + calls
    graphs, kernel = captured(tables.units, stack) & job.training, issue_time(job, layout, stack)
    return Passes(
        device=device,
        weight=parts[:, :, WEIGHT],
        sent=sent,
        blocking=blocking,
        hides=hides,
        measured=measured,
        host=np.where(graphs, calls * kernel + host.graph, issued * kernel + host.layer) + listed * host.rank,
        host_weight=np.where(graphs, 0.0, launched[:, WEIGHT] * kernel),
        use=_uses(tables, each),
        spare=_uses(tables, spare * (each[:2] > 0)) + left_over,
        hides_use=_of_units(sends, each, hiding, shape),
    )


def _uses(tables: StepTables, each: Array, of: Index | slice = slice(None)) -> Array:
    """Figures of every message, all equal ones of it, shape (figures, messages, n), or of some of them, by pass and unit, shape (figures,
    passes, units, n).
    """
    sends, found = tables.sends, np.zeros((len(each), 2, *tables.recomputed.shape))
    for row, values in zip(found, each, strict=True):
        if values.any():
            np.add.at(row, (sends.backward[of], sends.unit[of]), values[of])
            row[1] += _once_more(tables.recomputed, row[0])
    return found


def _of_units(sends: Sends, each: Array, which: Index, shape: tuple[int, ...]) -> Array:
    """The same of some messages by unit, shape (figures, units, n)."""
    found = np.zeros((len(each), *shape))
    for row, values in zip(found, each, strict=True):
        np.add.at(row, sends.unit[which], values[which])
    return found


def issue_time(job: Job, layout: Layout, stack: SoftwareStack) -> Array:
    """Time in which the host issues one kernel, shape (n,) or (1,): engines capture the steps that write, and launch the kernels of those
    that read prompts one by one, but for what they capture in pieces. [s]
    """
    host = stack.host
    reads = not job.training and (job.task == "prefill" or job.chunk is not None)
    if not reads or host.reading is None:
        return host.kernel
    return np.where(_in_pieces(job, layout, stack), host.kernel, host.reading) if host.pieces else host.reading


def _in_pieces(job: Job, layout: Layout, stack: SoftwareStack) -> Mask:
    """Where a step that reads prompts is captured in pieces, shape (n,): SGLang 0.5.10, piecewise_cuda_graph.md, "Compatibility"."""
    kinds = [part.attention for _, part in units(job.model) if part.attention is not None]
    guessed, selects = job.written > 1 or job.draft is not None, any(kind.selection is not None for kind in kinds)
    if job.chunk is None or guessed or selects or job.apart:  # of those with workers of their own only these read pieces
        return np.zeros(len(layout), dtype=bool)
    few = job.chunk.tokens <= stack.host.latent_pieces if any(kind.shares_latent for kind in kinds) else np.ones(1, dtype=bool)
    return np.asarray((layout.pp == 1.0) & ((layout.ep == 1.0) | (layout.dp == 1.0)) & few)


def captured(names: tuple[str, ...], stack: SoftwareStack) -> Mask:
    """Units whose kernels one captured graph launches, shape (units, 1)."""
    return np.array([[name.split(".")[-1] in stack.graphs] for name in names])


def _more_launches(job: Job, layout: Layout, stack: SoftwareStack) -> Array:
    """Kernels of every unit and phase beyond those that are priced, where each expert has its own, shape (units, phases, n). [1]

    Of every product of experts and of the casts of its operands one is priced for all experts of a rank. Streams side by side hide the
    gaps between kernels of different experts, but the host launches each of them.
    """
    found = np.zeros((len(units(job.model)), len(PHASES), len(layout)))
    if stack.expert_products != "each" or not job.training:
        return found
    casts = (2.0 if FORMATS[job.dtype].two_level else 1.0) * float(job.operand < job.element)
    for unit, (_, part) in enumerate(units(job.model)):
        if part.routing is None:
            continue
        products = sum(matrix.routed for matrix in part.matrices)
        more = products * np.maximum(part.routing.experts / layout.ep - 1.0, 0.0)
        for phase, kernels in (("forward", 1.0 + 2.0 * casts), ("input", 1.0 + casts), ("weight", 1.0)):
            found[unit, PHASES.index(phase)] = more * kernels
    return found


def _beside_microbatch(
    job: Job, layout: Layout, machine: Machine, tables: StepTables, blocking: Array, busy: Array, each: LinkUse
) -> tuple[Array, Array]:
    """What collectives block where tokens travel to experts beside the kernels of another microbatch, shape as `Passes.blocking`, and by
    how much longer these ways could be, shape as `Passes.spare`. [s]

    A pass forward of one microbatch and a pass backward of another run together, layer by layer. The way to the experts and the way back of
    the one are beside the experts and beside the rest of the layer of the other. What a way takes beyond them it blocks; meanwhile it takes
    units of the device from the kernels. Some microbatches of a pipeline have no other beside them (`Layout.unpaired`). Halves of a step of
    a service: `crossflow.cost.halves`.

    Parameters
    ----------
    busy : time of kernels of every unit, forward and backward with the weights' gradients, shape (2, units, n). [s]
    each : how every message uses the links, all equal ones of it, shape (USES, messages, n). [s]
    """
    sends, exchange = tables.sends, np.zeros_like(blocking)
    mine = sends.exchanged
    took = (sends.counts * machine.wires.times(sends.table)[0])[mine]
    np.add.at(exchange, (sends.collective[mine], sends.backward[mine], sends.unit[mine]), took)
    exchange[:, 1] += _once_more(tables.recomputed, exchange[:, 0])
    kernels = busy + (blocking - exchange).sum(axis=0)
    starts, way = unit_starts(job.model), exchange.sum(axis=0) / 2.0
    use = _uses(tables, each, mine)
    others = LinkStream(time=_of_others(kernels, starts), use=_of_others(_uses(tables, each) - use, starts))
    met = longer(others, LinkStream(time=way, use=use[:, None] / 2.0), np.maximum(way, others.time))
    left = np.minimum(exposed(way, others.time, machine.stack.overlap.exchange_units) + met, way).sum(axis=0)
    alone = np.minimum(layout.unpaired / layout.microbatches, 1.0)
    share = divide(left, 2.0 * way) * (1.0 - alone) + alone
    spare = left_beside(way, others.time).sum(axis=0) * (1.0 - alone) * share_of(use[:2], use[:2].sum(axis=0))
    return np.asarray(blocking - exchange * (1.0 - share)), spare


def _of_others(values: Array, starts: Index) -> Array:
    """What the other pass has of values of shape (..., passes, units, n): in the unit itself, and in the rest of its layer; the two come
    before the axis of passes.
    """
    layers = np.zeros_like(values)
    np.add.at(np.moveaxis(layers, -2, 0), starts, np.moveaxis(values, -2, 0))
    return np.stack([values, layers[..., starts, :] - values], axis=-4)[..., ::-1, :, :]


def hidden_in_pieces(sent: Array, product: Array, ranks: Array) -> Array:
    """Part of the time of a gather or scatter that a product hides which takes or makes its pieces one by one. [s]

    There is a piece a rank. Its own is there at once, or is made last, and does not travel: nothing moves beside the product of
    one piece in so many (Wang et al., "Overlap Communication with Dependent Computation via Decomposition", ASPLOS 2023).
    """
    return np.minimum(sent, product * (ranks - 1.0) / ranks)


def left_beside(sent: Array, kernels: Array) -> Array:
    """By how much longer messages may be that kernels hide before they block, at most twice as long. [s]"""
    return np.clip(kernels - sent, 0.0, sent)


def _once_more(often: Array, taken: Array) -> Array:
    """What something takes that is done so often again: nothing where it is not, even if it never ends."""
    return np.asarray(often * np.where(often > 0, taken, 0.0))


@functools.lru_cache(maxsize=256)
def _firsts(names: tuple[str, ...]) -> Mask:
    """The first part of every layer, shape (units, 1): a layer has several parts, and stalls once."""
    return np.array([".0." in name for name in names])[:, None]


def _state(job: Job, layout: Layout, machine: Machine, weights: Weights, *, meets: bool) -> State:
    """Time of the collectives that sharded or replicated weights need, and of the optimizer; `meets` as of `_passes`."""
    shape = weights.parameters.shape
    reduce, scatter = np.zeros((2, len(COLLECTIVES), *shape))
    gather, regather = np.zeros((2, *shape))
    reduce_use, scatter_use, gather_use, regather_use = np.zeros((4, USES, *shape))
    for message in weights.messages:
        if message.role == "reduce" and not job.training:  # without gradients, also where no network could ever reduce them
            continue
        whole = machine.wires.time(message.collective, message.whole, message.group)
        time = whole * message.share
        reductions = (scatter if message.sharded else reduce)[OF[message.collective]]
        into = {"reduce": reductions, "gather": gather, "regather": regather}[message.role]
        into += time
        if meets:
            use = {"reduce": scatter_use if message.sharded else reduce_use, "gather": gather_use, "regather": regather_use}[message.role]
            use += machine.wires.used(message.collective, message.whole, message.group, whole) * message.share
    optimizer = optimizer_costs(job, weights.owned * (1.0 - kept_on_host(layout, "optimizer")), machine)
    second, far = machine.architecture.second, None
    if layout.far and second is not None and job.training:
        far = np.stack(far_update(job, layout, machine.stack, weights.owned))
        from crossflow.cost.tiers import updated_far

        optimizer = updated_far(optimizer, far, machine.architecture.memory, second)
    return State(
        reduce=reduce, scatter=scatter, gather=gather, regather=regather, far=far,
        reduce_use=reduce_use, scatter_use=scatter_use, gather_use=gather_use, regather_use=regather_use, optimizer=optimizer,
        copies=_copies(job, layout, machine, weights.owned),
    )  # fmt: skip


def _copies(job: Job, layout: Layout, machine: Machine, owned: Array) -> Copies | None:
    """Copies to the host and back, where any plan keeps anything there."""
    if not layout.offload:
        return None
    kept, _ = activations(job, layout, machine.stack)
    return host_copies(
        job, layout, machine, np.stack([kept[name] for name, _ in units(job.model)]), owned, weight_sizes(job, layout, machine.stack)
    )


def host_copies(job: Job, layout: Layout, machine: Machine, kept: Array, owned: Array, weights: Array) -> Copies | None:
    """Copies of a step; None where no plan keeps anything on the host.

    Parameters
    ----------
    kept : activations that a microbatch leaves in each unit, shape (units, n). [B]
    owned : parameters of which a rank updates the optimizer's states, shape (units, n). [1]
    weights : size of a weight of each unit, shape (units, 1). [B]
    """
    if not layout.offload:
        return None
    host, stack = machine.host, machine.stack
    assert host is not None  # the caller has looked
    share = host.bandwidth / np.minimum(machine.node, layout.devices)
    bus = machine.host_rate(layout.devices)
    gradient, working = stack.gradient_size(job.element), share * host.utilisation
    optimizer, fetched = (kept_on_host(layout, what) for what in ("optimizer", "weights"))
    summed = np.maximum(optimizer * (layout.zero >= 2), fetched) * float(job.training)  # gradients summed on the host
    kept_weight = stack.weight_size(job.element)
    # Gradients r1, master weights and states r1 w1 each, and the weights of the device w1 where they are not the master's.
    updated = gradient + 2.0 * (MASTER + states_size(job, stack)) + (kept_weight if kept_weight < MASTER else 0.0)
    return Copies(
        activations=divide(activations_on_host(layout, job.model.depth) * kept, bus),
        fetched=divide(fetched * owned * weights, bus),
        stored=summed * owned * gradient * np.maximum(1.0 / bus, 3.0 / working),  # r2 w1 to add to the sum
        gradients=divide((optimizer - summed) * owned * gradient, bus),
        update=divide(optimizer * owned * updated, working),
        renewed=divide((optimizer - fetched) * owned * weights, bus),
    )


def optimizer_costs(job: Job, owned: Array, machine: Machine) -> KernelCosts:
    """Cost of the optimizer on `owned` parameters; or as measured.

    Gradients are read twice (norm, step), states and what is kept of the fp32 weights are read and written, and so are the weights
    themselves where these are a part of that; otherwise they are written.
    """
    weight, kept = machine.stack.weight_size(job.element), master_size(job, machine.stack)
    master = 2.0 * kept + weight * (1.0 if kept == MASTER else 2.0)
    moved = 2.0 * machine.stack.gradient_size(job.element) + master + 2.0 * states_size(job, machine.stack)
    passes = 1.0 if machine.stack.fuses("optimizer", job.element) else 2.0
    nothing = np.zeros_like(owned)
    costs = pass_costs(passes * owned * moved, nothing, nothing, machine.architecture, job.dtype, least=machine.least)
    if machine.profile is None:
        return costs
    return dataclasses.replace(costs, time=where_measured(costs.time, measured_optimizer(owned, machine.profile))[0])


def measured_optimizer(owned: Array, profile: Profile) -> Array:
    """Measured times of the optimizer on `owned` parameters, shape (units, n), NaN where they were not measured. [s]"""
    return profile.kernels("optimizer", "", [[optimizer_shape(count) for count in row] for row in owned.tolist()])


def between_measured(layout: Layout, machine: Machine, steps: Steps, handed: Array) -> tuple[Array, Array]:
    """Time of transfers between stages and of a tied table's sum in a step, and what of it was measured, of shape (n,). [s]

    `handed` are the transfers of all ranks inside nodes and between nodes, and the time of all of them with putting their parts
    together, shape (3, n). [1], [1], [s]
    """
    near, far, time = handed
    inside, outside, whole, tied = (machine.wires.measured(*one) for one in steps.tables.between.each(layout))
    both = 2.0 * layout.tp * layout.cp * layout.dp  # ends of a pipeline that hold a tied table
    return time + both * steps.between.tied, near * inside + far * outside + (near + far) * whole + both * tied


def weights_measured(layout: Layout, machine: Machine, steps: Steps, profile: Profile) -> tuple[Array, Array]:
    """Time of the optimizer and the collectives of weights in a step, and what of it was measured, each of shape (units, n). [s]"""
    onto = (1.0 - kept_on_host(layout, "optimizer")) * layout.updates
    weights, update = steps.tables.weights, steps.state.update
    whole, known = update * layout.updates, np.nan_to_num(measured_optimizer(weights.owned, profile)) * onto
    for message in weights.messages:
        often = message.rounds(layout) * message.share
        whole = whole + often * machine.wires.time(message.collective, message.whole, message.group)
        known = known + often * machine.wires.measured(message.collective, message.whole, message.group)
    return whole, known
