"""What the operating system says of the machine that is measured: processor, caches, instructions, memory, load."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SYSTEM = Path("/sys/devices/system/cpu/cpu0")
# Operations in a cycle of one core by instruction set, the first that it has: two units of fused multiply-adds of the vector's lanes;
# tiles of AMX multiply 16 x 32 by 32 x 16 in 16 cycles. Intel, "Optimization Reference Manual" 248966, 2024, Sec. 2 and 20; Arm, "Neoverse
# V1/V2 Software Optimization Guide", 2023. A core with one unit reaches half: what it does reach is measured.
CYCLE: Mapping[str, tuple[tuple[str, float], ...]] = {
    "fp32": (("avx512f", 64.0), ("fma", 32.0), ("avx", 16.0), ("sve", 32.0), ("asimd", 16.0), ("", 4.0)),
    "bf16": (("amx_bf16", 2048.0), ("avx512_bf16", 128.0), ("bf16", 64.0)),
    "fp16": (("amx_fp16", 2048.0), ("avx512_fp16", 128.0), ("asimdhp", 32.0)),
}
FREQUENCY = 2.0e9  # where the system does not tell [Hz]


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A level of cache: name, bytes of one instance, and whether cores share it. [B]"""

    name: str
    size: float
    shared: bool


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What is known of a machine before anything is measured."""

    host: str
    cpu: str
    architecture: str
    cores: int
    frequency: float  # [Hz]
    flags: tuple[str, ...]  # instruction sets that `CYCLE` names
    caches: tuple[Cache, ...]  # of data, from the nearest
    memory: float  # [B]
    load: float  # processes that want to run, mean of a minute. [1]

    @property
    def rates(self) -> Mapping[str, float]:
        """Peak operations of one core by data type. [flop/s]"""
        found = {dtype: next((rate for flag, rate in known if not flag or flag in self.flags), 0.0) for dtype, known in CYCLE.items()}
        return {dtype: rate * self.frequency for dtype, rate in found.items() if rate}

    @property
    def private(self) -> float:
        """Bytes of the largest cache of one core. [B]"""
        return max((one.size for one in self.caches if not one.shared), default=2.0**20)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def machine_facts() -> MachineFacts:
    """The machine that this process runs on."""
    text = _read(Path("/proc/cpuinfo"))
    flags = set(re.findall(r"\S+", _field(text, "flags") or _field(text, "Features")))
    named = {flag for known in CYCLE.values() for flag, _ in known}
    return MachineFacts(
        host=platform.node(), cpu=_field(text, "model name") or platform.processor() or platform.machine(), architecture=platform.machine(),
        cores=os.cpu_count() or 1, frequency=_frequency(text), flags=tuple(sorted(flags & named)), caches=tuple(_caches()),
        memory=_memory(), load=round(load(), 2),
    )  # fmt: skip


def load() -> float:
    """Processes that want to run, mean of a minute; 0 where the system does not tell. [1]"""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _frequency(text: str) -> float:
    highest = _read(SYSTEM / "cpufreq" / "cpuinfo_max_freq").strip()
    if highest.isdecimal():
        return float(highest) * 1e3
    clock = _field(text, "cpu MHz")
    return float(clock) * 1e6 if clock else FREQUENCY


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return 2.0**34


def _caches() -> Iterator[Cache]:
    """Caches of data, from the nearest."""
    for index in sorted((SYSTEM / "cache").glob("index*")):
        kind, level, size, cores = (_read(index / name).strip() for name in ("type", "level", "size", "shared_cpu_list"))
        if kind == "Instruction" or not size:
            continue
        scale = {"K": 2.0**10, "M": 2.0**20}.get(size[-1], 1.0)
        yield Cache(name=f"l{level}", size=float(size.rstrip("KM")) * scale, shared=bool(re.search("[,-]", cores)))
