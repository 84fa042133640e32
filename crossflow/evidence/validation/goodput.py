"""Published goodput of long training runs (``goodput.csv``) against the closed form of interrupted runs.

Rates are those that a row counts, else that of nodes of RSC-1; times that a row does not give are what is assumed of all runs. Nothing
is fitted. A row whose times were assumed by people who knew its goodput is a reproduction, and its group says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from crossflow.base.arrays import points
from crossflow.base.errors import Problem, SpecError
from crossflow.base.units import parse
from crossflow.engine.lasting.intervals import best_interval
from crossflow.engine.lasting.record import FailureCause, LongRun
from crossflow.engine.lasting.renewal import best_spares, expected
from crossflow.engine.lasting.spec import common, load_named, rates
from crossflow.evidence.validation.report import Table
from crossflow.evidence.validation.tables import TableRow, read_rows

COLUMNS = ("run", "gpus", "gpus_per_node", "days", "unexpected", "planned", "goodput", "source")
TIMES = {"detection": "2 min", "repair": "6 h", "stall": "5 s", "commit": "60 s"}  # of rows that say nothing, as in llama3-h100
ASSUMED = "reproduction: times assumed with the answer in view"
NOTE = (
    "Goodput is compared as a share, so that an error of 0.03 of 0.9 is 3 %. Llama 3 says 'more than 90 %', and RSC-1 'about 0.9'. Rows "
    "with assumed times are reproductions"
)
DAY = 86400.0


def goodput_table(folder: Path) -> Table:
    """Shares of useful time of every row."""
    file = folder / "goodput.csv"
    rows = read_rows(file, COLUMNS)
    kept = [row for row in rows if row["goodput"]]
    try:
        predicted = [float(expected(run_of(row)).goodput[0]) for row in kept]
        measured = [float(row["goodput"]) for row in kept]
    except ValueError as error:
        raise SpecError([Problem(file=str(file), message=str(error))]) from None
    return Table(
        name="goodput",
        measured=np.array(measured),
        predicted=np.array(predicted),
        groups={"run": [row["run"] for row in kept], "inputs": [inputs_of(row) for row in kept]},
        skipped={"no goodput was published": len(rows) - len(kept)} if len(rows) > len(kept) else {},
        items=[row["run"] for row in kept],
        notes=(NOTE,),
    )


def inputs_of(row: TableRow) -> str:
    """How the inputs of a row are known."""
    if not row.get("detection"):
        return "what is assumed of all runs"
    return "published but for repair and saves" if row.get("published") else ASSUMED


def run_of(row: TableRow) -> LongRun:
    """The run of a row."""

    def time(name: str) -> np.ndarray:
        return points(parse(row.get(name) or TIMES[name], "s"))

    nodes = float(row["gpus"]) / float(row["gpus_per_node"])
    each = parse(row["rate"], "1/s") if row.get("rate") else rates(load_named("rsc-1-a100"), "node").rate
    rate = float(row["unexpected"]) / (float(row["days"]) * DAY) if row["unexpected"] else each * nodes
    usual, stall = common().restart, time("stall")
    assert usual.schedule is not None
    assert usual.warm_up is not None  # the shipped file says both
    restart = points(parse(row["restart"], "s")) if row.get("restart") else usual.schedule + usual.warm_up
    interval = points(parse(row["interval"], "s")) if row.get("interval") else best_interval(stall, points(rate), time("commit"))
    run = LongRun(
        causes=(FailureCause(name="any", rate=points(rate), detection=time("detection"), repair=time("repair")),),
        nodes=points(nodes), interval=interval, stall=stall, commit=time("commit"), restart=restart,
        planned=points(float(row["planned"]) / (float(row["days"]) * DAY) if row["planned"] else 0.0),
        spares=points(float(row.get("spares") or 0.0)),
    )  # fmt: skip
    return run if row.get("spares") else LongRun(**{**vars(run), "spares": best_spares(run)})
