"""Every table of a folder of measured data, read and predicted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from crossflow.base.errors import CrossflowError
from crossflow.evidence.validation.goodput import goodput_table
from crossflow.evidence.validation.hindcasts import hindcast_table
from crossflow.evidence.validation.kept import KeptTables
from crossflow.evidence.validation.kernels_attention import attention_table
from crossflow.evidence.validation.kernels_experts import exchange_table, moe_table
from crossflow.evidence.validation.kernels_products import products_table, training_kernels_table
from crossflow.evidence.validation.likeness import with_fitted
from crossflow.evidence.validation.post_training import post_training_table
from crossflow.evidence.validation.power import kernel_power_table, power_table
from crossflow.evidence.validation.published import accelerators_table, maxtext_table, mlperf_table, published_table, torchtitan_table
from crossflow.evidence.validation.report import Report, Table
from crossflow.evidence.validation.service_runs import has_runs
from crossflow.evidence.validation.services import services_table
from crossflow.evidence.validation.serving import accelerators_serving_table, serving_latency_table, serving_table, wide_experts_table
from crossflow.evidence.validation.tables import collectives_table, gemm_table, generated_gemm_table, shipped
from crossflow.evidence.validation.training import training_table

# Files, without their ending, and what reads and predicts them. A reader gives what makes a row like others as groups where it knows
# it: device, kind, type, stack and scale, in the words of `crossflow.answers.bands`.
READERS: Mapping[str, Callable[[Path], Table]] = {
    "gemm": gemm_table,
    "gemm_graph": products_table,
    "simumax_kernels": training_kernels_table,
    "attention": attention_table,
    "moe": moe_table,
    "expert_exchange": exchange_table,
    "collectives": collectives_table,
    "training_runs": training_table,
    "mlperf_training": mlperf_table,
    "accelerators_training": accelerators_table,
    "published_training": published_table,
    "torchtitan_training": torchtitan_table,
    "maxtext_training": maxtext_table,
    "serving": serving_table,
    "serving_latency": serving_latency_table,
    "accelerators_serving": accelerators_serving_table,
    "wide_experts": wide_experts_table,
    "power": power_table,
    "goodput": goodput_table,
    "post_training": post_training_table,
}

# Tables of which the package carries every row.
WHOLE = ("accelerators_training", "accelerators_serving", "torchtitan_training", "maxtext_training", "wide_experts")


def validate(data: str | Path | None = None, *, whole: bool = False, kept: KeptTables | None = None) -> Report:
    """Compare predictions with every table in a folder; without one, with the small excerpt that the package carries.

    Parameters
    ----------
    data : the folder; where absent the chips that the package predicts blind (`hindcast_table`) are compared as well.
    whole : compare with the tables that the package carries whole as well, where the folder has no such table, and the chips.
    kept : where tables are kept between runs; all are predicted anew where absent.

    Raises
    ------
    CrossflowError
        When the folder has no table, or a table lacks a column or holds a value that is no number.
    """
    folder = shipped() if data is None else Path(data)
    if not folder.is_dir():
        raise CrossflowError(f"{folder} is not a folder; give one with gemm.csv, collectives.csv or training_runs.csv as --data")
    places = {name: folder if (folder / f"{name}.csv").is_file() or not (whole and name in WHOLE) else shipped() for name in READERS}

    def table(name: str, read: Callable[[], Table]) -> Table:
        return read() if kept is None else kept.table(name, read)

    known = {name: functools.partial(read, places[name]) for name, read in READERS.items()}
    tables = [table(name, read) for name, read in known.items() if (places[name] / f"{name}.csv").is_file()]
    if has_runs(folder):
        tables.append(table("services", lambda: services_table(folder)))
    if not tables:
        raise CrossflowError(
            f"{folder} holds none of {', '.join(f'{name}.csv' for name in READERS)}, "
            "and no run of a service (NAME.requests.jsonl, results of vLLM's or guidellm's benchmarks)"
        )
    if (folder / "gemm.csv").is_file() and (generated := table("generated", lambda: generated_gemm_table(folder))).measured.size:
        tables.insert(1, generated)
    if (watts := table("watts", lambda: kernel_power_table(folder))).measured.size:
        tables.append(watts)
    if data is None or whole:
        tables.append(table("hindcasts", hindcast_table))
    return Report(data=folder, tables=[with_fitted(table) for table in tables])
