"""Layers of a recommendation model's dense part as units: kernels, collectives around them, weights, what is kept.

Every size is an array over design points, so that all strategies are one set of kernels. Comments such as "r2 w1" read: two
elements read and one written per element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from crossflow.base.arrays import Array
from crossflow.hardware.architecture.software import SoftwareStack
from crossflow.parallel.strategy.hierarchy import Kind
from crossflow.parallel.strategy.levels import Hierarchies
from crossflow.program.collectives import Collective
from crossflow.program.groups import Group
from crossflow.program.kernels import Attention, Kernel, Pass, Product
from crossflow.workload.dlrm import DlrmJob, DlrmLayer, Linear
from crossflow.workload.transformer import Matrix, Part

# Forward; backward through its activation, where anything follows; the input's and the weight's gradient.
UnitPhase = Literal["forward", "activation", "input", "weight"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Send:
    """A collective of a unit: `size` bytes of shape (n,) among each point's group."""

    collective: Collective
    size: Array
    group: Group


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """A layer of the dense part on one device."""

    name: str  # what it is
    layer: DlrmLayer  # the layer it belongs to
    kind: Kind  # the layer type whose strategy divides it
    parameters: Array  # on one device before FSDP shares them out. [1]
    kept: Array  # what the backward pass needs of its forward pass. [B]
    kernels: Mapping[UnitPhase, Sequence[Kernel]]  # by phase
    # before_forward, after_forward, before_backward, after_input: collectives that the next kernels wait for
    before_forward: tuple[Send, ...] = ()
    after_forward: tuple[Send, ...] = ()
    before_backward: tuple[Send, ...] = ()
    after_input: tuple[Send, ...] = ()


class Builder:
    """Collects units and their kernels under strategies and a software stack."""

    def __init__(self, *, job: DlrmJob, plans: Hierarchies, stack: SoftwareStack) -> None:
        self.job, self.plans, self.stack = job, plans, stack
        self.units: list[Unit] = []
        self._kernels: dict[str, dict[UnitPhase, list[Kernel]]] = {}

    @property
    def top(self) -> Kind:
        """Layer type of the top MLP."""
        return "experts" if self.job.model.routing else "dense"

    @property
    def own(self) -> Array:
        """Samples of one device where nothing is shared. [1]"""
        return np.asarray(self.plans.batch / self.plans.devices)

    def samples(self, kind: Kind) -> Array:
        """Samples that a tensor group of a layer type works on. [1]"""
        return np.asarray(self.plans.batch / self.plans.groups(kind).data)

    def build(self) -> Builder:
        """Add all units in program order."""
        model, plans = self.job.model, self.plans
        self._mlp("bottom", "dense", model.bottom, gathered=np.zeros(len(plans)))
        self._interaction()
        divided = (plans.groups(self.top).tensor.size > 1).astype(float)
        if model.encoder is not None or model.cross is not None:
            kind: Kind = "dense" if model.encoder is None else "transformer"
            if model.encoder is None:
                self._cross()
            else:
                self._encoder()
            divided = divided * ~plans.groups(kind).same(plans.groups(self.top))
            self._leave(kind, model.top[0].k, divided + (plans.groups(self.top).tensor.size == 1))
        if model.routing is not None:
            self._experts(divided)
        else:
            self._mlp("top", "dense", model.top, gathered=divided)
        return self

    def _add(
        self, name: str, layer: DlrmLayer, kind: Kind, parameters: Array | float = 0.0, kept: Array | float = 0.0, **sends: Sequence[Send]
    ) -> None:
        n = len(self.plans)
        self.units.append(
            Unit(
                name=name, layer=layer, kind=kind, parameters=np.broadcast_to(parameters, (n,)), kept=np.broadcast_to(kept, (n,)),
                kernels=self._kernels.get(name, {}),
                **{place: tuple(given) for place, given in sends.items()},
            )
        )  # fmt: skip

    def _product(self, unit: str, m: Array, n: Array | float, k: Array | float, batch: Array | float = 1.0) -> None:
        """Y[m, n] = X[m, k] W[k, n], and the products of both gradients."""
        self._compute(unit, "forward", Product(m=m, n=n, k=k, batch=batch))
        self._compute(unit, "input", Product(m=m, n=k, k=n, batch=batch))
        self._compute(unit, "weight", Product(m=k, n=n, k=m, batch=batch))

    def _pass(self, unit: str, phase: UnitPhase, moved: Array, launches: float = 1.0, flops: Array | float = 0.0) -> None:
        self._compute(unit, phase, Pass(moved=moved, flops=flops, launches=launches))

    def _compute(self, unit: str, phase: UnitPhase, *kernels: Kernel) -> None:
        self._kernels.setdefault(unit, {}).setdefault(phase, []).extend(kernels)

    def _activation(self, unit: str, elements: Array) -> None:
        """Activation r1 w1 unless fused; backward r2 w1, and the bias's gradient r1."""
        e = self.job.element
        if not self.stack.fuses("activation", e):
            self._pass(unit, "forward", 2.0 * e * elements, flops=elements)
        self._pass(unit, "activation", 3.0 * e * elements, flops=elements)
        self._pass(unit, "weight", e * elements, flops=elements)

    # ---------------------------------------------------------------------------------- stacks of layers

    def _mlp(
        self,
        layer: DlrmLayer,
        kind: Kind,
        layers: Sequence[Linear],
        *,
        gathered: Array,
        rows: Array | None = None,
        experts: Array | float = 1.0,
    ) -> None:
        """Layers in pairs, the first cut by columns and the second by rows, whose sums are reduced; `gathered` where inputs were divided.

        With `rows` and `experts` the layers of as many experts, each on so many rows.
        """
        mesh, e = self.plans.groups(kind), self.job.element
        tp = mesh.tensor.size
        m = self.samples(kind) if rows is None else rows
        total = self.job.model.routing.experts if rows is not None and self.job.model.routing else 1
        for i, linear in enumerate(layers):
            unit, by_rows, alone = f"{layer}.{i}", i % 2 == 1, i % 2 == 0 and i == len(layers) - 1
            n, k = (linear.n, np.ceil(linear.k / tp)) if by_rows else (np.ceil(linear.n / tp), linear.k)
            self._product(unit, m, n, k, experts)
            self._activation(unit, m * n * experts)
            results, inputs = m * experts * linear.n * e, m * experts * linear.k * e
            split = np.where((tp > 1) & (gathered > 0) & (i == 0), inputs, 0.0)
            sends: dict[str, Sequence[Send]] = {}
            if by_rows:
                sends["after_forward"] = [Send(collective="all_reduce", size=results, group=mesh.tensor)]
            else:
                sends["before_forward"] = [Send(collective="all_gather", size=split, group=mesh.tensor)]
                sends["after_forward"] = [Send(collective="all_gather", size=results * alone, group=mesh.tensor)]
                sends["after_input"] = [
                    Send(collective="all_reduce", size=np.where(split > 0, 0.0, inputs), group=mesh.tensor),
                    Send(collective="reduce_scatter", size=split, group=mesh.tensor),
                ]
            share = tp * mesh.expert.size
            self._add(unit, layer, kind, total * linear.parameters / share, m * experts * (k + n) * e, **sends)

    def _interaction(self) -> None:
        """Pooled embeddings and the bottom MLP's output become what the next layers read, on each device's own samples."""
        model, job, own = self.job.model, self.job, self.own
        e, width = job.element, model.bottom[-1].n
        pooled = own * model.pooled
        self._pass("interaction", "forward", pooled * (job.forward + e) + 2.0 * own * width * e, launches=2)
        self._pass("interaction", "input", pooled * (e + job.backward) + 2.0 * own * width * e, launches=2)
        kept = pooled * (job.forward + e)
        if model.interaction == "dot":
            f, d = float(model.features), float(model.tables[0].width)
            gradient = Product(m=f, n=d, k=f, batch=own, wide=True)
            self._compute("interaction", "forward", Product(m=f, n=f, k=d, batch=own, wide=True))
            self._compute("interaction", "input", gradient, gradient)
            self._pass("interaction", "forward", own * f * f * e)
            self._pass("interaction", "input", own * f * f * e)
            kept = kept + own * f * f * e
        # Each device has the gradient of its own samples, a tensor group of the bottom MLP needs that of all of its samples.
        back = np.where(self.plans.dense.tensor.size > 1, self.samples("dense") * width * e, 0.0)
        sends = [Send(collective="all_gather", size=back, group=self.plans.dense.tensor)]
        self._add("interaction", "interaction", "dense", 0.0, kept, after_input=sends)

    def _leave(self, kind: Kind, width: int, divided: Array) -> None:
        """Outputs of a tensor group are divided by samples, which takes nothing; their gradients are gathered."""
        size = np.where(divided > 0, self.samples(kind) * width * self.job.element, 0.0)
        name = f"{kind}.out"
        self._add(
            name, "interaction", kind, before_backward=[Send(collective="all_gather", size=size, group=self.plans.groups(kind).tensor)]
        )

    def _cross(self) -> None:
        """Cross layers, the first product of each cut by columns and the second by rows, whose sums are reduced."""
        cross, mesh, e = self.job.model.cross, self.plans.dense, self.job.element
        assert cross is not None
        m, tp = self.samples("dense"), mesh.tensor.size
        inner, elements = np.ceil(cross.rank / tp), m * cross.width
        for i in range(cross.layers):
            unit, size = f"interaction.{i}.cross", elements * e
            self._product(unit, m, inner, cross.width)
            self._product(unit, m, cross.width, inner)
            self._pass(unit, "forward", 4.0 * size, flops=3.0 * elements)  # x0 (y + b) + x r3 w1
            self._pass(unit, "activation", 10.0 * size, launches=3, flops=5.0 * elements)  # of y r2 w1, x0 r3 w1, x r2 w1
            self._pass(unit, "weight", size, flops=elements)  # of the bias r1
            share, kept = 2.0 * cross.width * cross.rank / tp + cross.width, 2.0 * size + m * inner * e
            self._cut_in_two(unit, "dense", share, kept, size=size, first=i == 0)

    def _encoder(self) -> None:
        """Layers of attention and MLP over features."""
        encoder, mesh = self.job.model.encoder, self.plans.transformer
        assert encoder is not None
        tokens = self.samples("transformer") * encoder.sequence
        size = tokens * encoder.attention.width * self.job.element
        for i in range(encoder.layers):
            for part in (encoder.attention, encoder.mlp):
                unit = f"interaction.{i}.{part.type}"
                first = (i == 0) and part is encoder.attention
                for matrix in part.matrices:
                    self._cut(unit, matrix, tokens, mesh.tensor.size)
                kept = self._between(unit, part, tokens, mesh.tensor.size, encoder.sequence)
                share = sum(m.parameters for m in part.matrices) / mesh.tensor.size + part.vectors
                self._cut_in_two(unit, "transformer", share, kept, size=size, first=first)

    def _cut_in_two(self, unit: str, kind: Kind, share: Array, kept: Array, *, size: Array, first: bool) -> None:
        """Add a unit whose first product is cut by columns and whose last by rows: its tensor ranks add up the outputs, of `size` bytes.

        What comes in is divided by samples before the first unit, and whole before all others.
        """
        tensor = self.plans.groups(kind).tensor
        split = np.where(tensor.size > 1, size, 0.0) * first
        self._add(
            unit, "interaction", kind, share, kept,
            before_forward=[Send(collective="all_gather", size=split, group=tensor)],
            after_forward=[Send(collective="all_reduce", size=size, group=tensor)],
            after_input=[
                Send(collective="all_reduce", size=np.where(split > 0, 0.0, size), group=tensor),
                Send(collective="reduce_scatter", size=split, group=tensor),
            ],
        )  # fmt: skip

    def _cut(self, unit: str, matrix: Matrix, tokens: Array, tp: Array) -> None:
        by_rows = matrix.cut == "row"
        self._product(unit, tokens, matrix.n if by_rows else np.ceil(matrix.n / tp), np.ceil(matrix.k / tp) if by_rows else matrix.k)

    def _between(self, unit: str, part: Part, tokens: Array, tp: Array, sequence: int) -> Array:
        """Scores or activation, norm and residual of a part; what it keeps. [B]"""
        e, width = self.job.element, tokens * part.width
        kept = (2.0 * width + tokens * sum(m.n if m.cut == "column" else m.k for m in part.matrices) / tp) * e
        self._pass(unit, "forward", 5.0 * width * e, launches=2)  # norm r1 w1, residual r2 w1
        self._pass(unit, "activation", 8.0 * width * e, launches=3)  # norm r3 w1, its weights r1, sum of both gradients r2 w1
        attention = part.attention
        if attention is None:
            self._activation(unit, tokens * part.inner / tp)
            return kept
        heads, samples = attention.heads / tp, tokens / sequence
        length, d, batch = float(sequence), float(attention.query), samples * heads
        if self.stack.attention.kernel == "flash":
            fused = Attention(samples=samples, heads=heads, length=length, seen=length, width=d, causal=False)
            self._compute(unit, "forward", fused)
            self._compute(unit, "input", replace(fused, backward=True))
            return kept
        scored, summed = Product(m=length, n=length, k=d, batch=batch, wide=True), Product(m=length, n=d, k=length, batch=batch, wide=True)
        self._compute(unit, "forward", scored, summed)
        self._compute(unit, "input", scored, summed, summed, summed)
        scores = batch * length**2
        self._pass(unit, "forward", 4.0 * scores * e, launches=2)  # scale r1 w1, softmax r1 w1
        self._pass(unit, "input", 5.0 * scores * e, launches=2)  # softmax r2 w1, scale r1 w1
        return np.asarray(kept + 2.0 * scores * e)

    def _experts(self, divided: Array) -> None:
        """Samples travel to the ranks that hold their experts, pass them, and travel back to be weighed and added."""
        model, mesh, e = self.job.model, self.plans.experts, self.job.element
        routing = model.routing
        assert routing is not None
        m, tp = self.samples("experts"), mesh.tensor.size
        ends = (("dispatch", model.top[0].k), ("combine", model.top[-1].n))
        local = routing.experts / mesh.expert.size
        for name, width in ends:
            copies = m * width * e
            routed = copies * routing.active
            travel = [Send(collective="all_to_all", size=routed, group=mesh.expert)]
            first = name == "dispatch"
            # permutation r1 w k, router's product with all experts; weighted sum r k w1
            self._pass(f"top.{name}", "forward", copies + routed + m * routing.experts * e * first, launches=4)
            self._pass(f"top.{name}", "input", copies + routed, launches=4)
            split = np.where((tp > 1) & (divided > 0), copies, 0.0)
            whole = np.where((tp > 1) & (divided == 0), copies, 0.0)
            sends: dict[str, Sequence[Send]] = (
                {
                    "before_forward": [Send(collective="all_gather", size=split, group=mesh.tensor)], "after_forward": travel,
                    "before_backward": travel,
                    "after_input": [
                        Send(collective="reduce_scatter", size=split, group=mesh.tensor),
                        Send(collective="all_reduce", size=whole, group=mesh.tensor),
                    ],
                }
                if first
                else {"before_forward": travel, "after_input": travel}
            )  # fmt: skip
            if not first:
                rows = m * routing.active / local
                self._mlp("top", "experts", model.top, gathered=np.zeros(len(self.plans)), rows=rows, experts=local)
            self._add(f"top.{name}", "top", "experts", 0.0, routed, **sends)
