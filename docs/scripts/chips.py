"""Published figures of chips beside those of the same chips generated from their budgets (templates/generated/chip-*.yaml)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import crossflow
from crossflow.answers.evaluation import evaluate
from crossflow.base.units import show
from crossflow.hardware.architecture.system import architecture

FILE = Path(__file__).parents[2] / "tests" / "data" / "generated_chips.csv"
STREAM, PRODUCT = (65536, 1, 65536), (8192, 8192, 8192)  # a product bound by main memory, and one bound by the units


@dataclass(frozen=True, kw_only=True)
class ChipRow:
    """One published figure; `kind` says whether the template or a component was made from it, or whether it follows from them."""

    chip: str
    quantity: str
    unit: str
    published: float
    generated: float
    tolerance: float
    kind: str
    source: str

    @property
    def ratio(self) -> float:
        """Generated over published."""
        return self.generated / self.published

    def shown(self) -> tuple[str, str, str, str, str, str, str]:
        """Cells of the table in docs/validation.md."""
        figures = (show(value, self.unit) if self.unit != "1" else f"{value:.4g}" for value in (self.published, self.generated))
        return (self.chip, self.quantity, *figures, f"{self.ratio:.2f}", self.kind, self.source)


def rows() -> list[ChipRow]:
    """Every row of the file, with what is generated."""
    with FILE.open(encoding="utf-8") as file:
        read = list(csv.DictReader(line for line in file if not line.startswith("#")))
    made = {chip: figures(chip) for chip in dict.fromkeys(row["chip"] for row in read)}
    return [
        ChipRow(
            chip=row["chip"], quantity=row["quantity"], unit=row["unit"], published=float(row["published"]),
            generated=made[row["chip"]][row["quantity"]], tolerance=float(row["tolerance"]), kind=row["kind"],
            source=row["source"],
        )
        for row in read
    ]  # fmt: skip


def figures(chip: str) -> Mapping[str, float]:
    """Figures of a generated chip by quantity, in SI units."""
    spec = crossflow.from_dict(_given(chip, PRODUCT)).system
    device = architecture(spec)
    rate = device.throughput["fp32" if chip == "chip-p4" else "fp16"][0]
    found = {
        "peak": rate, "units": device.units[0], "clock": device.frequency[0], "memory capacity": device.memory.capacity[0],
        "memory bandwidth": device.memory.bandwidth[0] / spec.memory_utilisation[0], "static power": device.static_power[0],
    }  # fmt: skip
    if device.intra is not None:
        found["links"] = device.intra.bandwidth[0]
    for level in device.levels[:-1]:
        found |= {f"{level.name} capacity": (level.capacity * level.instances)[0], f"{level.name} bandwidth": level.bandwidth[0]}
        found |= {f"{level.name} latency": level.latency[0]}
    found |= {f"{level.name} energy": level.energy[0] for level in device.levels}
    area = {use.component: use.used[0] / spec.budgets.chip_area[0] for use in device.usage if use.resource == "area"}
    found["area of cores"] = sum(area.get(name, 0.0) for name in ("compute", "registers", "l1"))
    found |= {f"area of {name}": area[name] for name in ("l2", "memory", "intra_link") if name in area}
    for name, size in (("product", PRODUCT), ("stream", STREAM)):
        score = evaluate(crossflow.from_dict(_given(chip, size)))
        found |= {f"power of a {name}": score.power[0], f"rate of a {name}": 2.0 * size[0] * size[1] * size[2] / score.step_time[0]}
    return found


def _given(chip: str, size: tuple[int, int, int]) -> dict[str, object]:
    workload = dict(zip("mnk", size, strict=True)) | {"model": "gemm", "dtype": "fp32" if chip == "chip-p4" else "fp16"}
    return {"system": {"template": chip}, "workload": workload, "strategy": "d1"}
