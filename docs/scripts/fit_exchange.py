"""Fit the libraries of expert exchanges that the families in templates/families hold.

    python docs/scripts/fit_exchange.py --data DIR [--all]

DIR holds ``expert_exchange.csv``. Dispatch and combine of each method and generation are fitted by themselves: robust least squares of
log(time) with the package's own model (`crossflow.cost.exchange`). A third of the shapes (hidden, experts, choices, units, nodes; by a
hash) is left out, and their errors are printed beside the others; with --all nothing is left out. The script prints the parameters as the
files hold them. It writes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossflow.base.arrays import Array, Index
from crossflow.cost.exchange import Exchange, exchange_time
from crossflow.evidence.validation.kernels_experts import Exchanges, read_exchanges
from crossflow.hardware.architecture.execution import ExchangeKernel, TokenCopies

US, GB = 1e-6, 1e9
# Lowest value, start and highest value of each parameter, and the unit in which files hold it.
PARAMETERS: Mapping[str, tuple[float, float, float, str, float]] = {
    "start": (2 * US, 15 * US, 60 * US, "us", US),
    "expert": (0.1e-9, 10e-9, 100e-9, "ns", 1e-9),
    "node_step": (1 * US, 10 * US, 60 * US, "us", US),
    "first_token": (0.1 * GB, 2 * GB, 1000 * GB, "GB/s", GB),
    "copy_start": (1e-9, 100e-9, 500e-9, "ns", 1e-9),
    "copy_rate": (5 * GB, 25 * GB, 200 * GB, "GB/s", GB),
    "copy_forwarded": (0.5, 1.0, 3.0, "", 1.0),
    "link": (0.2, 0.7, 1.0, "", 1.0),
    "network": (0.3, 0.9, 1.0, "", 1.0),
    "crowd": (2.0, 8.0, 100.0, "", 1.0),
    "fill": (0.01 * US, 1 * US, 20 * US, "us", US),
}
ONCE, ACROSS = ("copy_start", "copy_rate", "copy_forwarded"), ("node_step", "copy_forwarded", "network", "crowd")
SCALE = 0.05  # of the robust loss, in log(time)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Exchanges of one device, method and op."""

    exchange: Exchange
    time: Array
    once: bool
    notify: Array  # what a source's figures include beside the exchange, 0 or 1 of it

    def predicted(self, values: Mapping[str, float]) -> Array:
        """Times without what ranks tell one another before. [s]"""
        given = {name: np.array([value]) for name, value in values.items()}
        copies = {name: given.pop(f"copy_{name}") for name in ("start", "rate", "forwarded")}
        kernel = ExchangeKernel.model_construct(**given, copies=TokenCopies.model_construct(**copies) if self.once else None)
        return exchange_time(self.exchange, kernel)

    def some(self, rows: Index) -> Case:
        """The same with some of the rows."""
        fields = {name: getattr(self.exchange, name)[rows] for name in Exchange.__dataclass_fields__}
        return Case(exchange=Exchange(**fields), time=self.time[rows], once=self.once, notify=self.notify[rows])


def fit(case: Case, notify: float | None) -> dict[str, float]:
    """Parameters of least robust error in log(time); `notify` of those rows that include it, None where it is fitted, too. [s]"""
    from scipy.optimize import least_squares

    across = bool((case.exchange.nodes > 1).any())
    bounds = {name: ends[:3] for name, ends in PARAMETERS.items() if (case.once or name not in ONCE) and (across or name not in ACROSS)}
    fixed = {name: ends[1] for name, ends in PARAMETERS.items() if name not in bounds}
    if notify is None:
        bounds["notify"] = (1 * US, 10 * US, 40 * US)
    names, ends = list(bounds), np.array(list(bounds.values()))

    def values(x: Array) -> dict[str, float]:
        return fixed | dict(zip(names, (ends[:, 0] * (ends[:, 2] / ends[:, 0]) ** x).tolist(), strict=True))

    def loss(x: Array) -> Array:
        own = values(x)
        told = own.pop("notify", notify or 0.0)
        return np.asarray(np.log((case.predicted(own) + told * case.notify) / case.time))

    start = np.log(ends[:, 1] / ends[:, 0]) / np.log(ends[:, 2] / ends[:, 0])
    found = least_squares(loss, start, bounds=(0, 1), loss="cauchy", f_scale=SCALE, diff_step=1e-3, max_nfev=80)
    return values(found.x)


def cases(found: Exchanges, keys: list[tuple[str, str, str]]) -> Mapping[tuple[str, str, str], tuple[Index, Case]]:
    """Exchanges by device, method and op, with their places."""
    together = {}
    for key in sorted(set(keys)):
        mine = np.array([i for i, other in enumerate(keys) if other == key])
        exchange, _, _ = found.some(mine)
        older = [found.rows[int(found.place[i])]["source"].endswith("2025") for i in mine]
        notify = np.array(older, dtype=float) * float(key[1:] == ("normal", "dispatch"))
        together[key] = mine, Case(exchange=exchange, time=found.time[mine], once=key[1] == "normal", notify=notify)
    return together


def words(error: Array) -> str:
    """Median and tail of some errors, in percent."""
    if not error.size:
        return "-"
    return f"{100 * np.median(np.abs(error)):5.1f} (p90 {100 * np.quantile(np.abs(error), 0.9):3.0f}, n {error.size})"


def shown(values: Mapping[str, float], *, once: bool) -> str:
    """Parameters as a file holds them."""
    units = {name: ends[3:] for name, ends in PARAMETERS.items()}
    given = {name: f"{{value: {values[name] / scale:.3g}{unit and ' ' + unit}, source: exchange}}" for name, (unit, scale) in units.items()}
    copies = ", ".join(f"{name[5:]}: {given.pop(name)}" for name in ONCE)
    return "\n".join(
        [*([f"          copies: {{{copies}}}"] if once else []), *(f"          {name}: {text}" for name, text in given.items())]
    )


def main() -> None:
    """Fit every device, method and op of which the folder has rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with expert_exchange.csv")
    parser.add_argument("--all", action="store_true", help="leave no rows out")
    arguments = parser.parse_args()
    found = read_exchanges(arguments.data)
    rows = [found.rows[int(i)] for i in found.place]
    keys = [(row["device"], row["method"], op) for row, op in zip(rows, found.op, strict=True)]
    shapes = ["-".join(row[name] for name in ("hidden", "topk", "experts", "sms", "nodes")) for row in rows]
    held = np.array([sum(ord(letter) * (7 + i) for i, letter in enumerate(shape)) % 3 == 0 and not arguments.all for shape in shapes])
    error = np.full(len(keys), np.nan)
    for (device, method, op), (mine, case) in cases(found, keys).items():
        told = bool(case.notify.any())
        values = fit(case.some(np.flatnonzero(~held[mine])), None if told else 0.0)
        notify = values.pop("notify", 0.0)
        error[mine] = (case.predicted(values) + notify * case.notify) / case.time - 1.0
        print(f"# {device} {method} {op}: fitted {words(error[mine][~held[mine]])} %, left out {words(error[mine][held[mine]])} %")
        print(shown(values, once=case.once))
        if told:
            print(f"        notify: {{value: {notify / US:.3g} us, source: exchange}}")
    print(f"# all: fitted {words(error[~held])} %, left out {words(error[held])} %")


if __name__ == "__main__":
    main()
