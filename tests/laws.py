# ruff: noqa: T201  (a command)
"""Random generated designs, each part of which is made better by itself: no step may be slower, no more frugal part dearer.

Long form: `python tests/laws.py [DESIGNS] [SEED]` prints what breaks a law by more than 0.1 %, and how often.

A design takes the fastest tiles. So a better part may take more energy where it makes another tiling the fastest, which moves
more at a level that has time for it.
"""

import itertools
import sys
from dataclasses import dataclass

import numpy as np

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.answers.explanation.parameters import parameters
from crossflow.answers.points import split

LIMIT = 1e-3  # by which a law may be broken
BY = 1.1  # factor by which a figure is made better
LOWER, HIGHER = -1, 1
# Figures of the technology that are better when lower or higher, with everything else kept. With the first, a design has the same parts,
# only faster or more frugal. With the others it has more parts, or larger ones, which take energy also where they idle. Not among
# them is a share of power that leaks, as the rest of the same power switches, nor the capacity of a memory device, as a
# larger one refreshes more bits and leaves the rest of the device less power.
BETTER = {
    "nominal_power": LOWER, "nominal_flop_rate": HIGHER, "nominal_frequency": HIGHER, "power": LOWER, "dynamic_energy_per_bit": LOWER,
    "control_energy_per_bit": LOWER, "wire_energy": LOWER, "wire_length": LOWER, "wire_latency": LOWER, "static_power_per_bit": LOWER,
    "latency": LOWER, "access_latency": LOWER, "interface_energy_per_bit": LOWER, "nominal_energy_per_bit": LOWER, "sram_energy": LOWER,
    "sram_leakage": LOWER, "supply_drop": LOWER, "coolant": LOWER, "thermal_resistance": LOWER,
}  # fmt: skip
MORE = {
    "nominal_area": LOWER, "area_per_bit": LOWER, "area_overhead": LOWER, "slice_area": LOWER, "port_area": LOWER, "controller_area": LOWER,
    "device_area": LOWER, "area_per_link": LOWER, "links_per_mm": HIGHER, "area": LOWER, "sram_area": LOWER, "slice_width": HIGHER,
    "frequency": HIGHER,
}  # fmt: skip
LLM = {"global_batch": 64, "sequence": 4096}
WORKLOADS = {
    "lstm": {"workload": "lstm-16k", "strategy": "CR-8-d64", "devices": 512},
    "product": {"workload": {"model": "gemm", "m": 8192, "n": 6000, "k": 4096}, "strategy": "d8", "devices": 8},
    "llama": {"workload": {"model": "llama2-7b", **LLM}, "strategy": "tp2-dp16-z1", "devices": 32},
    "mixture": {"workload": {"model": "mixtral-8x7b", **LLM}, "strategy": "tp2-pp2-dp8-ep8-z1", "devices": 32},
    "dlrm": {"workload": {"model": "dlrm-a", "dtype": "bf16"}, "strategy": {"dense": "ddp", "embedding": "mp"}, "devices": 128},
}  # fmt: skip
TEMPLATES = ("pathfinder", "reference-training")
LOGIC, MEMORY = ("N12", "N7", "N5", "N3"), ("HBM2e", "HBM3", "HBM4")
STACKS = {"system.technology.memory", "controller_area", "device_area", "links_per_mm"}  # what changes how many memory devices there are


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a better figure does to step time and energy of all designs that can be built before and after."""

    name: str  # path of the figure
    frugal: bool  # whether the parts are as many and as large as before
    slower: np.ndarray  # step time over that before, less 1
    dearer: np.ndarray  # energy over that before, less 1

    @property
    def stacks(self):
        """Whether a design may have another number of memory devices."""
        return self.name in STACKS or self.name.split(".")[-1] in STACKS


def scenario_of(template, workload):
    given = WORKLOADS[workload]
    system = {"template": template, "devices": given["devices"]}
    return crossflow.from_dict({"system": system, "workload": given["workload"], "strategy": given["strategy"]})


def designs(scenario, count, rng):
    """Points of random designs: logic node, memory, power, die, and a division at random about that of the template."""
    budgets = scenario.system.budgets
    points = {
        "system.technology.logic": rng.choice(LOGIC, count),
        "system.technology.memory": rng.choice(MEMORY, count),
        "system.budgets.power": budgets.power * np.exp(rng.uniform(-0.7, 0.7, count)),
        "system.budgets.chip_area": budgets.chip_area * rng.uniform(0.4, 1.0, count),
    }
    for resource in ("area", "power_shares", "perimeter"):
        shares = getattr(budgets, resource)
        given = {name: getattr(shares, name) for name in ("compute", "memory", "intra_link", "inter_link")}
        given |= {f"on_chip.{name}": value for name, value in shares.on_chip.items()}
        mean = {f"system.budgets.{resource}.{name}": float(value[0]) for name, value in given.items() if value is not None}
        drawn = np.array(list(mean.values()))[:, None] * np.exp(rng.normal(0.0, 0.5, (len(mean), count)))
        points |= dict(zip(mean, drawn / np.maximum(drawn.sum(axis=0), 1.0), strict=True))
    return points


def better(scenario, points):
    """Path, whether a design has the same parts, and the points of every change for the better."""
    system, library = scenario.system, scenario.library
    given = {library.component("compute", system.technology.compute).node}
    given |= {library.component("on_chip", spec.component).node for spec in system.levels.values()}
    for number in parameters(scenario, {"system.technology.logic": LOGIC, "system.technology.memory": MEMORY}):
        *above, field = number.path.split(".")
        way = {**BETTER, **MORE}.get(field)
        # A better node at which parts are given makes them no better: it makes the step from it to others smaller.
        if number.kind == "technology" and number.value and way and not (above[-2:-1] == ["logic"] and above[-1] in given):
            yield number.path, field in BETTER, {number.path: np.full(len(points["system.budgets.power"]), number.value * BY**way)}
    yield "system.budgets.power", False, {"system.budgets.power": points["system.budgets.power"] * BY}
    for role, order in (("logic", LOGIC), ("memory", MEMORY)):
        path = f"system.technology.{role}"
        yield path, False, {path: [order[min(order.index(name) + 1, len(order) - 1)] for name in points[path]]}


def changes(template, workload, count, seed):
    """What every better figure does to random designs of a template."""
    scenario = scenario_of(template, workload)
    points = designs(scenario, count, np.random.default_rng(seed))
    points = {**split(scenario, points).quantities, **points}  # what the template has for a node or memory stays when these change
    asked = ("step_time_s", "energy_j")
    base = evaluate(scenario, points, columns=asked)
    for name, frugal, change in better(scenario, points):
        after = evaluate(scenario, points | change, columns=asked)
        both = base.feasible & after.feasible
        slower, dearer = (getattr(after, what)[both] / getattr(base, what)[both] - 1.0 for what in ("step_time", "energy"))
        yield Change(name=name, frugal=frugal, slower=slower, dearer=dearer)


def main(count=500, seed=1):
    for template, workload in itertools.product(TEMPLATES, WORKLOADS):
        found = list(changes(template, workload, count // len(TEMPLATES), seed))
        for one in found:
            broken = {"slower": one.slower, **({"dearer": one.dearer} if one.frugal else {})}
            for law, by in broken.items():
                if (by > LIMIT).any():
                    print(f"{template} {workload} {one.name}: {law} by up to {by.max():.2%}, {(by > LIMIT).sum()} of {by.size} designs")
        slow = sum((one.slower > LIMIT).sum() for one in found if not one.stacks)
        dear = sum((one.dearer > LIMIT).sum() for one in found if one.frugal)
        print(f"{template} {workload}: {slow} of {sum(one.slower.size for one in found)} slower without another number of stacks,")
        print(f"    {dear} of {sum(one.dearer.size for one in found if one.frugal)} dearer with the same parts", flush=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
