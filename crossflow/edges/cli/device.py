"""A device on a page: what it can do, what limited each part of it, and how much of its budgets it uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from crossflow.base.units import ZERO_CELSIUS, show
from crossflow.edges.cli import page
from crossflow.edges.cli.page import count, number, percent
from crossflow.hardware.architecture.model import Architecture, BudgetUse, Level, Port, SecondMemory

UNITS = {"area": "m2", "power": "W", "perimeter": "m"}
SLOTS = {"intra": "link in node", "inter": "link to nodes"}
SWITCHES = {"intra": "switches in node", "inter": "switches outside"}
FIGURES = ("switches", "tiers", "hops", "length", "spare")  # of the switches of a level


def derived(device: Architecture) -> Group:
    """The figures of a device, as generated or as published."""
    kind = "derived from its budgets" if device.usage else "from its datasheet"
    parts = [
        page.heading("Architecture", aside=f"one device, {kind}"),
        page.indented(page.pairs(_figures(device))),
        Text(),
        page.indented(_levels(device)),
    ]
    problems = [sentence for mask, sentence in device.problems if mask.any()]
    return Group(*parts, *(page.indented(Text(f"cannot be built: {sentence}", "red")) for sentence in problems))


def _figures(device: Architecture) -> dict[str, RenderableType]:
    power, static = number(device.maximum_power), number(device.static_power)
    voltage = "" if device.voltage is None else f", {show(number(device.voltage), 'V')}"
    rows: dict[str, RenderableType] = {
        "products": _rates(device.throughput),
        "pointwise": _rates(device.vector_throughput),
        "units": _units(device),
        "runs at": show(number(device.frequency), "Hz") + voltage + _sustained(device),
        "power": f"at most {show(power, 'W')}, {show(static, 'W')} of it at rest{_warm(device)}{_bound(device)}",
    }
    rows |= {SWITCHES[name]: told for name in SWITCHES if (told := _switches(device, name))}
    if number(device.network_power) or "network.cost" in device.networks:
        rows["its network"] = _share(device)
    limit = device.bound_by.get("compute")
    return rows if limit is None else rows | {"limited by": limit}


def _warm(device: Architecture) -> str:
    """How warm its dies are at that power, where their cooling is known."""
    return "" if device.temperature is None else f"; its dies are then at {number(device.temperature) - ZERO_CELSIUS:.0f} C"


def _switches(device: Architecture, name: str) -> str:
    """Named switches of a network level: tiers, the longest way, how many there are; empty where none are named."""
    told = {figure: number(device.networks[key]) for figure in FIGURES if (key := f"{name}.{figure}") in device.networks}
    if not told:
        return ""
    several = (_several(told[figure], one) for figure, one in (("switches", "chip"), ("tiers", "tier"), ("hops", "hop")))
    spare = f", {_several(told['spare'], 'lane')} to spare" if told.get("spare") else ""
    return f"{', '.join(several)} on the longest way, links of at most {told['length']:.3g} m{spare}"


def _several(amount: float, one: str) -> str:
    """A number of things.

    >>> _several(1.0, "tier"), _several(1296.0, "chip")
    ('1 tier', '1,296 chips')
    """
    return f"{count(amount)} {one}{'' if amount == 1 else 's'}"


def _share(device: Architecture) -> str:
    """What a device's share of switches and links draws and costs."""
    price = device.networks.get("network.cost")
    cost = "" if price is None else f", {show(number(price), 'USD')} with its ports"
    return f"{show(number(device.network_power), 'W')} of switches and links a device{cost}"


def _bound(device: Architecture) -> str:
    """What bounds the power of a generated device, where its budget does not."""
    limit = device.bound_by.get("power", "budget")
    return "" if limit == "budget" else f"; limited by {limit}"


def _sustained(device: Architecture) -> str:
    """What the power limit leaves of the clock, where it leaves less."""
    share = number(device.sustained_clock)
    return f"; at the power limit, long products as at {show(share * number(device.frequency), 'Hz')}" if share < 1 else ""


def _rates(rates: Any) -> page.Flow:
    by_rate: dict[str, list[str]] = {}
    for dtype, rate in rates.items():
        by_rate.setdefault(show(number(rate), "flop/s"), []).append(dtype)
    return page.Flow([Text.assemble((", ".join(dtypes), "dim"), " ", rate) for rate, dtypes in by_rate.items()])


def _units(device: Architecture) -> str:
    units, mcus = count(number(device.units)), count(number(device.mcus))
    if not device.usage:  # a datasheet does not tell what its units are made of
        return units
    array = f"{count(number(device.array_height))} x {count(number(device.array_width))} multipliers"
    types = 0.0 if device.types_area is None else number(device.types_area)
    further = f"; {show(types, 'm2')} for types that they were not published with" if types else ""
    return f"{mcus} of {array} in {units} bundles{further}"


def _levels(device: Architecture) -> RenderableType:
    limits = device.bound_by
    header = ["", "capacity", "", "bandwidth", "latency", "limited by" if limits else ""]
    rows = [_level(level, limits.get(level.name, "")) for level in device.levels]
    rows += [_second(device.second, limits.get("second_memory", ""))] if device.second is not None else []
    rows += [_port(name, getattr(device, name), limits.get(f"{name}_link", "")) for name in SLOTS]
    return page.grid(rows, right=(1, 3, 4), header=header, wraps=5)


def _level(level: Level, limit: str) -> list[RenderableType]:
    instances, capacity = number(level.instances), number(level.capacity)
    stacked = number(level.stacked) * instances
    parts = [f"{count(instances)} x {show(capacity, 'B', 3)}"] if instances != 1 else []
    parts += [f"{show(stacked, 'B', 3)} stacked"] if stacked else []
    each = Text(", ".join(parts), "dim")
    speed = [_finite(level.bandwidth, "B/s"), _finite(level.latency, "s")]
    return [level.name, show(capacity * instances, "B"), each, *speed, limit]


def _second(second: SecondMemory, limit: str) -> list[RenderableType]:
    """The second memory, with how it is read, and its rate of writes where that is another one."""
    read, write = number(second.bandwidth), number(second.write_bandwidth)
    told = ["staged" if number(second.staged) else "read directly", *([f"writes {show(write, 'B/s', 3)}"] if write != read else [])]
    each = Text(", ".join(told), "dim")
    return ["second memory", show(number(second.capacity), "B"), each, _finite(read, "B/s"), _finite(second.latency, "s"), limit]


def _port(name: str, port: Port | None, limit: str) -> list[RenderableType]:
    label = SLOTS[name]
    if port is None or number(port.bandwidth) == 0:
        return [label, "", "", Text("none", "dim"), "", ""]
    return [label, "", "", show(number(port.bandwidth), "B/s"), _finite(port.latency, "s"), limit]


def _finite(value: Any, unit: str) -> RenderableType:
    """A figure, or a dash for one that is not published and limits nothing."""
    figure = number(value)
    return show(figure, unit) if 0 < figure < float("inf") else Text("-", "dim")


# ------------------------------------------------------------------------------------------ budgets


def budgets(device: Architecture) -> Group:
    """Bars of what each component uses of its share of area, power and perimeter, in one table where the page has room for it.

    Empty for a datasheet device.
    """
    if not device.usage:
        return Group()
    resources = list(dict.fromkeys(use.resource for use in device.usage))
    components = list(dict.fromkeys(use.component for use in device.usage))
    uses = {(use.component, use.resource): use for use in device.usage}
    tables = [_budgets(device, uses, components, resources)]
    if page.breadth(*tables[0]) > page.columns() - page.MARGIN:
        tables = [_budgets(device, uses, [name for name in components if (name, one) in uses], [one]) for one in resources]
    right = range(2, len(tables[0][1]), 3)
    grids = [page.indented(page.grid(rows, right, header=header)) for rows, header in tables]
    return Group(page.heading("Budgets", aside="used of what each component was given"), *grids)


def _budgets(
    device: Architecture, uses: dict[tuple[str, str], BudgetUse], components: list[str], resources: list[str]
) -> tuple[list[list[RenderableType]], list[str]]:
    """Rows of the use of some resources, and their header."""
    rows: list[list[RenderableType]] = [[name.replace("_", " "), *_cells(uses, name, resources)] for name in components]
    rows.append([Text("all", "bold"), *(cell for resource in resources for cell in _total(device, resource))])
    return rows, ["", *(word for resource in resources for word in (resource, "", ""))]


def _cells(uses: dict[tuple[str, str], BudgetUse], component: str, resources: list[str]) -> Iterator[RenderableType]:
    for resource in resources:
        use = uses.get((component, resource))
        yield from _cell(number(use.used), number(use.budget), resource) if use is not None else ("", "", "")


def _total(device: Architecture, resource: str) -> list[RenderableType]:
    uses = [use for use in device.usage if use.resource == resource]
    return _cell(sum(number(use.used) for use in uses), sum(number(use.budget) for use in uses), resource)


def _cell(used: float, budget: float, resource: str) -> list[RenderableType]:
    unit = UNITS[resource]
    share = used / budget if budget else 0.0
    style = "green" if share < 0.995 else "yellow" if share <= 1 + 1e-9 else "red"
    figure, of = show(used, unit, 3), show(budget, unit, 3)
    if used == 0 or figure.split(" ")[-1] == of.split(" ")[-1]:  # the unit stands after the budget
        figure = figure.split(" ")[0]
    bar = page.bar(share, 8 if page.columns() > 90 else 4, style, track=True)
    return [bar, figure, Text(f"of {of}", "dim")]


def watts_per_device(power: float, devices: int, device: Architecture) -> str:
    """Mean power of one device against what it may take."""
    allowed, beside = number(device.maximum_power), number(device.network_power)
    own = power / devices - beside
    share = f", {percent(own / allowed)} of its {show(allowed, 'W')}" if allowed else ""
    return f"{show(own, 'W')} per device{share}" + (f", and {show(beside, 'W')} of switches and links" if beside else "")
