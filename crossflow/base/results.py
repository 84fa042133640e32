"""What all results have in common: plain data, JSON and tables, figures by name, and errors that name the right attribute."""

from __future__ import annotations

import csv
import importlib
import io
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ForwardRef

import numpy as np

from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.packages import pandas, there
from crossflow.base.units import show

# What other tools call the same figure or method, in the same unit: these names work. What is only nearly the same stands in CALLED.
SAME: Mapping[str, str] = {
    "tokens_per_second_per_gpu": "tokens_per_second_per_device", "tokens_per_gpu": "tokens_per_second_per_device",
    "tokens_per_s": "tokens_per_second", "tokens_per_sec": "tokens_per_second", "samples_per_s": "samples_per_second",
    "samples_per_sec": "samples_per_second", "rps": "requests_per_second", "to_chrome": "to_perfetto", "to_trace": "to_perfetto",
    "iteration_time": "step_time", "num_devices": "devices", "gpus": "devices", "num_gpus": "devices", "is_feasible": "feasible",
    "to_df": "to_frame", "to_dataframe": "to_frame", "as_dict": "to_dict", "asdict": "to_dict", "confidence": "trust",
    "copy": "replace", "with_": "replace", "override": "replace", "update": "replace", "evolve": "replace", "with_options": "replace",
    "best_plan": "best", "winner": "best", "peak_memory": "memory.total", "memory_per_device": "memory.total",
    "memory_per_gpu": "memory.total", "memory_used": "memory.total", "fits": "memory.fits", "peak": "total", "used": "total",
    "model_flops_utilization": "mfu", "hardware_flops_utilization": "hfu",
}  # fmt: skip
# Methods of tables of pandas, which work on results that have a table.
OF_FRAMES = frozenset({
    "sort_values", "groupby", "query", "describe", "head", "tail", "iloc", "loc", "nsmallest", "nlargest", "to_excel", "to_parquet",
    "to_markdown", "to_html", "to_string",
})  # fmt: skip
# Units at the end of a name, with the SI unit of the figure and how many of them make one.
IN_UNITS: Mapping[str, tuple[str, float]] = {
    "ms": ("s", 1e3), "us": ("s", 1e6), "minutes": ("s", 1 / 60), "hours": ("s", 1 / 3600), "days": ("s", 1 / 86400),
    "mb": ("B", 1e-6), "gb": ("B", 1e-9), "tb": ("B", 1e-12), "mib": ("B", 2**-20), "gib": ("B", 2**-30), "tib": ("B", 2**-40),
    "kj": ("J", 1e-3), "kwh": ("J", 1 / 3.6e6), "kw": ("W", 1e-3),
}  # fmt: skip
ENDS: Mapping[str, str] = {"s": "_s", "B": "_bytes", "J": "_j", "W": "_w"}  # of columns in these units
# What other tools, and JSON, call a figure -> what it is called here; for errors alone, none of them is an attribute.
CALLED: Mapping[str, str] = {
    "time": "step_time", "latency": "step_time",
    "e2e": "serving", "e2el": "serving", "e2e_latency": "serving", "total_time": "step_time", "seconds": "step_time",
    "tflops": "mfu", "tflops_per_gpu": "mfu", "utilization": "mfu", "utilisation": "mfu", "p99_ttft": "serving", "p99_tpot": "serving",
    "output_tokens_per_second": "tokens_per_second",
    "total_gib": "total", "free_bytes": "free", "biggest_lever": "lever",
    "tps": "tokens_per_second", "tok_s": "tokens_per_second",
    "qps": "serving", "itl": "tpot",
    "bottlenecks": "bound_by", "limits": "bound_by", "bound": "bound_by",
    "memory_usage": "memory.total", "oom": "memory.fits",
    "needed": "total", "available": "capacity", "limit": "capacity", "margin": "left",
    "price": "cost", "cost_per_step": "cost",
    "dollars": "cost", "usd": "cost", "money": "cost", "joules": "energy", "watts": "power",
    "error": "error_band", "low": "error_band", "high": "error_band", "range": "error_band",
    "band": "error_band", "model": "scenario", "system": "scenario", "workload": "scenario", "energy_per_token": "energy",
    "confidence": "error_band", "accuracy": "error_band", "uncertainty": "error_band", "breakdown_s": "breakdown",
    "dict": "to_dict", "json": "to_json", "to_yaml": "to_dict",
    "df": "to_frame", "dataframe": "to_frame", "frame": "to_frame",
    "show": "plot", "draw": "plot", "figure": "plot", "top": "best", "optimal": "best",
    "results": "plans", "rows": "plans", "trace": "timeline", "simulate": "timeline", "valid": "feasible",
    "set": "replace", "tp": "strategy", "pp": "strategy", "dp": "strategy", "degrees": "strategy", "kv_cache": "memory",
    "tokens_per_second_per_user": "tpot",
    "confidence_interval": "error_band", "ci": "error_band", "interval": "error_band", "total_tokens": "tokens_per_second",
    "duration": "step_time",
    "write": "save", "dump": "save", "parallelism": "strategy",
}  # fmt: skip

# What tables and arrays of other libraries have, and what does the same here; for errors alone.
TOLD: Mapping[str, str] = {
    "head": "a slice has the first ones: results[:3]", "tail": "a slice has the last ones: results[-3:]",
    "iloc": "an index has one, and a slice several: results[0], results[:3]", "loc": "an index has one, a mask several: results[mask]",
    "shape": "len(results) is the number of rows", "size": "len(results) is the number of rows",
    "argmin": "best has the best that fits; to_frame() is a table of pandas", "idxmin": "best has the best that fits",
    "argmax": "best has the best that fits; to_frame() is a table of pandas", "idxmax": "best has the best that fits",
    "sort": "to_frame().sort_values(...) sorts a table of pandas", "sort_values": "to_frame().sort_values(...) sorts a table of pandas",
    "groupby": "to_frame() is a table of pandas", "query": "to_frame() is a table of pandas", "values": "table() has columns by name",
    "describe": "summary() says it in words, table() has all figures", "info": "summary() says it in words, table() has all figures",
    "to": "figures are plain numbers in SI units: seconds, bytes, joules, watts", "to_gib": "sizes are in bytes: total / 2**30",
    "total_gb": "sizes are in bytes: total / 1e9", "step_time_ms": "times are in seconds: step_time * 1e3",
    "min": "best has the best that fits; results['mfu'].min() is of NumPy", "max": "results['mfu'].max() is of NumPy",
    "compare": "crossflow.compare sets systems side by side; step_time / other.step_time compares two predictions",
    "carbon": "carbon_kg is there where system__operation__carbon_intensity is given, such as '400 g/kWh'",
    "speedup": "step_time / other.step_time compares two predictions",
    **dict.fromkeys(("n_params", "num_params", "num_parameters", "parameters"), "crossflow.show(name of a model).parameters counts them"),
    **dict.fromkeys(("bubble", "bubble_fraction", "bubble_ratio"), "breakdown.bubble / step_time is the share of idle stages"),
    "export": "crossflow.export(scenario, 'megatron', strategy=plans.best.strategy) writes a launch file",
    **dict.fromkeys(("co2", "emissions", "carbon_kg"), "it needs the carbon of a kWh: system__operation__carbon_intensity='400 g/kWh'"),
    **dict.fromkeys(("levers", "top_levers"), "lever is the largest; effects has all, in order"),
    "savefig": "save(path) writes the picture", "fit": "predict and calibrate are functions of the package: crossflow.predict(scenario)",
    "to_excel": "to_frame() is a table of pandas", "to_parquet": "to_frame() is a table of pandas",
}  # fmt: skip


class Guided:
    """A result whose missing attributes are answered by the name of the right one."""

    if not TYPE_CHECKING:  # editors and type checkers know the attributes that there are

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            try:
                return self._column(name)
            except KeyError:
                return self._other(name)

    def _other(self, name: str) -> Any:
        """What another tool calls `name`: the same figure, the figure in another unit, or a method of its table."""
        known, same = dir(self), SAME.get(name, "")
        if same and same.partition(".")[0] in known:
            return operator.attrgetter(same)(self)
        if (converted := self._in_unit(name)) is not None:
            return converted
        if name in OF_FRAMES and "to_frame" in known and there("pandas"):
            frame: Any = self
            return getattr(frame.to_frame(), name)
        raise AttributeError(missing(type(self).__name__, name, known)) from None

    def _in_unit(self, name: str) -> Any:
        """A figure in the unit that its name ends with, such as ``step_time_ms``; None where there is none of that dimension."""
        base, _, said = name.rpartition("_")
        unit, factor = IN_UNITS.get(said.lower(), ("", 1.0))
        if not unit or not base:
            return None
        try:
            value = self._column(base + ENDS[unit])
        except KeyError:
            value = getattr(self, base) if base in dir(self) else None
            value = value.total if isinstance(value, Amounts) and value.unit == unit else None
        return None if value is None else value * factor

    def _column(self, name: str) -> Any:
        """A figure by the name of its column, its unit included, where the result has columns; KeyError for all other names."""
        raise KeyError(name)


def missing(owner: str, name: str, known: Sequence[str]) -> str:
    """Sentence about an attribute that is not there.

    >>> missing("Prediction", "tps", ["step_time", "tokens_per_second"])
    "Prediction has no attribute 'tps'; did you mean 'tokens_per_second'?"
    """
    public = [other for other in known if not other.startswith("_")]
    called = CALLED.get(name, "")
    if name in TOLD and not called:
        return f"{owner} has no attribute '{name}': {TOLD[name]}"
    meant = f"; did you mean '{called}'?" if called.partition(".")[0] in public else did_you_mean(name, public)
    return f"{owner} has no attribute '{name}'{meant}"


class PlainData(Guided):
    """A result that can be told as plain data."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data; every class says its own."""
        raise NotImplementedError

    def to_json(self, path: str | Path | None = None) -> str:
        """The data of `to_dict` as JSON, as the command prints it; written to a file as well where a path is given."""
        text = files.json_text(self.to_dict())
        if path is not None:
            files.write_text(Path(path), text)
        return text

    def save(self, path: str | Path) -> Path:
        """Write the data of `to_dict` as a JSON file."""
        written = Path(path)
        if written.suffix != ".json":
            plain = Path(str(written).removesuffix(".gz")).with_suffix(".json")
            text = f"{written}: the data of a {type(self).__name__} is written as JSON; name it {plain}"
            raise CrossflowError(f"{text}; scenario.save('{written}') writes its scenario" if written.suffix in files.YAML else text)
        files.write_text(written, self.to_json())
        return written


class Tabular:
    """A result that can be told as a table: columns by name."""

    def table(self) -> Mapping[str, Any]:
        """Columns by name, each with a value a row; every class says its own."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame, which must be installed."""
        return pandas().DataFrame(self.table())

    def to_pandas(self) -> Any:
        """The same as `to_frame`, by the name that other libraries give it."""
        return self.to_frame()

    def to_csv(self, path: str | Path | None = None) -> str | None:
        """The table as CSV: written to a file, or returned where no path is given; needs no pandas."""
        columns = self.table()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        if path is None:
            return text.getvalue()
        files.write_text(Path(path), text.getvalue())
        return None


class Amounts(Guided, Tabular, Mapping[str, float]):
    """Figures of one unit by name, also as attributes: ``breakdown["compute"]``, ``breakdown.compute``.

    >>> parts = Amounts({"compute": 1.5, "bubble": 0.5}, "s")
    >>> parts.compute, parts["bubble"], parts.total, parts
    (1.5, 0.5, 2.0, Amounts(compute 1.5 s, bubble 500 ms))
    """

    def __init__(self, figures: Mapping[str, float], unit: str) -> None:
        self._figures, self._unit = dict(figures), unit

    @property
    def unit(self) -> str:
        """SI unit of the figures."""
        return self._unit

    @property
    def total(self) -> float:
        """Their sum."""
        return float(sum(self._figures.values()))

    def __getitem__(self, name: str) -> float:
        if name not in self._figures:
            raise KeyError(f"no '{name}'{did_you_mean(name, self._figures)}; there are: {', '.join(self._figures) or 'none'}")
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._figures]

    if TYPE_CHECKING:  # names come from the result

        def __getattr__(self, name: str) -> float: ...

    def _column(self, name: str) -> float:
        return self._figures[name]

    def _in_unit(self, name: str) -> float | None:
        base, _, said = name.rpartition("_")
        unit, factor = IN_UNITS.get(said.lower(), ("", 1.0))
        if unit != self._unit or not (base in self._figures or base in ("total", "capacity", "free")):
            return None
        value = self._figures.get(base, getattr(self, base, None))
        return None if value is None else value * factor

    def table(self) -> Mapping[str, Any]:
        """The figures as one row."""
        return {name: [value] for name, value in self._figures.items()}

    def to_dict(self) -> dict[str, float]:
        """The figures as plain data."""
        return dict(self._figures)

    def __repr__(self) -> str:
        parts = [f"{name} {show(value, self._unit)}" for name, value in self.items() if value]
        return f"{type(self).__name__}({', '.join(parts)})"


class DeviceMemory(Amounts):
    """Bytes that the fullest device needs, by kind, and what it has. [B]

    Attributes
    ----------
    total, capacity : what it needs, and what there is. [B]
    fits : whether it fits, the memory of the host included.
    left : share of the capacity that is left, negative where it does not fit. [1]
    tight : whether it fits with less than a margin to spare.
    """

    def __init__(self, figures: Mapping[str, float], *, capacity: float, fits: bool, tight: bool) -> None:
        super().__init__(figures, "B")
        self.capacity, self.fits, self.tight = capacity, fits, tight

    @property
    def free(self) -> float:
        """Bytes that are left, negative where it does not fit. [B]"""
        return self.capacity - self.total

    @property
    def left(self) -> float:
        """Share of the capacity that is left, negative where it does not fit. [1]"""
        return 1.0 - self.total / self.capacity if self.capacity > 0 else float("nan")

    def __repr__(self) -> str:
        state = "tight" if self.tight else "fits" if self.fits else "does not fit"
        return f"DeviceMemory({show(self.total, 'B')} of {show(self.capacity, 'B')}, {state})"


def known(value: Any) -> float | None:
    """A figure of one point, None where it is not known.

    >>> known(np.array([1.5])), known(np.array([np.nan]))
    (1.5, None)
    """
    number = float(np.ravel(value)[0])
    return None if np.isnan(number) else number


def later(module: str, *names: str) -> Any:
    """What a module that is not imported calls its types, for hints: they are imported when someone asks what the hints mean.

    Type checkers read the names from an import, and the program from here, in the other branch of ``if TYPE_CHECKING``.

    >>> from typing import get_type_hints
    >>> def spent(how: later("fractions", "Fraction")) -> None: ...
    >>> get_type_hints(spent)["how"]
    <class 'fractions.Fraction'>
    """
    found = [ForwardRef(f"__import__({module!r}, fromlist=({name!r},)).{name}") for name in names]
    return found if names[1:] else found[0]


def public(name: str) -> Any:
    """A function of the public interface, for methods of results that stand below it: ``prediction.explain()`` is `explain`."""
    return getattr(importlib.import_module("crossflow"), name)
