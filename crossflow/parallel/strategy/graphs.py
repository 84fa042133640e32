"""Strategies of graphs of kernels (lstm, gemm): the mesh by roles that divides every layer alike, and all that divide a graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossflow.base.errors import StrategyError
from crossflow.base.results import later
from crossflow.parallel.strategy.kinds import ANY, GIVEN, Nodes, StrategyFilter, StrategyKind
from crossflow.parallel.strategy.mesh import AXIS_ROLES, BLOCKS, PAPER_NAMES, Axis, Mesh, RankBlock, divisors, levels_text
from crossflow.parallel.strategy.notation import GRAPH, Written, parse
from crossflow.parallel.transform import assign_stages, check_divides

if TYPE_CHECKING:
    from crossflow.program.program import Program
    from crossflow.workload.graph import Graph
    from crossflow.workload.spec import GemmSpec, LstmSpec, ProgramSpec
else:
    Program = later("crossflow.program.program", "Program")
    Graph = later("crossflow.workload.graph", "Graph")
    GemmSpec, LstmSpec, ProgramSpec = later("crossflow.workload.spec", "GemmSpec", "LstmSpec", "ProgramSpec")

_BLOCKS: dict[str, RankBlock] = {"cp": "tp", "tp": "tp", "inner": "tp", "dp": "dp", "pp": "pp"}  # that axes belong to


def graph_mesh(given: Written, nodes: tuple[int, int] | None = None, *, table: bool = True) -> Mesh:
    """The mesh of a graph with axes named as in the paper, from any notation; roles by layer type need devices of a node, and nodes.

    Of a graph without a `table` of words no layers are of type embedding.

    >>> [str(graph_mesh(given)) for given in ("RC-16-4-d8-p2", "pp2-dp8-tp4", {"dp": 512})]
    ['RC-16-4-d8-p2', 'RC-1-4-d8-p2', 'd512']
    >>> str(graph_mesh({"dense": ["tp", "ddp"]}, (8, 4)))
    'RC-1-8-d4-placed:tp+dp+pp'
    """
    mesh = parse(given, GRAPH)
    if mesh.by_types:
        if not table and "embedding" in dict(mesh.own):
            raise StrategyError(f"strategy: {mesh}, but the model has no layers of type embedding; leave it out")
        mesh = _of_levels(mesh, nodes or (1, 1))
    placed = dict(mesh.options).get("placement", ())
    several = {_BLOCKS[axis.name] for axis in mesh.axes if axis.size > 1}
    order = (*(block for block in placed if block in several), *(block for block in placed if block not in several))
    return Mesh(
        axes=tuple(Axis(name=PAPER_NAMES[axis.name], size=axis.size, role=axis.role) for axis in mesh.axes),
        options=(("placement", order),) if order else (),
    )


def _of_levels(mesh: Mesh, nodes: tuple[int, int]) -> Mesh:
    """Axes from roles of both levels, which are the same for all layers; they lie as the levels do."""
    own = {kind: tuple("columns" if role == "table_columns" else role for role in levels) for kind, levels in mesh.own}
    if set(own.values()) != {own.get("dense")}:
        cure = f"write dense {levels_text(dict(mesh.own)['dense'])}" if "dense" in own else "give dense"
        raise StrategyError(f"strategy: {mesh}: all layers of {GRAPH.workloads} are divided alike; {cure}, which stands for all")
    names = {role: name for name, role in AXIS_ROLES.items()}
    sizes: dict[str, int] = {}
    for role, size in zip(own["dense"], nodes, strict=True):
        sizes[names[role]] = sizes.get(names[role], 1) * size
    axes = tuple(Axis(name=name, size=sizes[name], role=role) for name, role in AXIS_ROLES.items() if name in sizes)
    order = tuple(dict.fromkeys([*(_BLOCKS[name] for name in sizes), *BLOCKS]))
    return Mesh(axes=axes, options=(("placement", order),) if len(sizes) > 1 else ())


def mesh_of(program: Program) -> Mesh:
    """The mesh that a program is written for."""
    return Mesh(axes=tuple(Axis(name=name, size=size, role="given") for name, size in program.axes))


def legal_meshes(graph: Graph, devices: int) -> tuple[Mesh, ...]:
    """Meshes that use all devices and divide the model evenly, data parallelism first.

    >>> from crossflow.workload.gemm import gemm
    >>> [str(mesh) for mesh in legal_meshes(gemm(m=4, n=4, k=4), 2)]
    ['d2', 'RC-1-2', 'RC-2-1', 'CR-2']
    """
    return tuple(mesh for mesh in map(graph_mesh, _written(devices)) if _fits(graph, mesh))


def _written(devices: int) -> Iterator[str]:
    """All ways to write the number of devices as kernel x data x pipeline degrees."""
    for stages in divisors(devices):
        for kernel in divisors(devices // stages):
            replicas = devices // stages // kernel
            tail = "".join([f"-d{replicas}" if replicas > 1 else "", f"-p{stages}" if stages > 1 else ""])
            if kernel == 1:
                yield tail.removeprefix("-") or "d1"
                continue
            yield from (f"RC-{rows}-{kernel // rows}{tail}" for rows in divisors(kernel))
            yield f"CR-{kernel}{tail}"


def _fits(graph: Graph, mesh: Mesh) -> bool:
    try:
        check_divides(graph, mesh)
        assign_stages(graph, mesh.degree("layers"))
    except StrategyError:
        return False
    return True


class GraphStrategies(StrategyKind):
    """Meshes of a graph of kernels."""

    workload: LstmSpec | GemmSpec

    def read(self, written: Written, nodes: Nodes | None) -> Mesh:
        """The mesh; only a graph of words has a table."""
        return graph_mesh(written, nodes, table=self.workload.in_tokens)

    @property
    def alone(self) -> Mesh:
        """One rank along every axis."""
        return graph_mesh("d1")

    def legal(self, nodes: Nodes, _: StrategyFilter) -> Iterator[Mesh]:
        """Meshes of all devices."""
        return iter(legal_meshes(self.workload.graph(), math.prod(nodes)))


class ProgramStrategies(StrategyKind):
    """The mesh that a program is written for."""

    workload: ProgramSpec

    def read(self, written: Written, _: Nodes | None) -> None:
        """Nothing, of its own mesh; StrategyError for another one."""
        if written not in (ANY, str(self.alone)):
            raise StrategyError(f"strategy: {GIVEN}")

    @property
    def alone(self) -> Mesh:
        """Its own, on as many devices as it has."""
        return mesh_of(self.workload.program)

    def legal(self, _: Nodes, __: StrategyFilter) -> Iterator[Mesh]:
        """StrategyError: nothing divides a program."""
        raise StrategyError(f"strategy: {GIVEN}")
