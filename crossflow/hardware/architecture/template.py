"""Architecture templates as files: generated ones (budgets and technology) and datasheet ones (published figures) [1]_.

References
----------
.. [1] Ardalani et al., "DeepFlow", ACM TODAES 29(2), 2024, Sec. 4.2 and 4.3.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import BeforeValidator, Field, create_model, model_validator

from crossflow.base.arrays import Array, points
from crossflow.base.files import FileModel, NamedFileModel, one_of
from crossflow.base.formats import with_like
from crossflow.base.limits import DEVICES, Finite, Flag, Whole
from crossflow.base.paths import quantity_at
from crossflow.base.units import (
    Area,
    AreaOrZero,
    Bandwidth,
    CarbonIntensity,
    Duration,
    EnergyPerBit,
    EnergyPerFlop,
    Frequency,
    Information,
    Overhead,
    PositiveCount,
    PositiveRatio,
    PositiveShare,
    Power,
    Quantity,
    Ratio,
    Rent,
    Share,
    Throughput,
    Time,
    parse,
)
from crossflow.hardware.architecture.execution import Execution
from crossflow.hardware.architecture.network import JOINED, NetworkLevel, NetworkSpec, refusal
from crossflow.hardware.architecture.room import Room
from crossflow.hardware.technology.components import Compute, Link, OffChip, OnChip, TypeName

Scope = Literal["bundle", "global"]
ONE = points(1.0)
TWICE, ROUNDED = 2.01, 1.005  # rate with half of the work left over that without, at most; rounding of printed rates [1]
BUDGETS = ("area", "power_shares", "perimeter")  # what is divided among the components of a device
# Parts of a system that are not of its device.
MEMORY_KINDS = ("HBM", "GDDR")  # by which published devices that nobody fitted are of one kind or of different ones
NOT_FREE = ("microarchitecture", "technology", "network", "room", "operation", "host", "node_load", "node_power", "pools")
Dataflow = Literal["weight", "activation", "output", "best"]
# The pool whose devices read the prompts of a service. Others hold stages of a model that is trained, and say how many devices they have,
# or further engines of a service, whose workers say it.
READING, FEEDING, ENCODING = "prefill", "experts", "encode"
PoolName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
NO_MEMORY = "none"  # in the place of a library entry: a chip without main memory, whose farthest on-chip level holds everything
LEVELS = ("registers", "l1", "l2", "l3", "l4", "memory")


MEMORY_FIELDS = ("memory_utilisation", "memory_static_share")  # of a generated system, without meaning where it has no main memory
LevelName = Annotated[str, one_of("a memory level", LEVELS)]


def is_none(memory: object) -> bool:
    """Whether a name of `technology.memory` or `technology.second_memory` says that there is none, in any letter case."""
    return isinstance(memory, str) and memory.strip().lower() == NO_MEMORY


def _partial(model: type[FileModel], called: str) -> type[FileModel]:
    """Model with the same fields, each optional: what a template or scenario may change in a component. `called` is its name here."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        annotation = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[name] = (annotation | None, None)  # type: ignore[operator]
    return create_model(called, __base__=FileModel, __module__=__name__, **fields)


ComputeChanges, OnChipChanges = _partial(Compute, "ComputeChanges"), _partial(OnChip, "OnChipChanges")
MemoryChanges, LinkChanges = _partial(OffChip, "MemoryChanges"), _partial(Link, "LinkChanges")


class Host(FileModel):
    """Main memory of a node beside its devices, which share it evenly."""

    capacity: Information = Field(description="main memory of a node")
    bandwidth: Bandwidth = Field(description="peak rate of a node's main memory, all channels of all sockets")
    utilisation: PositiveShare = Field(description="share of that rate which an optimizer's update on all cores reaches")


class OperationSpec(FileModel):
    """Operation of a system; what is absent is not known. `crossflow.hardware.architecture.run_cost` turns it into the cost of a run."""

    price: Rent | None = Field(default=None, description="rent of one device, its share of the node included")
    device_power: Power | None = Field(default=None, description="power of one device under load; its TDP where absent")
    host_power: Power | None = Field(default=None, description="power of a node beside its devices: processors, memory, network, fans")
    pue: Overhead | None = Field(
        default=None, description="power usage effectiveness: power of the data centre over that of its nodes; 1 where absent"
    )
    carbon_intensity: CarbonIntensity | None = Field(
        default=None, description="CO2-equivalent that the electricity of the data centre emits per energy, such as 400 g/kWh"
    )
    lifetime: Duration | None = Field(
        default=None, description="time in use over which a generated device pays off the carbon of making it, such as 5 years"
    )


class NodeLoad(FileModel):
    """What a node draws while it runs: (base + (1 + fans) x what its devices draw) / supply."""

    base: Power = Field(description="power of processors, memory, network cards, disks and switches of a node")
    fans: Ratio = Field(description="power of the fans over that of the devices, whose heat they carry away")
    supply: PositiveShare = Field(description="power behind the power supplies over power at the wall")


def fills(devices: int, node: int) -> bool:
    """Whether devices fill whole nodes, or are a part of one.

    >>> [fills(n, 8) for n in (2, 8, 12, 16)]
    [True, True, False, True]
    """
    return devices <= node or devices % node == 0


def part_of_nodes(devices: int, node: int) -> int | None:
    """How many devices of each node are used where that many fill no whole nodes, half of them or more; None where that cannot be.

    >>> part_of_nodes(512, 72), part_of_nodes(100, 8), part_of_nodes(13, 8)
    (64, 5, None)
    """
    parts = (devices // nodes for nodes in range(-(-devices // node), 2 * devices // node + 1) if devices % nodes == 0)
    return next(parts, None)


class SystemFields(NamedFileModel):
    """What generated and datasheet systems have in common."""

    name: str
    title: str = ""
    notes: str = ""
    sources: Mapping[str, str] = {}
    execution: Execution
    network: NetworkSpec
    devices: Whole | None = Field(default=None, gt=0, le=DEVICES, description="accelerators in the system")
    nodes: Whole | None = Field(default=None, gt=0, le=DEVICES, description="packages or servers in the system")
    devices_per_node: Whole = Field(default=1, gt=0, le=100_000)
    devices_per_host: Whole | None = Field(
        default=None, gt=0, le=100_000,
        description="devices of one operating system, where a node has several: 4 in a rack of 72; launch files start processes on hosts",
    )  # fmt: skip
    max_nodes: PositiveCount | None = None
    measured: tuple[str, ...] = Field(
        default=(),
        description="kinds of measurement of this very device behind its parameters, or that it was compared with (latents: services with "
        "latent attention), or a generated one",
    )
    node_power: Power | None = None
    node_load: NodeLoad | None = Field(default=None, description="what a node draws while it runs, by what its devices draw")
    profile: str | None = Field(
        default=None,
        description="file of measured event times of this system, beside its own file; those of a scenario's `profile` come first",
    )
    nearby: Flag = Field(
        default=False, description="whether kernels whose sizes lie among those of measured kernels in `profile` take their time from these"
    )
    host: Host | None = Field(default=None, description="the host's memory, where a strategy may keep what devices have no room for")
    operation: OperationSpec | None = Field(default=None, description="what it takes to run the system: rent, power of the hosts, PUE")
    pools: Mapping[PoolName, SystemFields] = Field(
        default={},
        description="systems of other devices for a part of the work, each a section as `system` itself: `prefill` for the workers of "
        "`serving.prefill`, which say how many devices it has; `experts` for the devices of `serving.experts`, whose strategy says it; "
        "`encode` for the encoders of `serving.images.encode`, which say it; any other name of a service for the engines of "
        "`serving.pools.NAME`, which say it too; of a transformer that is trained any other name, for further stages of its pipeline, "
        "which follow those on the system's own devices in the order in which pools are written",
    )

    @property
    def places(self) -> Mapping[str, SystemSpec]:
        """Its kinds of devices by their path in a scenario: `system`, and its pools, such as `system.pools.prefill`."""
        pools = {f"system.pools.{name}": pool for name, pool in self.pooled.items()}
        return {"system": cast("SystemSpec", self), **pools}

    @property
    def pooled(self) -> Mapping[str, SystemSpec]:
        """Its pools by name; each is a generated or a datasheet system."""
        return cast("Mapping[str, SystemSpec]", self.pools)

    @property
    def staged(self) -> Mapping[str, SystemSpec]:
        """Pools by name whose devices hold stages of a pipeline, as the system's own do."""
        return {name: pool for name, pool in self.pooled.items() if name != READING and pool.counted}

    @property
    def kinds(self) -> tuple[int, ...]:
        """Accelerators of each kind among which stages are shared out: the system's own, then those of pools; none where all are alike."""
        return (self.device_count, *(pool.device_count for pool in self.staged.values())) if self.staged else ()

    @property
    def whole_count(self) -> int:
        """Accelerators of the system and of the pools that hold stages."""
        return sum(self.kinds) or self.device_count

    @property
    def counted(self) -> bool:
        """Whether it says how many accelerators it has."""
        return self.devices is not None or self.nodes is not None

    @property
    def mesh(self) -> tuple[int, int]:
        """Accelerators of one node, and nodes, of all; of unlike nodes as many accelerators as divide each of them."""
        sizes = [min(one.devices_per_node, one.device_count) for one in (self, *self.staged.values())]
        node = math.gcd(*sizes)
        return node, self.whole_count // node

    @property
    def peers(self) -> int | None:
        """Devices of a node that each has links of its own to, as it is built; None where a switch or neighbours join them. [1]"""
        joined = self.network.intra.fabric in JOINED and self.network.intra.wiring == "fully-connected" and self.devices_per_node > 1
        return self.devices_per_node - 1 if joined else None

    def in_words(self, devices: int) -> str:
        """So many of its devices in words, such as `8 devices of dgx-h100`: the name of a system is often that of a whole node."""
        return f"{devices:,} devices of {self.name}" if devices != 1 else f"one device of {self.name}"

    @property
    def device_count(self) -> int:
        """Accelerators in the system, from `devices` or from `nodes`."""
        if self.devices is not None:
            return self.devices
        return (self.nodes or 1) * self.devices_per_node

    @model_validator(mode="after")
    def _hosts_fill_nodes(self) -> SystemFields:
        host = self.devices_per_host
        if host is not None and self.devices_per_node % host:
            raise ValueError(f"devices_per_host = {host} does not divide devices_per_node = {self.devices_per_node}")
        return self

    @model_validator(mode="after")
    def _devices_fill_nodes(self) -> SystemFields:
        if self.device_count > DEVICES:
            raise ValueError(f"nodes: {self.nodes} nodes of {self.devices_per_node} devices are more than {DEVICES:,} devices")
        if self.devices is not None and self.nodes is not None and self.devices != self.nodes * self.devices_per_node:
            raise ValueError(
                f"devices: devices = {self.devices} but nodes x devices_per_node = {self.nodes} x {self.devices_per_node}"
                f" = {self.nodes * self.devices_per_node}; give one of the two"
            )
        if self.devices is not None and not fills(self.devices, self.devices_per_node):
            part = part_of_nodes(self.devices, self.devices_per_node)
            raise ValueError(
                f"devices: {self.devices:,} devices do not fill nodes of {self.devices_per_node};"
                f" give a multiple of {self.devices_per_node}, or fewer than that"
                + (f", or devices_per_node: {part} to use {part} of each" if part else "")
            )
        return self


class TechnologyChoice(FileModel):
    """Names of the library entries that a generated design is made of."""

    logic: str
    compute: str
    memory: str = Field(description="main memory; `none` for a chip whose farthest on-chip level holds everything")
    second_memory: str | None = Field(
        default=None,
        description="a second memory beside main memory, on which `far` keeps tensors; `none` for a chip without one, whose shares of the"
        " budgets for it go to main memory",
    )
    intra_link: str
    inter_link: str
    intra_switch: str | None = Field(
        default=None,
        description="switch of the network inside nodes: tiers, latency, power and price follow from its ports; where absent, the"
        " latency and the price of a lane are those of the link, whatever the number of devices",
    )
    inter_switch: str | None = Field(
        default=None, description="switch of the network between nodes, likewise; of an optical-torus the optical switches"
    )
    intra_uplink: str | None = Field(
        default=None,
        description="link between tiers of switches inside nodes, where it is another one than `intra_link`: copper in racks and optics"
        " between them; leaves then have no more devices than `intra_link` reaches",
    )
    inter_uplink: str | None = Field(
        default=None,
        description="the same between nodes; also between groups of a dragonfly, and of an optical-torus the links that leave nodes",
    )
    die_link: str = Field(default="UCIe-advanced", description="link between the dies of a chip that is divided (budgets.chiplets)")
    stacked_logic: str = Field(default="N7", description="logic node of dies that stand on the compute die (levels.NAME.stacked_area)")
    bond: str = Field(default="hybrid-bond", description="how dies and memory devices that stand on the compute die are bonded to it")
    substrate: str
    delivery: str | None = Field(
        default=None, description="how power reaches the transistors, an entry of the library; as the logic node has it where absent"
    )


class OnChipLevel(FileModel):
    """A level of on-chip memory: its component, who shares it, and how much of its bandwidth kernels reach."""

    component: str
    scope: Scope
    utilisation: Share
    slices: PositiveCount = Field(default=ONE, description="parts of one instance that are read at once, as far as its area holds them")
    static_share: Share = Field(
        default=points(0.05),
        description="share of the level's power kept for leakage: capacity stops where it is used up, the rest feeds accesses",
    )
    slice_width: Information | None = Field(
        default=None, description="what one slice delivers in a cycle, its port as wide; that of the component where absent"
    )
    frequency: Frequency | None = Field(
        default=None,
        description="clock of the slices, at the voltage that it takes; at most that of the highest voltage of the compute unit; that of "
        "the component where absent",
    )
    stacked_area: AreaOrZero = Field(
        default=points(0.0), description="area of dies on the compute die that hold more of its bits, one die on each compute die"
    )


class Ends(FileModel):
    """A quantity between two ends, or whole numbers of things."""

    start: str | Whole | Finite = Field(alias="from", description="least value")
    stop: str | Whole | Finite = Field(alias="to", description="largest value")
    scale: Literal["linear", "log"] = Field(default="linear", description="along which values lie evenly")
    source: str = Field(default="", description="where the ends are from, a key of the file's `sources`")
    note: str = Field(default="", description="what there is to say of the ends")

    def read(self, quantity: Quantity) -> tuple[float, float]:
        """Both ends in SI units; ValueError where they are none, or none that rise."""
        low, high = (quantity.checked(parse(end, quantity.unit), end) for end in (self.start, self.stop))
        if not low < high:
            raise ValueError(f"from must be less than to, got {self.start} and {self.stop}")
        if self.scale == "log" and low <= 0:
            raise ValueError("a logarithmic scale needs ends greater than zero")
        return low, high


def check_sparse(field: str, sparse: Mapping[str, Array], dense: str, rates: Mapping[str, Array]) -> None:
    """ValueError for rates of products with 2:4 sparsity that no unit has: half of the work is left, so that twice the rate is most."""
    for dtype, rate in sparse.items():
        if dtype not in rates:
            raise ValueError(f"{field}: {dtype}: {dense} has no {dtype}; give it there, too, or leave it out here")
        if np.any(rate > TWICE * rates[dtype]) or np.any(rate * ROUNDED < rates[dtype]):
            raise ValueError(f"{field}: {dtype}: 2:4 sparsity leaves half of the work; give from one to two times the rate without it")


class MatrixUnit(FileModel):
    """Shape of the multiplier array of one unit, where it is another one than that of the library."""

    height: PositiveCount | None = Field(default=None, description="rows of the array")
    width: PositiveCount | None = Field(default=None, description="columns of the array")


ReadWay = Literal["direct", "staged"]
WAY = "how it is read: direct by kernels; staged, copied into main memory one part of a layer ahead"


class SecondMemoryUse(FileModel):
    """How a generated device uses the second memory that `technology.second_memory` names."""

    room: Share = Field(default=points(0.5), description="share of the package area beside the chip that its devices take")
    utilisation: Share = Field(default=points(0.9), description="highest share of its peak bandwidth that is reached")
    static_share: Share = Field(default=points(0.1), description="share of its power kept for idle and refresh: it bounds the capacity")
    way: ReadWay = Field(default="direct", description=WAY)


USUAL_USE = SecondMemoryUse()


def _usual(given: Any) -> Any:
    """The usual use of a second memory where a sweep or a section says null, as for a point without one."""
    return USUAL_USE if given is None else given


class SecondMemoryFigures(FileModel):
    """A second memory as published, the share of one device."""

    title: str = ""
    capacity: Information = Field(description="capacity of one device's share")
    bandwidth: Bandwidth = Field(description="peak rate of reads, of the memory or of the link to it, whichever is less")
    write_bandwidth: Bandwidth | None = Field(default=None, description="peak rate of writes; that of reads where absent")
    utilisation: PositiveShare = Field(default=ONE, description="highest share of these rates that is reached")
    latency: Time = Field(default=points(1e-6), description="time of a read whose address was not known before; 1 us where absent")
    energy: EnergyPerBit = Field(description="energy of a bit read, with its way to the device")
    write_energy: EnergyPerBit | None = Field(default=None, description="energy of a bit written; that of reads where absent")
    page: Information = Field(default=ONE, description="bytes that are read together, of which a smaller piece takes one")
    endurance: PositiveCount | None = Field(default=None, description="writes that a cell stands; it does not wear out where absent")
    way: ReadWay = Field(default="staged", description=WAY)


class BudgetShares(FileModel):
    """Shares of one budget by component; on-chip levels by their names."""

    compute: Share | None = None
    memory: Share | None = None
    second_memory: Share | None = None
    intra_link: Share | None = None
    inter_link: Share | None = None
    on_chip: Mapping[str, Share] = {}

    def of(self, component: str) -> Array:
        """Share of a component, by its role or the name of its level; nothing where it has none. [1]"""
        value = self.on_chip.get(component, getattr(self, component, None))
        return np.zeros(1) if value is None else value


class TechnologyDivision(FileModel):
    """Shares of the budgets for one logic node and one memory."""

    logic: str = Field(description="logic node that the shares are for")
    memory: str = Field(description="memory that the shares are for")
    area: BudgetShares = Field(default=BudgetShares(), description="shares of the area; the template's own where absent")
    power_shares: BudgetShares = Field(default=BudgetShares(), description="shares of the power, likewise")
    perimeter: BudgetShares = Field(default=BudgetShares(), description="shares of the die edge, likewise")
    microarchitecture: Mapping[str, str | Whole | Finite | Mapping[str, Any]] = Field(
        default={}, description="values of the paths that the template's `microarchitecture` names, likewise"
    )


class Budgets(FileModel):
    """Area, power and perimeter of one accelerator and how they are divided (Sec. 4.3, Fig. 4)."""

    node_area: Area = Field(description="package area of one accelerator: its die and its memory devices")
    chip_area: Area = Field(description="area of the compute die, or of all of them")
    chiplets: PositiveCount = Field(default=points(1.0), description="compute dies of equal size into which the chip is divided")
    power: Power = Field(description="power that the accelerator may draw")
    peak_power: Power | None = Field(
        default=None,
        description="power that the shares divide, where components are built for more than they may draw at once;"
        " kernels that would draw more than `power` run slower",
    )
    area: BudgetShares
    power_shares: BudgetShares
    perimeter: BudgetShares
    divisions: tuple[TechnologyDivision, ...] = Field(
        default=(),
        description="shares by logic node and memory, which replace the three above where they name the system's own; "
        "`{file: TABLE.csv, source: ...}` reads them from a table beside the template",
    )

    @model_validator(mode="after")
    def _rows_differ(self) -> Budgets:
        named = Counter((row.logic, row.memory) for row in self.divisions)
        if twice := next((pair for pair, count in named.items() if count > 1), None):
            raise ValueError(f"divisions: two rows for {twice[0]} with {twice[1]}")
        return self


CHANGED = ("compute", "memory", "second_memory", "intra_link", "inter_link")  # roles of the technology whose entries a system may change


class ComponentChanges(FileModel):
    """Figures of library components that a template or a scenario replaces."""

    compute: ComputeChanges | None = None  # type: ignore[valid-type]
    on_chip: Mapping[str, OnChipChanges] = {}  # type: ignore[valid-type]
    memory: MemoryChanges | None = None  # type: ignore[valid-type]
    second_memory: MemoryChanges | None = None  # type: ignore[valid-type]
    intra_link: LinkChanges | None = None  # type: ignore[valid-type]
    inter_link: LinkChanges | None = None  # type: ignore[valid-type]


class GeneratedSystem(SystemFields):
    """A system whose accelerators are generated from technology, a hierarchy and budgets."""

    kind: Literal["generated"]
    techlib: str = "standard"
    technology: TechnologyChoice
    components: ComponentChanges = ComponentChanges()
    devices_per_package: Whole | None = Field(
        default=None, gt=0, description="accelerators on one substrate, where a node holds several packages; all of a node where absent"
    )
    bundles: PositiveCount = Field(description="SMs, CUs or cores of one device; a larger compute area makes each of them wider")
    harvest: Ratio = Field(
        default=points(0.0),
        description="bundles on the dies that are switched off, over those that work (12 / 132 on H100): they take area and no power, and"
        " a die with so many broken ones is sold",
    )
    matrix_unit: MatrixUnit | None = Field(
        default=None, description="another array of multipliers for each unit; its area, power and rate follow"
    )
    levels: Mapping[LevelName, OnChipLevel] = Field(description="on-chip levels from the nearest to the farthest")
    memory_utilisation: Share = Field(
        default=ONE, description="highest share of the peak memory bandwidth that kernels reach; needed where there is main memory"
    )
    memory_static_share: Share = Field(
        default=points(0.1),
        description="share of main memory's power kept for idle and refresh: it bounds their capacity, and the rest feeds their pins",
    )
    second_memory: Annotated[SecondMemoryUse, BeforeValidator(_usual)] = Field(
        default=USUAL_USE, description="how the second memory is used, where there is one"
    )
    shared_power: Flag = Field(default=False, description="whether compute also gets the power that other components cannot use")
    dataflow: Dataflow = "best"
    rates: Mapping[TypeName, Ratio] = Field(
        description="matrix rate by data type, over the library's nominal rate; what the unit was not published with takes area and power"
    )
    sparse_rates: Mapping[TypeName, Ratio] = Field(
        default={},
        description="the same of products with weights of 2:4 sparsity, those that are left out counted: at most twice the rate; as of"
        " other weights where absent",
    )
    vector_rates: Mapping[TypeName, Ratio] = Field(description="rate of pointwise work by data type, over the same")
    budgets: Budgets
    room: Room = Field(
        default=Room(), description="where devices stand: lengths of links follow, for switches that are named and links that have a reach"
    )
    microarchitecture: Mapping[str, Ends] = Field(
        default={},
        description="quantities that searches may choose beside the division of the budgets, by path below `system`, such as "
        "`levels.l2.slices: {from: 24, to: 400}`",
    )

    @model_validator(mode="after")
    def _sparse_rates_fit(self) -> GeneratedSystem:
        check_sparse("sparse_rates", self.sparse_rates, "rates", self.rates)
        return self

    @property
    def product_rates(self) -> Mapping[str, Array]:
        """Rate of matrix products by data type, over the library's nominal one, with the types that multiply like a listed one. [1]"""
        return with_like(self.rates)

    @property
    def tiered(self) -> bool:
        """Whether there is a second memory."""
        return self.technology.second_memory is not None and not is_none(self.technology.second_memory)

    @property
    def on_chip_only(self) -> bool:
        """Whether there is no memory beside or on the compute die: the farthest on-chip level is main memory."""
        return is_none(self.technology.memory)

    @property
    def packaged(self) -> int:
        """Accelerators that share a substrate."""
        return self.devices_per_node if self.devices_per_package is None else self.devices_per_package

    @model_validator(mode="after")
    def _packages_fill_nodes(self) -> GeneratedSystem:
        if self.devices_per_node % self.packaged:
            raise ValueError(
                f"devices_per_package: nodes of {self.devices_per_node} devices cannot be filled with packages of"
                f" {self.devices_per_package}"
            )
        return self

    @model_validator(mode="after")
    def _shares_fit(self) -> GeneratedSystem:
        if not self.levels:
            raise ValueError("levels: at least one on-chip level is needed")
        if self.execution.chip_power is not None:
            raise ValueError("execution: chip_power: the clock of a generated device follows from its budgets; leave it out")
        if self.execution.working_share is not None:
            raise ValueError("execution: working_share: a generated device has the power of its parts; leave it out")
        for field, what in zip(BUDGETS, ("chip area", "power", "perimeter"), strict=True):
            shares: BudgetShares = getattr(self.budgets, field)
            given = (shares.compute, shares.memory, shares.second_memory, shares.intra_link, shares.inter_link, *shares.on_chip.values())
            total = sum(float(value[0]) for value in given if value is not None and value.size == 1)
            if total > 1 + 1e-9:
                raise ValueError(f"budgets.{field}: the shares of the {what} add up to {total:.4g}, more than 1")
            for level in shares.on_chip:
                if level not in self.levels:
                    raise ValueError(f"budgets.{field}.on_chip: no level '{level}'; levels: {', '.join(self.levels)}")
        return self

    @model_validator(mode="after")
    def _memory_is_there_or_not(self) -> GeneratedSystem:
        budgets, utilised = self.budgets, "memory_utilisation" in self.model_fields_set
        if not self.on_chip_only:
            if not utilised:
                raise ValueError("memory_utilisation: the key is missing; a system with main memory needs it (technology.memory)")
            return self
        shares = [f"budgets.{name}.memory" for name in BUDGETS if getattr(budgets, name).memory is not None]
        figures = [name for name in MEMORY_FIELDS if name in self.model_fields_set]
        changes = ("components.memory",) if self.components.memory is not None else ()
        if given := [*shares, *figures, *changes]:
            raise ValueError(f"{given[0]}: technology.memory is none, and nothing goes to memory that is not there; leave it out")
        return self

    @model_validator(mode="after")
    def _second_memory_is_named(self) -> GeneratedSystem:
        if self.technology.second_memory is not None and not (self.on_chip_only and not self.tiered):
            if self.on_chip_only:
                raise ValueError("technology.second_memory: there is no first one (technology.memory: none); name it as technology.memory")
            return self
        shares = [f"budgets.{name}.second_memory" for name in BUDGETS if getattr(self.budgets, name).second_memory is not None]
        changes = ("components.second_memory",) if self.components.second_memory is not None else ()
        said = "second_memory" in self.model_fields_set and self.second_memory is not USUAL_USE
        use = ("second_memory",) if said else ()
        if given := [*shares, *changes, *use]:
            raise ValueError(
                f"{given[0]}: there is no second memory; name one as technology.second_memory, or leave it out"
                " (`technology.second_memory: none` gives its shares to main memory)"
            )
        return self

    @property
    def first_room(self) -> Array:
        """Share of the package area beside the chip that is left for main memory. [1]"""
        return np.asarray(1.0 - self.second_memory.room) if self.tiered else ONE

    @model_validator(mode="after")
    def _microarchitecture_is_of_the_device(self) -> GeneratedSystem:
        free: dict[str, Quantity] = {}
        for path, ends in self.microarchitecture.items():
            quantity = None if path.split(".")[0] in NOT_FREE else quantity_at(self, path.split("."))
            if quantity is None:
                raise ValueError(f"microarchitecture: {path} is no quantity of the device, such as bundles or levels.l2.slices")
            try:
                ends.read(quantity)
            except ValueError as error:
                raise ValueError(f"microarchitecture.{path}: {error}") from None
            free[path] = quantity
        for row in self.budgets.divisions:
            for path, value in row.microarchitecture.items():
                if path not in free:
                    raise ValueError(f"budgets.divisions: {path} is none of the paths of `microarchitecture`")
                try:
                    free[path].read(value)
                except ValueError as error:
                    raise ValueError(f"budgets.divisions: {row.logic} with {row.memory}: {path}: {error}") from None
        return self

    def free(self, path: str) -> Quantity:
        """The quantity at a path of `microarchitecture`."""
        found = quantity_at(self, path.split("."))
        assert found is not None  # the file is checked
        return found

    @model_validator(mode="after")
    def _links_follow_from_technology(self) -> GeneratedSystem:
        for name, level in (("intra", self.network.intra), ("inter", self.network.inter)):
            for field in ("bandwidth", "latency"):
                if getattr(level, field) is not None:
                    raise ValueError(
                        f"network.{name}.{field}: that of a generated device follows from technology.{name}_link and its budgets;"
                        " leave it out, or change techlib.link"
                    )
        return self

    @model_validator(mode="after")
    def _switches_have_a_wiring(self) -> GeneratedSystem:
        for name in ("intra", "inter"):
            switch, uplink = (getattr(self.technology, f"{name}_{role}") for role in ("switch", "uplink"))
            problem = refusal(name, getattr(self.network, name), switch=switch, uplink=uplink)
            if problem is not None:
                raise ValueError(problem)
        return self


class DatasheetLevel(FileModel):
    """A memory level as published; capacity of one instance, bandwidth of the whole device."""

    scope: Literal["unit", "device"]
    capacity: Information
    bandwidth: Bandwidth | None = None
    latency: Time | None = None
    inline_ecc: Share | None = Field(
        default=None, description="share of its capacity and traffic that check bits take, of memory without chips of their own for them"
    )


class DatasheetPower(FileModel):
    """Board power as published."""

    tdp: Power
    idle: Power | None = None
    active: Power | None = Field(default=None, description="power in a run while nothing is computed, clocks up; `idle` where absent")


class DatasheetEnergy(FileModel):
    """Energies of a datasheet device, where they are to differ from those of its technology."""

    flop: EnergyPerFlop | None = None
    memory: EnergyPerBit | None = None
    intra_link: EnergyPerBit | None = None
    inter_link: EnergyPerBit | None = None


class DatasheetTechnology(FileModel):
    """Names of the library entries whose energies hold for a datasheet device."""

    logic: str
    memory: str = Field(description="main memory; `none` for a device whose last level in `levels`, on the chip, holds everything")
    link: str


class DatasheetSystem(SystemFields):
    """A system of devices known by their published figures."""

    kind: Literal["datasheet"]
    vendor: str = ""
    family: str
    generation: str = Field(default="", description="generation of the device, where its family's parameters serve several")
    year: Whole | None = None
    techlib: str = "devices"
    technology: DatasheetTechnology
    units: PositiveCount = Field(description="independently scheduled compute units: SMs, CUs")
    clock: Frequency = Field(description="clock at which the peak rates hold")
    throughput: Mapping[TypeName, Throughput]
    sparse_speedup: Mapping[TypeName, Ratio] = Field(
        default={},
        description="peak rate of products with weights of 2:4 sparsity, those that are left out counted, over that of others: from 1 to 2;"
        " 1 where absent",
    )
    held_to: PositiveShare = Field(
        default=ONE,
        description="share of the 16-bit rate for which the matrix units are made that the maker lets them reach; caches feed all of it",
    )
    vector_throughput: Mapping[TypeName, Throughput] = {}
    exponentials: PositiveRatio | None = Field(
        default=None,
        description="exponentials a clock of one compute unit, which softmax takes in fused attention; as many as it wants where absent",
    )
    levels: Mapping[LevelName, DatasheetLevel]
    power: DatasheetPower
    energy: DatasheetEnergy = DatasheetEnergy()
    chip_area: Area | None = None
    second_memory: SecondMemoryFigures | None = Field(
        default=None, description="a second memory beside main memory, on which `far` keeps tensors, such as that of the processor"
    )
    memory_utilisation: Share = Field(description="highest share of the peak bandwidth of main memory that a kernel reaches")

    @model_validator(mode="after")
    def _memory_is_complete(self) -> DatasheetSystem:
        if self.execution.blocks:
            raise ValueError("execution: blocks: tiles of a device with published figures are those of its library; give tiles")
        if is_none(self.technology.memory):
            self._check_on_chip_only()
        elif "memory" not in self.levels or self.levels["memory"].bandwidth is None:
            raise ValueError("levels: a level 'memory' with capacity and bandwidth is needed")
        for name in ("intra", "inter"):
            level: NetworkLevel = getattr(self.network, name)
            if (level.tiers, level.onward, level.spare) != (None, None, None):
                words = "tiers, onward and spare are of generated systems, whose switches are named; leave them out"
                raise ValueError(f"network.{name}: {words}")
        if self.operation is not None and self.operation.lifetime is not None:
            raise ValueError("operation.lifetime: the carbon of making a datasheet device is not known; leave it out")
        others = [name for name, level in self.levels.items() if name != "memory" and level.inline_ecc is not None]
        if others:
            raise ValueError(f"levels: {others[0]}: inline_ecc applies to main memory only; caches keep check bits beside their data")
        return self

    @model_validator(mode="after")
    def _sparse_rates_fit(self) -> DatasheetSystem:
        dense = {dtype: rate / rate for dtype, rate in self.throughput.items()}
        check_sparse("sparse_speedup", self.sparse_speedup, "throughput", dense)
        return self

    def _check_on_chip_only(self) -> None:
        if "memory" in self.levels:
            raise ValueError("levels: memory: technology.memory is none, so the farthest on-chip level is main memory; leave it out")
        if not self.levels:
            raise ValueError("levels: at least one on-chip level is needed")
        if self.main[1].bandwidth is None:
            raise ValueError(f"levels: {self.main[0]}: it is main memory here (technology.memory: none) and needs a bandwidth")

    @property
    def memory_kind(self) -> str:
        """Kind of the main memory: HBM of accelerators in data centres, GDDR of cards; nothing where it is another."""
        return next((kind for kind in MEMORY_KINDS if self.technology.memory.upper().startswith(kind)), "")

    @property
    def tiered(self) -> bool:
        """Whether there is a second memory."""
        return self.second_memory is not None

    @property
    def main(self) -> tuple[str, DatasheetLevel]:
        """Main memory by name: the level `memory`, or the last on-chip one where technology.memory is none."""
        name = list(self.levels)[-1] if is_none(self.technology.memory) else "memory"
        return name, self.levels[name]

    @property
    def product_rates(self) -> Mapping[str, Array]:
        """Peak rate of matrix products by data type: of the matrix units, or of the vector units for types that those lack. [flop/s]"""
        rates = {**self.throughput, **{dtype: rate for dtype, rate in self.vector_throughput.items() if dtype not in self.throughput}}
        return with_like(rates)

    @property
    def sparse_rates(self) -> Mapping[str, Array]:
        """Peak rate of products whose weights have 2:4 sparsity, of types that have units for it. [flop/s]"""
        return with_like({dtype: speedup * self.throughput[dtype] for dtype, speedup in self.sparse_speedup.items()})


SystemSpec = GeneratedSystem | DatasheetSystem
