"""Write what the documentation takes from the program: tables, figures, the file reference, and the output of examples.

``python docs/scripts/make_docs.py --data DIR`` writes all of it from a folder of measured data; without ``--data`` the
accuracy pages are left as they are, unless ``--excerpt`` asks for the small excerpt that the package carries.
``--check`` writes nothing and fails where a page differs from what would be written, or an example from what it prints.
``--keep FOLDER`` takes tables that an earlier run kept there, while nothing has changed, and goes on where one was broken off.
``--only PAGE ...`` looks at these pages alone. A new page under ``docs/`` needs no entry here: its examples run in ``docs/examples``.
"""

from __future__ import annotations

import argparse
import collections.abc
import contextlib
import csv
import dataclasses
import difflib
import doctest
import functools
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chips
import hindcast_factors
import numpy as np
import support
import yaml
from pydantic import BaseModel, WithJsonSchema

import crossflow
from crossflow.answers import bands
from crossflow.answers.evaluation.likeness import TOKENS
from crossflow.answers.evaluation.timelines import simulate
from crossflow.answers.scenario_file import RunLength, RunPhase, ScenarioFile
from crossflow.answers.search import settings
from crossflow.answers.study import size, spaces, spec
from crossflow.answers.study.plots import spec as plots
from crossflow.base import limits, units
from crossflow.base.drawing.canvas import Scale, number_axis
from crossflow.base.units import Quantity, show
from crossflow.edges import bench
from crossflow.edges.cli import parser
from crossflow.edges.trace.compare import draw_comparison
from crossflow.edges.trace.gantt import draw_gantt, gantt_of
from crossflow.engine.lasting import spec as reliability
from crossflow.engine.runs import uneven
from crossflow.evidence.emulation import delays, record
from crossflow.evidence.measurement import results
from crossflow.evidence.replay import overheads
from crossflow.evidence.validation import hindcast_files
from crossflow.evidence.validation.bands import Coverage, coverage, judged, left_out, unseen_coverage
from crossflow.evidence.validation.comparison import validate
from crossflow.evidence.validation.hindcast_files import FIGURES as BLIND_FIGURES
from crossflow.evidence.validation.hindcast_files import TRIED, folder, hindcasts
from crossflow.evidence.validation.hindcasts import HindcastTable
from crossflow.evidence.validation.kept import KeptTables
from crossflow.evidence.validation.left_out import WAYS, leave_out
from crossflow.evidence.validation.post_training import post_training_table
from crossflow.evidence.validation.report import Report, Table, errors
from crossflow.evidence.validation.serving_runs import APART
from crossflow.evidence.validation.tables import device_architecture, shipped
from crossflow.evidence.validation.training import TrainingTable
from crossflow.hardware.architecture import execution, network, room, software, template
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.technology import components, library
from crossflow.parallel.strategy import mesh, notation, plan, schedules
from crossflow.program import file as programs
from crossflow.workload import dlrm_spec
from crossflow.workload import spec as workloads
from crossflow.workload.cluster import spec as clusters
from crossflow.workload.requests import laws, post_training
from crossflow.workload.requests.spec import RequestClassSpec, RequestSource, RequestsSpec

DOCS = Path(__file__).resolve().parents[1]
ROOT, EXAMPLES, FIGURES = DOCS.parent, DOCS / "examples", DOCS / "figures"
GENERATED = "<!-- Written by docs/scripts/make_docs.py; change the script or the program, not this file. -->\n"


def main() -> int:
    """Write or check the pages."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--data", type=Path, metavar="DIR", help="folder of measured data for the accuracy pages")
    words.add_argument("--keep", type=Path, metavar="FOLDER", help="where tables of predictions are kept between runs, with --data")
    words.add_argument("--excerpt", action="store_true", help="the accuracy pages from the excerpt in the package")
    words.add_argument("--check", action="store_true", help="write nothing, fail where something differs")
    words.add_argument("--only", nargs="+", type=Path, metavar="PAGE", help="these pages alone, such as docs/how-to/fit.md")
    arguments = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # two parts of a page have the rows of chips that are left out
        kept = KeptTables.of(arguments.keep or Path(folder), arguments.data or shipped())
        return _made(arguments, kept)


def _made(arguments: argparse.Namespace, kept: KeptTables) -> int:
    """Write or check the pages, with tables that are kept."""
    report = validate(arguments.data, whole=True, kept=kept) if arguments.data or arguments.excerpt else None
    own = functools.cache(lambda: _without_own(report, arguments.data, kept))  # two pages have the table
    pages = {DOCS / "files.md": files_page, DOCS / "cli.md": cli_page, DOCS / "support.md": lambda: support.page(GENERATED)}
    if report is not None:
        pages[DOCS / "validation.md"] = lambda: validation_page(report, own(), kept, full=arguments.data is not None)
    chosen = {page.resolve() for page in arguments.only or (*pages, *written_pages())}
    texts = {page: made() for page, made in pages.items() if page in chosen}
    broken: list[str] = []
    for page, place in written_pages().items():
        if page in chosen:
            text = refresh(page.read_text(encoding="utf-8"), place.relative_to(ROOT))
            text = between(text, "support", f"\n{support.compact()}\n") if "<!-- support -->" in text else text
            text = between(text, "speed", f"\n{speed()}\n") if "<!-- speed -->" in text else text
            text = text if report is None else between(text, "accuracy", summary(report))
            texts[page] = between(text, "left out", f"\n{own()}\n") if arguments.data and "<!-- left out -->" in text else text
            broken += doctests(page, texts[page], place)
    if arguments.check:
        broken += [difference for page, text in texts.items() for difference in differences(page, text)]
    else:
        for page, text in texts.items():
            page.write_text(text, encoding="utf-8")
        if not arguments.only:
            draw_figures(report)
    sys.stderr.write("".join(broken))
    return 1 if broken else 0


@functools.cache
def written_pages() -> Mapping[Path, Path]:
    """Pages that people write, and the folder that the examples of each are run in."""
    inside = {page: EXAMPLES for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "scripts"}
    return {ROOT / "README.md": ROOT} | {page: place for page, place in inside.items() if GENERATED not in page.read_text(encoding="utf-8")}


def differences(page: Path, text: str) -> Iterator[str]:
    """What stands in a page and what would be written, as a diff."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    yield from difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(page), "as written now", n=1)


@functools.cache
def prose() -> Mapping[str, Any]:
    """The words between tables, and the meaning of what they list."""
    return dict(yaml.safe_load((Path(__file__).parent / "prose.yaml").read_text(encoding="utf-8")))


# -------------------------------------------------------------------------------------------- examples in pages

_BLOCK = re.compile(r"(?P<marks>(?:<!-- (?:keep [^\n]+|fails) -->\n)*)```console\n(?P<body>.*?)```\n", re.DOTALL)
_KEPT = re.compile(r'(?P<start>\d+|"[^"]+")(?:-(?P<end>\d+)|\+(?P<more>\d+)|(?P<section>-))?(?:, |$)')


def refresh(text: str, place: Path) -> str:
    """A page with the output of its console blocks as the commands print it now.

    ``<!-- keep 1-9, "Memory"-, "limited by", "Budgets"+3 -->`` before a block keeps these lines of the output and puts ``...``
    for the rest (:func:`shortened`). ``<!-- fails -->`` says that its commands end with exit status 2; all others end with 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLES, Path(folder) / EXAMPLES.relative_to(ROOT))
        work = Path(folder) / place

        def rewritten(found: re.Match[str]) -> str:
            commands = [line for line in found["body"].splitlines() if line.startswith("$ ")]
            if not all(line.startswith("$ crossflow") for line in commands):
                return found.group()
            kept = re.search("<!-- keep (.+) -->", found["marks"])
            status = 2 if "<!-- fails -->" in found["marks"] else 0
            body = "".join(f"{line}\n{shortened(output(line[2:], work, status), kept and kept[1])}" for line in commands)
            return f"{found['marks']}```console\n{body}```\n"

        return _BLOCK.sub(rewritten, text)


def output(command: str, folder: Path, status: int = 0) -> str:
    """What a command writes, stdout before stderr, with the paths of this checkout shortened; another exit status is refused."""
    words, _, after = command.partition(" | head -")
    width = {"COLUMNS": "100", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(words)], cwd=folder, env=os.environ | width, capture_output=True, text=True, check=False
    )
    text = (done.stdout + done.stderr).replace(f"{ROOT}/", "").replace(f"{folder}/", "")
    if done.returncode != status or "Traceback" in text:
        raise RuntimeError(f"{command}: exit status {done.returncode} in place of {status}\n{text}")
    lines = text.splitlines()
    return "".join(f"{line}\n" for line in (lines[: int(after)] if after else lines))


def shortened(text: str, keep: str | None) -> str:
    """The lines that are kept, ``...`` for those between.

    A part starts at a line, by its number or by text that it has, and goes on to another number (``3-7``), for some more
    lines (``"Memory"+2``) or to the next empty line (``"Memory"-``). Text is looked for behind what is kept already.
    """
    if keep is None:
        return text
    lines, kept, last = text.splitlines(), [], 0
    for start, stop in _parts(keep, lines):
        kept += _left_out(lines[last:start]) + lines[start:stop]
        last = stop
    return "".join(f"{line}\n" for line in kept + _left_out(lines[last:]))


def _left_out(lines: Sequence[str]) -> list[str]:
    """What stands for lines that are not kept: empty ones stay."""
    return ["..."] if any(line.strip() for line in lines) else [*lines]


def _parts(keep: str, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First line of each part, and the one behind its last."""
    stop = 0
    for part in _KEPT.finditer(keep):
        quoted, wanted = part["start"].startswith('"'), part["start"].strip('"')
        places = (i for i in range(stop, len(lines)) if (wanted in lines[i] if quoted else i + 1 == int(wanted)))
        start = next(places, None)
        if start is None:
            raise RuntimeError(f"keep {keep}: no line {part['start']} in\n" + "\n".join(lines))
        stop = start + 1 + int(part["more"] or 0)
        if part["section"]:
            stop = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
        stop = min(int(part["end"] or stop), len(lines))
        yield start, stop


def doctests(page: Path, text: str, place: Path) -> Iterator[str]:
    """Complaints of the Python examples of a page."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    source = "\n".join(block for block in blocks if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(source, {}, page.name, str(page), 0)
    complaints: list[str] = []
    with contextlib.chdir(place):
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(test, out=complaints.append)
    yield from complaints


def between(text: str, name: str, content: str) -> str:
    """A page with what stands between the marks of a name replaced."""
    return re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda found: found[1] + content + found[2], text, flags=re.DOTALL)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table."""
    rule = ["---:" if i in right else "---" for i in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


# -------------------------------------------------------------------------------------------- reference of files

# Units as people write them, by the SI unit of the field.
WRITTEN = {
    "J/B": "pJ/bit", "W/B": "pW/bit", "m2": "mm2", "m2/B": "um2/bit", "1/m": "1/mm", "B": "GiB", "B/s": "GB/s", "flop/s": "Tflop/s",
    "s": "us", "Hz": "GHz", "J/flop": "pJ/flop", "USD/m2": "USD/mm2", "m": "um", "1": "number", "USD/s": "USD/hour", "kg/J": "g/kWh",
    "W/m2": "W/mm2", "kg/m2": "kg CO2e/cm2", "kg/B": "g CO2e/GB", "1/s": "1/year",
}  # fmt: skip

SECTIONS: tuple[tuple[str, tuple[tuple[str, type[BaseModel], type[BaseModel] | None], ...]], ...] = (
    ("Scenario", (
        ("Top level", ScenarioFile, None),
        ("Length of a run: `run`", RunLength, None),
        ("`phases` of a run", RunPhase, None),
        ("`failures` of a run: a cause, `NAME: {rate: 2 1/year, per: node, detection: 5 min}`", reliability.CauseSpec, None),
        ("Reliability files, which `failures` of a run names", reliability.ReliabilitySpec, None),
        ("Post-training: `job`", post_training.PostTrainingSpec, None),
        ("`reference`, `teacher`, `reward`, `critic` of a job", post_training.FurtherModelSpec, None),
        ("A phase of `job.phases`", post_training.ListedPhaseSpec, None),
        ("`rollout` of a job", post_training.RolloutSpec, None),
        ("Workloads: `model: lstm`", workloads.LstmSpec, None),
        ("Workloads: `model: gemm`", workloads.GemmSpec, None),
        ("Workloads: `model: transformer`", workloads.TransformerSpec, None),
        ("`window` of a transformer (the size alone will do)", workloads.WindowSpec, None),
        ("`latent` of a transformer", workloads.LatentSpec, None),
        ("`experts` of a transformer", workloads.ExpertsSpec, None),
        ("`variants` of a transformer", workloads.VariantSpec, None),
        ("`per_layer` of a transformer", workloads.PerLayerSpec, None),
        ("`ssm` of a transformer", workloads.StateSpaceSpec, None),
        ("`encoder` of a transformer", workloads.EncoderSpec, None),
        ("`image` of a transformer", workloads.ImageSpec, None),
        ("Workloads: `model: program`", workloads.ProgramSpec, None),
        ("Workloads: `model: dlrm`", dlrm_spec.DlrmSpec, None),
        ("`tables` of a dlrm", dlrm_spec.TablesSpec, None),
        ("`reuse` of tables of a dlrm", dlrm_spec.ReuseSpec, None),
        ("`bottom`, `top` of a dlrm", dlrm_spec.MlpSpec, None),
        ("`interaction` of a dlrm", dlrm_spec.InteractionSpec, None),
        ("`experts` of a dlrm", dlrm_spec.TopExpertsSpec, None),
        ("`exchange` of a dlrm", dlrm_spec.ExchangeSpec, None),
        ("`sharding` of a dlrm", dlrm_spec.ShardingSpec, None),
        ("Requests of a service: `requests` (a path alone is short for `trace`)", RequestsSpec, None),
        ("`classes` of requests; what they share with `requests` stands there", RequestClassSpec, RequestSource),
        ("Arrivals of requests: `arrivals`", laws.ArrivalLaw, None),
        ("Lengths of requests: `prompt`, `output`, `tokens` of tools (a number, a list or a file's path alone will do)", laws.LengthLaw, None),
        ("Times of requests: `think`, `time` of tools (a quantity alone will do)", laws.TimeLaw, None),
        ("Numbers of requests: `turns`, `calls` (a number or a list alone will do)", laws.CountLaw, None),
    )),
    ("Software", (
        ("Fields of a software stack", software.SoftwareStack, None),
        ("`attention`", software.AttentionKernel, None),
        ("`kernels`", software.KernelChoice, None),
        ("`kernels.attention`", software.AttentionChoice, None),
        ("`overlap`", software.Overlap, None),
        ("`sharing`", software.WeightSharing, None),
        ("`ring`", software.Ring, None),
        ("`peer_all_reduce`", software.PeerAllReduce, None),
        ("`host`", software.HostCosts, None),
        ("`memory`", software.MemoryHabits, None),
    )),
    ("Schedules, uneven worlds, profiles", (
        ("Pipeline schedules: `kind: schedule`", schedules.ScheduleFile, None),
        ("Uneven worlds: `kind: uneven`", uneven.Uneven, None),
    )),
    ("Measurements", ()),
    ("Programs", (
        ("Top level: `kind: program`", programs.ProgramFile, None),
        ("Matrix products: `kernels[i]` of `kind: product`", programs.ProductRow, None),
        ("Passes over memory: `kernels[i]` of `kind: pass`", programs.PassRow, None),
        ("Fused attention: `kernels[i]` of `kind: attention`", programs.AttentionRow, None),
        ("Scans of state-space layers: `kernels[i]` of `kind: scan`", programs.ScanRow, None),
        ("Layers of experts: `kernels[i]` of `kind: experts`", programs.ExpertsRow, None),
        ("Lookups of embedding tables: `kernels[i]` of `kind: lookup`", programs.LookupRow, None),
        ("Kernels whose time was measured: `kernels[i]` of `kind: timed`", programs.TimedRow, None),
        ("Groups of devices: `groups.NAME`", programs.GroupRow, None),
        ("Collectives and transfers: `messages[i]`", programs.MessageRow, None),
        ("Operations: `ops[i]`", programs.OpRow, None),
        ("Operations that repeat: `blocks[i]`", programs.BlockRow, None),
        ("Memory: `tensors[i]`", programs.TensorRow, None),
    )),
    ("Clusters", (
        ("A cluster and its jobs", clusters.ClusterFile, None),
        ("How jobs are given devices: `scheduler` (its kind alone will do)", clusters.SchedulerSpec, None),
        ("Jobs: `jobs[i]` (the path of a trace alone will do)", clusters.JobsSpec, None),
        ("What they send between nodes: `jobs[i].sends`", network.JobTraffic, None),
    )),
    ("Emulation", (
        ("Delays of collectives: `kind: delays`", delays.DelaysFile, None),
        ("Measured times: `tables[i]`", delays.DelayTable, None),
        ("Records: `kind: collectives`", record.CallRecord, None),
        ("What a real rank did: `ranks[i]`", record.RankRecord, None),
        ("Process groups: `groups[i]`", record.RecordedGroup, None),
        ("Calls: `rows[i]` of `act: call`", record.CallRow, None),
        ("Waits: `rows[i]` of `act: wait`", record.WaitRow, None),
        ("Steps: `rows[i]` of `act: step`", record.StepRow, None),
    )),
    ("Traces", (
        ("Overheads of a host: `kind: overheads`", overheads.OverheadFile, None),
        ("Overheads: `rows[i]`", overheads.OverheadRow, None),
    )),
    ("Measured rows", (
        ("First line: `header`", results.MeasuredHeader, None),
        ("Rows", results.MeasuredRow, None),
    )),
    ("Systems", (
        ("Fields of every system", template.SystemFields, None),
        ("The host's memory: `host`", template.Host, None),
        ("What running it takes: `operation`", template.OperationSpec, None),
        ("`kind: generated`", template.GeneratedSystem, template.SystemFields),
        ("Technology choice: `technology`", template.TechnologyChoice, None),
        ("Where devices stand: `room`", room.Room, None),
        ("Arrays of multipliers: `matrix_unit`", template.MatrixUnit, None),
        ("On-chip levels: `levels.NAME`", template.OnChipLevel, None),
        ("Ends of what may be chosen: `microarchitecture.PATH`", template.Ends, None),
        ("Budgets: `budgets`", template.Budgets, None),
        ("Divisions: one row of `budgets.divisions`", template.TechnologyDivision, None),
        ("Shares: `budgets.area`, `budgets.power_shares`, `budgets.perimeter`", template.BudgetShares, None),
        ("Component changes: `components`", template.ComponentChanges, None),
        ("`second_memory` of a generated device", template.SecondMemoryUse, None),
        ("`kind: datasheet`", template.DatasheetSystem, template.SystemFields),
        ("`technology` of a datasheet device", template.DatasheetTechnology, None),
        ("`levels.NAME` of a datasheet device", template.DatasheetLevel, None),
        ("`second_memory` of a datasheet device", template.SecondMemoryFigures, None),
        ("`power` of a datasheet device", template.DatasheetPower, None),
        ("`energy` of a datasheet device", template.DatasheetEnergy, None),
    )),
    ("Execution and network", (
        ("Execution: `execution`", execution.Execution, None),
        ("`execution.tiles`", execution.TileExecution, None),
        ("`execution.libraries`", execution.KernelLibraries, None),
        ("A library of `execution.libraries.products`", execution.ProductLibrary, None),
        ("`quantise` of a library", execution.Quantising, None),
        ("A library of `execution.libraries.widening`", execution.WideningLibrary, None),
        ("`execution.libraries.experts[name][type]`", execution.ExpertLibrary, None),
        ("`execution.libraries.attention.NAME`", execution.AttentionLibrary, None),
        ("`prefill` of a library of attention", execution.PrefillKernel, None),
        ("`decode` of a library of attention", execution.DecodeKernel, None),
        ("`latent` of a library of attention", execution.LatentKernel, None),
        ("Network: `network`", network.NetworkSpec, None),
        ("`network.intra`, `network.inter`", network.NetworkLevel, None),
        ("`network.inter.congestion`", network.Congestion, None),
        ("`network.inter.congestion.jobs[i]`", network.NeighbourJob, None),
        ("`network.host`", network.HostLink, None),
        ("`network.parameters`", network.FabricParameters, None),
    )),
    ("Chips before their announcement", (
        ("A chip: `kind: hindcast`", hindcast_files.HindcastFile, None),
        ("What was public: `facts`", hindcast_files.Facts, None),
        ("One of them: `facts.NAME`", hindcast_files.Fact, None),
        ("The workload of its day: `divided_for`", hindcast_files.DatedWorkload, None),
        ("What was known later: `answers.NAME`", hindcast_files.LaterFigure, None),
    )),
    ("Technology library", (
        ("Top level", library.TechLibrary, None),
        ("`logic.NAME`", components.LogicNode, None),
        ("`delivery.NAME`", components.Delivery, None),
        ("`compute.NAME`", components.Compute, None),
        ("`datapath.NAME`", components.Datapath, None),
        ("`on_chip.NAME`", components.OnChip, None),
        ("`memory.NAME`", components.OffChip, None),
        ("`link.NAME`", components.Link, None),
        ("`switch.NAME`", components.Switch, None),
        ("`bond.NAME`", components.Bond, None),
        ("`substrate.NAME`", components.Substrate, None),
    )),
    ("Study", (
        ("Top level", spec.StudyFile, None),
        ("Ranges: `sweep.PATH`", spec.SpacedRange, None),
        ("Budgets divided anew: `redivide`", spec.Redivide, None),
        ("Uncertain numbers: `uncertainty`", spec.Uncertainty, None),
        ("Several workloads: `portfolio`", spec.Portfolio, None),
    )),
    ("Searches", (
        ("Quantities: `space.PATH`", spaces.RangeEntry, None),
        ("Options: `space.PATH`", spaces.OptionsEntry, None),
        ("Shares of a budget: `space.system.budgets.area`, `.power_shares`, `.perimeter`", spaces.SharesEntry, None),
        ("Every search: `searches.NAME`", settings.Common, None),
        ("`searcher: gradient`", settings.GradientSettings, settings.Common),
        ("`searcher: slsqp`, `trust-constr`", settings.ScipySettings, settings.Common),
        ("`searcher: evolution`", settings.EvolutionSettings, settings.Common),
        ("`searcher: tpe`, `cma-es`, `nsga2`", settings.OptunaSettings, settings.Common),
        ("`searcher: random`", settings.RandomSettings, settings.Common),
        ("`searcher: exhaustive`", settings.ExhaustiveSettings, settings.Common),
        ("`searcher: given`", settings.GivenSettings, settings.Common),
    )),
    ("Plots", (
        ("All plots: `plots[i]`", plots.PlotFields, None),
        ("`kind: lines`", plots.LinePlot, plots.PlotFields),
        ("`kind: boxes`", plots.BoxPlot, plots.PlotFields),
        ("`kind: convergence`", plots.ConvergencePlot, plots.PlotFields),
        ("`kind: pareto`", plots.ParetoPlot, plots.PlotFields),
        ("`kind: parallel`", plots.ParallelPlot, plots.PlotFields),
        ("`kind: heatmap`", plots.HeatmapPlot, plots.PlotFields),
        ("`kind: breakdown`", plots.BreakdownPlot, plots.PlotFields),
        ("`kind: importance`", plots.ImportancePlot, plots.PlotFields),
        ("`kind: intervals`", plots.IntervalPlot, plots.PlotFields),
        ("`kind: losses`", plots.LossPlot, plots.PlotFields),
    )),
)  # fmt: skip


LIMITS = (
    ("size of a YAML file", f"{limits.YAML_BYTES >> 20} MiB"),
    ("values of a YAML file, what aliases stand for counted each time", f"{limits.YAML_VALUES:,}"),
    ("size of a JSON file, a table or a log, unpacked", f"{limits.DATA_BYTES >> 20} MiB"),
    ("values of a JSON file", f"{limits.DATA_VALUES:,}"),
    ("layers of an MLP, and tables, of a recommendation model", f"{dlrm_spec.MLP_LAYERS:,}, {dlrm_spec.TABLES:,}"),
    ("one event of a trace; the trace itself is read event by event and has no limit", f"{limits.EVENT_BYTES >> 20} MiB"),
    ("lists and mappings inside one another, parts of a path of `--set`", f"{limits.DEPTH}"),
    ("characters of a key, of a text in YAML, of a quantity", f"{limits.KEY}, {limits.TEXT:,}, {units.TEXT}"),
    ("characters of a number; others are text", f"{limits.DIGITS}"),
    ("a whole number", f"{limits.COUNT:.0e}"),
    ("magnitude of any other number, in SI units, where it is not 0", f"{limits.SMALLEST:.0e} to {limits.LARGEST:.0e}"),
    ("layers, and a dimension, of a model", f"{limits.LAYERS:,}, {limits.SIZE:.0e}"),
    ("devices of a system", f"{limits.DEVICES:,}"),
    ("engines of a pool in a replay", f"{limits.ENGINES:,}"),
    ("seed", "0 to 2^32 - 1"),
    ("values of one swept range", f"{spec.MOST_VALUES:,}"),
    ("designs of a study without `--yes`, and its memory", f"{spec.MOST_POINTS:,}, {size.MOST_BYTES >> 30} GiB"),
)


def files_page() -> str:
    """Reference of every file that crossflow reads, and of what it writes."""
    text = f"{GENERATED}\n# Files\n\n{prose()['files']}\n\n## Limits\n\n{prose()['limits']}\n\n" + markdown(("what", "limit"), LIMITS)
    for title, models in SECTIONS:
        text += f"\n## {title}\n\n{prose()['sections'][title]}\n"
        for heading, model, inherited in (*models, *found_below(models)):
            text += f"\n### {heading}\n\n" + markdown(("field", "written as", "default", "meaning"), field_rows(model, inherited))
    return text + _strategies_section() + _results_section()


FieldTable = tuple[str, type[BaseModel], type[BaseModel] | None]  # heading, model, the base whose fields stand elsewhere


def found_below(tables: Sequence[FieldTable]) -> Iterator[FieldTable]:
    """Models in the fields of a section's models that no section lists, each under the field that holds it; those of base classes too."""
    listed = {model for _, section in SECTIONS for _, model, _ in section}
    rest = [table for table in tables if table[1] is not template.ComponentChanges]  # whose fields are those of the library's tables
    while rest:
        heading, model, _ = rest.pop(0)
        for name, info in model.model_fields.items():
            for inner in _models_in(info.annotation):
                if inner not in listed and not any(issubclass(one, inner) for one in listed):
                    listed.add(inner)
                    table: FieldTable = (f"`{name}` in {_inside(heading)}", inner, None)
                    yield table
                    rest.append(table)


def _inside(heading: str) -> str:
    """Words of a heading in another one: small, and without what stands before its name."""
    return heading[:1].lower() + heading[1:]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)


def _strategies_section() -> str:
    """Keys of a transformer's strategy, and the roles of layer types of each kind of workload."""
    meanings, rows = prose()["plan"], []
    words = {name: word for word, name in mesh.NUMBERS.items()}
    for field in dataclasses.fields(plan.Plan):
        options = [f"`{word}`" for word, (name, _) in mesh.WORDS.items() if name == field.name]
        lists = [
            f"`{prefix}{'+'.join(chosen)}`" for prefix, name in mesh.LISTS.items() if name == field.name and (chosen := _CHOICES[name])
        ]
        text = f"`{words[field.name]}N`" if field.name in words else ", ".join(options + lists)
        rows.append((f"`{field.name}`", text, _default(field.default), _cell(meanings[field.name])))
    roles = [
        (form.workloads, f"`{kind}`", ", ".join(f"`{word}`" for word in words))
        for form in notation.FORMS
        for kind, words in form.types.items()
    ]
    return (
        f"\n## Strategies\n\n{prose()['strategies']}\n\n### Of a transformer\n\n"
        + markdown(("key", "as text", "default", "meaning"), rows)
        + f"\n### By layer type\n\n{prose()['roles']}\n\n"
        + markdown(("workload", "layer type", "roles"), roles)
    )


_CHOICES = {
    "offload": mesh.OFFLOADS, "far": mesh.FARS, "unsharded": mesh.TYPES, "apart": mesh.TYPES, "distant": mesh.TYPES, "placement": mesh.BLOCKS,
    "stage_layers": ("3", "4x2", "2"), "recompute_modules": tuple(mesh.MODULE_WORDS),
}  # fmt: skip


def field_rows(model: type[BaseModel], inherited: type[BaseModel] | None) -> Iterator[tuple[str, str, str, str]]:
    """One row a field: name, form, default, meaning."""
    known = prose()["fields"]
    for name, info in model.model_fields.items():
        if inherited is not None and name in inherited.model_fields:
            continue
        meaning = info.description or known.get(f"{model.__name__}.{name}") or known.get(f"*.{name}")
        if meaning is None:
            raise RuntimeError(f"{model.__name__}.{name} has no meaning; give it a description, or a line in prose.yaml")
        value = info.get_default(call_default_factory=True)
        default = "required" if info.is_required() else _default(value, next((m for m in info.metadata if isinstance(m, Quantity)), None))
        yield f"`{info.alias or name}`", _form(info.annotation, info.metadata), default, _cell(meaning)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(value: Any, quantity: Quantity | None = None) -> str:
    if isinstance(value, np.ndarray):
        return f"`{show(value[0], '1' if quantity is None else quantity.unit)}`"
    if isinstance(value, BaseModel):
        return ", ".join(f"{key}: {part}" for key, part in value.model_dump(exclude_defaults=True).items()) or ""
    return "" if value in (None, "", (), {}) else f"`{value}`" if not isinstance(value, tuple) else ", ".join(value)


def _form(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """How a field is written, from its annotation."""
    quantity = next((meta for meta in metadata if isinstance(meta, Quantity)), None)
    if quantity is not None:
        bounded = quantity.unit == "1" and quantity.le == 1
        return "share" if bounded else WRITTEN.get(quantity.unit, quantity.unit)
    if (schema := next((meta.json_schema for meta in metadata if isinstance(meta, WithJsonSchema)), None)) is not None:
        return str(schema["examples"][0]).partition(" ")[2]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _form(arguments[0], arguments[1:])
    if origin is typing.Literal:
        return _cell(" | ".join(f"`{choice}`" for choice in arguments))
    if origin in (dict, collections.abc.Mapping):
        return f"name: {_form(arguments[1])}"
    if origin is tuple:
        return f"list of {_form(arguments[0])}"
    if arguments:
        return " or ".join(dict.fromkeys(_form(part) for part in arguments if part is not type(None)))
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return plain.get(annotation, "text, list or mapping")


# Examples that have all results between them.
RESULTS = ("case-study.yaml", "lstm-on-h100.yaml", "gpt3.yaml", "serving.yaml", "too-large.yaml", "sharded.yaml")


NPZ = (
    "`points.npz` beside them holds the columns that the table and the plots of the study need, so that `--resume` shows a finished run"
    " without reading all its rows.\n\n"
)


def _results_section() -> str:
    predictions = [crossflow.predict(crossflow.load(EXAMPLES / name)) for name in RESULTS]
    found = dict.fromkeys(key for prediction in predictions for key in flat(prediction.to_dict()))
    found |= dict.fromkeys(("reading_problem", "measured_share", "notes[]", "carbon_kg", "embodied_carbon_kg"))  # that no example has
    found |= dict.fromkeys(f"stages[].{key}" for key in ("place", "devices", "layers[]", "capacity_bytes"))
    columns = {name: None for prediction in predictions for name in prediction.score.columns()}
    columns |= dict.fromkeys(("measured_share", "input_throughput_tokens_per_s", "usd_per_million_tokens"))  # that no example has
    columns |= dict.fromkeys(("carbon_kg", "carbon_kg_per_million_tokens", "run.carbon_kg", "embodied_carbon_kg", "run.embodied_carbon_kg"))
    intro = "One object. Times in s, sizes in B, energy in J, power in W, carbon in kg; `*` stands for a name.\n\n"
    outputs = "\n## What `predict --json` prints\n\n" + intro + markdown(("key", "meaning"), _explained(found, prose()["keys"]))
    outputs += f"\n## Columns of `points.csv` and `points.jsonl`\n\n{NPZ}One row a point: `id`, the swept paths, and\n\n"
    return outputs + markdown(("column", "meaning"), _explained(columns, prose()["columns"]))


def flat(data: Any, path: str = "") -> Iterator[str]:
    """Paths of all values in plain data."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from flat(value, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        for value in data:
            yield from flat(value, f"{path}[]")
    else:
        yield path


def _explained(found: Iterable[str], meanings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The patterns that occur, with their meanings; RuntimeError for a key that no pattern matches."""
    patterns = {pattern: re.compile(re.escape(pattern).replace(r"\*", ".+") + "$") for pattern in meanings}
    # The longest pattern wins, so that a general one does not hide a special one.
    used: dict[str, None] = {}
    for key in found:
        match = max(
            (pattern for pattern, regex in patterns.items() if regex.match(key)),
            key=lambda pattern: len(pattern.replace("*", "")),
            default=None,
        )
        if match is None:
            raise RuntimeError(f"no meaning for the key {key}")
        used[match] = None
    yield from ((f"`{pattern}`", meanings[pattern]) for pattern in meanings if pattern in used)


# -------------------------------------------------------------------------------------------- reference of commands


def cli_page() -> str:
    """Reference of every command, from the parser itself."""
    commands: Mapping[str, argparse.ArgumentParser] = next(
        action.choices for action in parser.build()._actions if isinstance(action, argparse._SubParsersAction)
    )
    shared = {"-h": "", "--set": prose()["cli"]["set"], "--json": prose()["cli"]["json"]}
    text = f"{GENERATED}\n# Commands\n\n{prose()['cli']['intro']}\n\n"
    text += markdown(("command", "what it does"), [(f"[`crossflow {name}`](#{name})", f"{_about(one)}.") for name, one in commands.items()])
    text += "\n## In every command\n\n" + markdown(("option", "meaning"), [(f"`{name}`", about) for name, about in shared.items() if about])
    for name, one in commands.items():
        text += f"\n## {name}\n\n{one.description}\n\n```text\n{_usage(one)}\n```\n\n"
        rows = [_argument_row(action) for action in one._actions if not {*action.option_strings} & {*shared} or name == "emulate"]
        text += markdown(("argument", "meaning"), [row for row in rows if row[0] != "`-h`, `--help`"])
    return text


def _about(one: argparse.ArgumentParser) -> str:
    """What a command does, as the end of a sentence that its name begins."""
    assert one.description is not None
    return one.description.rstrip(".")


def _usage(one: argparse.ArgumentParser) -> str:
    """How a command is written, in lines of at most 100 characters whatever the terminal."""
    one.formatter_class = functools.partial(argparse.HelpFormatter, width=100)  # type: ignore[assignment]
    return one.format_usage().removeprefix("usage: ").replace("\n       ", "\n").rstrip()


def _argument_row(action: argparse.Action) -> tuple[str, str]:
    shown = action.metavar if isinstance(action.metavar, str) else "|".join(map(str, action.choices or ()))
    value = "" if action.nargs == 0 else shown
    names = ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in action.option_strings) or f"`{shown}`"
    one_of = f" One of {', '.join(f'`{choice}`' for choice in action.choices)}." if action.choices else ""
    about = _cell((action.help or "").replace("*", "\\*"))
    return names.replace("|", "\\|"), f"{about[:1].upper()}{about[1:]}.{one_of}"


# -------------------------------------------------------------------------------------------- accuracy

TITLES = {
    "gemm": "Matrix products",
    "generated_gemm": "Matrix products on generated chips",
    "collectives": "Collectives",
    "training_runs": "Training runs",
    "mlperf_training": "MLPerf training",
    "published_training": "Rates of Megatron Bridge",
    "torchtitan_training": "Rates of torchtitan",
    "maxtext_training": "Rates of MaxText on TPUs",
    "accelerators_training": "Training on chips of AMD, Intel and AWS",
    "accelerators_serving": "Serving on chips of AMD, Intel and AWS",
    "wide_experts": "Services with experts over many nodes",
}
OWN = {"gemm_graph": "Matrix products in CUDA graphs", "moe": "Layers of experts", "kernel_power": "Power of kernels"}  # beside these
PLURAL = ("MLPerf", "AWS Neuron", "Megatron Bridge", "torchtitan", "MaxText")  # sources of many releases, which one line is about
WORST, OF_EACH, FEWEST = 15, 3, 20  # groups that are shown first, how many of a table, and how many rows they have at least
STATISTICS = ("rows", "median", "mean", "p90", "bias")
ERRORS = ("median_abs_error", "mean_abs_error", "p90_abs_error", "bias")


def validation_page(report: Report, own: str, kept: KeptTables, *, full: bool) -> str:
    """Predicted against measured, for every table of a report; `own` is the table of rows without what was fitted to their own group."""
    data = (
        "From the full folder of measured data of the project, given with `--data`; the package carries an evenly spaced excerpt of it, which `crossflow validate` uses by itself."
        if full
        else "From the excerpt of measured data that the package carries."
    )
    text = f"{GENERATED}\n# Accuracy\n\n{data}\n\n## Where it is weak\n\n{prose()['worst']}\n\n{_worst(report)}\n{prose()['weak']}\n\n"
    text += (
        f"## What these errors are\n\n{prose()['accuracy']}\n\n## Rows of a group that nobody fitted\n\n{prose()['without_own']}\n\n{own}\n"
    )
    text += f"## Bands of error\n\n{prose()['bands']}\n\n{_bands(report, kept)}\n"
    text += "## Sources\n\n" + "".join(f"- {line}\n" for line in _sources(report)) + "\n"
    for table in report.tables:
        apart = isinstance(table, HindcastTable) or table.name == "post_training"  # which has its section below
        text += "" if apart else f"## {TITLES.get(table.name, table.name)}\n\n{_table(table)}"
    text += f"## Runs that NVIDIA publishes\n\n{prose()['published']}\n\n{_published()}\n"
    text += f"## Iterations of post-training that NVIDIA publishes\n\n{prose()['post_training']}\n\n{_iterations()}\n"
    text += f"## Points that MAD-Max prints\n\n{prose()['points']}\n\n{_points()}\n"
    text += f"## Generated devices against datasheets\n\n{_anchors()}\n"
    text += f"## Generated chips against published figures\n\n{prose()['chips']}\n\n{_chips()}\n"
    return text + "".join(_blind(table) for table in report.tables if isinstance(table, HindcastTable))


def _without_own(report: Report, folder: Path | None, kept: KeptTables) -> str:
    """Median errors of tables without what was fitted to the chip, source or engine of a row."""
    rows = []
    for way in WAYS:
        found = leave_out(way, folder, whole=True, fitted=report, kept=kept)
        for fitted, left in zip(found.fitted.tables, found.left_out.tables, strict=True):
            if len(left.measured) >= FEWEST:
                both = (errors(table.measured, table.predicted) for table in (fitted, left))
                medians = (_percent(one["median_abs_error"]) for one in both)
                name = (TITLES | OWN).get(left.name, left.name.replace("_", " ").capitalize())
                rows.append((f"{name}, without their {way}", f"{len(left.measured):,}", *medians))
    return markdown(("rows", "number", "median error as fitted", "left out"), rows, right=(1, 2, 3))


def _blind(table: HindcastTable) -> str:
    """Chips that were predicted from what was public before they were announced: ratios, gates, rules, inputs and forecasts."""
    words = prose()["blind"]
    text = f"## Chips predicted before they were announced\n\n{words['intro']}\n\n{_ratios(table)}\n{words['ratios']}\n\n"
    text += f"### What the errors come from\n\n{words['factors']}\n\n{_factors()}\n"
    text += f"### Rules that were tried\n\n{words['rules']}\n\n{_tried()}\n"
    text += f"### Forecasts\n\n{words['forecasts']}\n\n{_forecasts(table)}\n"
    return text + f"### What was known, and since when\n\n{words['facts']}\n\n{_facts()}"


def _ratios(table: HindcastTable) -> str:
    """Predicted over later figures by chip, what is beyond its gate in bold, and the gates."""
    told = table.to_dict()
    chips = {name: found for name, found in told["chips"].items() if not hindcasts()[name].forecast}
    rows = [[name, *(_mark(found.get(figure)) for figure in BLIND_FIGURES)] for name, found in chips.items()]
    known = told["gates"]
    rows.append(["gate", *(f"{100 * known[name]['within']:.0f} %" if name in known else "" for name in BLIND_FIGURES)])
    rows.append(["held by", *(f"{known[name]['held']} of {known[name]['chips']}" if name in known else "" for name in BLIND_FIGURES)])
    rows.append(["mean size of the logarithm", *(_percent(known[name]["mean_log"]) if name in known else "" for name in BLIND_FIGURES)])
    return markdown(("", *BLIND_FIGURES), rows, right=range(1, len(BLIND_FIGURES) + 1))


def _mark(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"**{found['ratio']:.2f}**" if found["holds"] is False else f"{found['ratio']:.2f}"


def _factors() -> str:
    """Parts of the logarithm of predicted over later figures, by chip and figure."""
    found = hindcast_factors.kept()
    parts = [name for name in found[0] if name not in ("chip", "figure")]
    rows = [(row["chip"], row["figure"], *(f"{100 * float(row[part]):+.0f} %" for part in parts)) for row in found]
    means = [(name, np.mean([[abs(float(row[part])) for part in parts] for row in found if row["figure"] == name], axis=0))
             for name in dict.fromkeys(row["figure"] for row in found)]  # fmt: skip
    rows += [("mean size", name, *(_percent(float(size)) for size in sizes)) for name, sizes in means]
    return markdown(("chip", "figure", *parts), rows, right=range(2, 2 + len(parts)))


def _tried() -> str:
    """Mean size of the logarithm of ratios under each rule, over the chips that have the figure."""
    with (folder() / TRIED).open(encoding="utf-8") as file:
        found = list(csv.DictReader(line for line in file if not line.startswith("#")))
    figures = [name for name in found[0] if name not in ("rule", "chip")]
    rows = []
    for rule in dict.fromkeys(row["rule"] for row in found):
        values = {name: [abs(np.log(float(row[name]))) for row in found if row["rule"] == rule and row[name]] for name in figures}
        rows.append((rule, *(_percent(float(np.mean(logs))) for logs in values.values())))
    return markdown(("rule", *figures), rows, right=range(1, len(figures) + 1))


def _forecasts(table: HindcastTable) -> str:
    rows = [
        (hindcasts()[name].title, *(show(made[figure], BLIND_FIGURES[figure].unit) if figure in made else "-" for figure in BLIND_FIGURES))
        for name, made in table.forecasts.items()
    ]
    return markdown(("", *BLIND_FIGURES), rows, right=range(1, len(BLIND_FIGURES) + 1))


def _facts() -> str:
    """Inputs of every chip."""
    rows = [
        (
            file.name,
            name.replace("_", " "),
            str(fact.value),
            fact.date.isoformat(),
            fact.status,
            f"{file.sources[fact.source]}{_noted(fact.note)}",
        )
        for file in hindcasts().values()
        for name, fact in file.facts
        if fact is not None
    ]
    return markdown(("chip", "fact", "value", "public since", "status", "source"), rows)


def _noted(note: str) -> str:
    return f"; {note}" if note else ""


def _worst(report: Report) -> str:
    """The groups of rows of all tables with the largest median errors."""
    found = []
    for table in report.tables:
        known = np.isfinite(table.measured)
        for way, members in table.groups.items():
            for name, mask in _masks(members):
                if way not in ("kind", "stack", "fitted") and (mask & known).sum() >= FEWEST:
                    told = errors(table.measured[mask & known], table.predicted[mask & known])
                    found.append((told["median_abs_error"], TITLES.get(table.name, table.name), _plain(name), told))
    ordered = sorted(found, key=lambda row: -row[0])
    worst = [row for i, row in enumerate(ordered) if sum(other[1] == row[1] for other in ordered[:i]) < OF_EACH][:WORST]
    rows = [(title, name, f"{told['n']:,}", *(_percent(told[key]) for key in ERRORS)) for _, title, name, told in worst]
    return markdown(("table", "rows of", *STATISTICS), rows, right=range(2, 7))


def _bands(report: Report, kept: KeptTables) -> str:
    """Shares of rows kept aside that lie within their bands, by kind and chip, and the bands of devices that no fit has seen."""
    with bands.FILE.open(encoding="utf-8") as file:
        known = [row for row in csv.DictReader(file) if row["seen"] in ("family", "none", bands.GENERATED)]
    lines = [row for row in known if not any(row[trait] for trait in bands.TRAITS)]
    rows = [
        (row["kind"], _devices(row), f"{int(row['n']):,}", *(_percent(float(row[key])) for key in ("median", "p90", "bias")))
        for row in lines
    ]
    header = ("", "devices", "rows", "median", "p90", "bias")
    seen, unseen = coverage(list(judged(report.tables))), unseen_coverage(left_out(report.data, kept))
    told = f"{_shares(seen)}\n{prose()['unseen']}\n\n{_shares(unseen)}"
    return f"{told}\n{prose()['left_out']}\n\n{markdown(header, rows, right=range(2, 6))}"


def _devices(row: Mapping[str, str]) -> str:
    """Devices of a line of bands; chips of a kind that is not among the measured ones have a band twice as wide."""
    of_kind = f" (chips with {row['memory']})" if row["memory"] else " (for chips of another kind)" if row["seen"] == "none" else ""
    return bands.SEEN_AS[row["seen"]] + of_kind


def _shares(found: Sequence[Coverage]) -> str:
    rows = [(one.kind, one.chip or "all", f"{one.n:,}", _percent(one.share)) for one in found]
    return markdown(("", "chip", "rows", "within their 90 % band"), rows, right=(2, 3))


# Training rates that NVIDIA prints of its own code, with their layouts.
PUBLISHED = ROOT / "tests" / "data" / "nvidia_runs.csv"
ITERATIONS = PUBLISHED.parent  # of post-training, in post_training.csv


@functools.cache
def _published_runs() -> tuple[tuple[Mapping[str, str], float, float, bool], ...]:
    """Rows of the file with the rate measured, the rate predicted, and whether the run was predicted to fit."""
    found = []
    with PUBLISHED.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            gpus, domain = int(row["gpus"]), int(row["domain"])
            workload = {"model": row["model"], "dtype": row["dtype"], **{name: int(row[name]) for name in ("global_batch", "sequence")}}
            system = {"template": row["system"], "devices_per_node": domain, "nodes": gpus // domain}
            given = {"system": system, "workload": workload, "strategy": row["strategy"], "software": "nemo"}
            made = crossflow.predict(crossflow.from_dict(given))
            rate = float(made.score.tokens_per_second[0]) / gpus
            found.append((row, float(row["tokens_per_second_per_gpu"]), rate, made.feasible))
    return tuple(found)


def _published_errors(kind: str) -> list[float]:
    """Relative errors of the rates of one kind of model."""
    return [ours / measured - 1 for row, measured, ours, _ in _published_runs() if row["kind"] == kind]


def _published() -> str:
    """Rates that NVIDIA publishes, and ours."""
    rows = []
    for row, measured, ours, fits in _published_runs():
        device = next(iter(re.findall(r"g?[bh]\d+", row["system"]))).upper()
        told = (row["release"], row["model"], f"{row['gpus']} {device}", row["dtype"], row["strategy"] + ("" if fits else " *"))
        rows.append((*told, f"{measured:,.0f}", f"{ours:,.0f}", _percent(ours / measured - 1)))
    kinds = {"dense models": _published_errors("dense"), "mixtures of experts": _published_errors("experts")}
    whole = [(title, str(len(found)), *(_percent(value) for value in _sizes(found))) for title, found in kinds.items()]
    table = markdown(("release", "model", "GPUs", "type", "strategy", "tokens/s a GPU", "crossflow", "error"), rows, right=(5, 6, 7))
    return markdown(("", "runs", "median", "mean", "bias"), whole, right=range(1, 5)) + "\n" + table


def _iterations() -> str:
    """Errors of published iterations of post-training, in groups."""
    table = post_training_table(ITERATIONS)
    off = table.predicted / table.measured - 1
    rows = [("all", "", str(len(off)), *map(_percent, _sizes(off.tolist())))]
    for way, members in table.groups.items():
        for name in sorted(set(members)):
            mine = [error for error, other in zip(off.tolist(), members, strict=True) if other == name]
            rows.append((way, name, str(len(mine)), *map(_percent, _sizes(mine))))
    skipped = "".join(f"\n- {number} row left out: {reason}" for reason, number in table.skipped.items())
    return markdown(("", "", "rows", "median", "mean", "bias"), rows, right=range(2, 6)) + skipped


def _sizes(found: Sequence[float]) -> tuple[float, float, float]:
    """Median and mean of the errors' sizes, and their mean."""
    return float(np.median(np.abs(found))), float(np.mean(np.abs(found))), float(np.mean(found))


# Vision transformers that MAD-Max measured (ISCA 2024, Fig. 8; artifact sheet B), and what it predicted.
VITS = ROOT / "tests" / "data" / "madmax_vit.csv"
# What FSDP runs of 2022 on p4d are predicted with: one of a node's four cards, over sockets.
ONE_CARD = {"fabric": "ethernet", "bandwidth": "1.5625 GB/s"}


def _points() -> str:
    """Points of MAD-Max: measured, its own prediction, ours."""
    rows = []
    for name in ("dlrm-a", "dlrm-b"):
        plain = {"system": {"template": "zionex", "nodes": 16}, "workload": {"model": name, "global_batch": 65536}}
        score = crossflow.predict(crossflow.from_dict({**plain, "strategy": {"dense": ["ddp"], "embedding": ["mp"]}})).score
        sent = sum(float(part[0]) for part in score.communication.values())
        exposed = float(score.exposed_share[0])
        products, lookups = float(score.bound["compute"][0] * score.step_time[0]), float(score.by_layer["embedding.compute"][0])
        rate = float(score.samples_per_second[0]) / 1e6
        if name == "dlrm-a":
            rows += [_point("DLRM-A, all one after the other [ms]", 67.40, 65.30, 1e3 * float(score.serialized[0]))]
            rows += [
                _point("DLRM-A, communication exposed [%]", 82.37, 75.46, 100 * (float(score.step_time[0]) - products - lookups) / sent),
                ("DLRM-A, communication that no kernel hides [%]", "", "", "", f"{100 * exposed:.4g}", ""),
                _point("DLRM-A [million samples/s]", 1.2, 1.21, rate),
            ]
        else:
            rows += [_point("DLRM-B at 65,536 samples, as MAD-Max [million samples/s]", 3.4, 3.06, rate)]
    llama = {"system": {"template": "a100-ib-2048"}, "workload": {"model": "llama-65b", "global_batch": 2048}, "software": "pytorch-fsdp"}
    found = crossflow.predict(crossflow.from_dict({**llama, "strategy": "dp2048-z3-full", "run": {"tokens": 1.4e12}})).run
    rows.append(_point("LLaMA-65B, 1.4e12 tokens [days]", 20.83, 19.21, float(found["time_s"] or 0) / 86400))
    errors = []
    for name, devices, batch, measured, theirs in _vits():
        system = {"template": "aws-p4d", "nodes": devices // 8, "network": {"inter": ONE_CARD}}
        plain = {"system": system, "workload": {"model": name, "global_batch": batch}, "software": "pytorch-fsdp-2022"}
        plans = [crossflow.from_dict({**plain, "strategy": f"dp{devices}-mb{batch // devices}-z3{end}"}) for end in ("", "-full")]
        made = next(found for found in map(crossflow.predict, plans) if found.feasible)
        ours = 3.0 * plans[0].job().model.forward_flops() * batch / devices / 1e12 / made.step_time
        errors.append((abs(theirs / measured - 1), abs(ours / measured - 1)))
        rows.append(_point(f"{name}, {devices} GPUs, batch {batch} [Tflop/s a GPU]", measured, theirs, ours))
    for what, mean in (("mean", np.mean(errors, axis=0)), ("median", np.median(errors, axis=0))):
        rows.append((f"vision transformers, {what} of the errors' sizes", "", "", _percent(mean[0]), "", _percent(mean[1])))
    return markdown(("", "measured", "MAD-Max", "error", "crossflow", "error"), rows, right=range(1, 6))


def _vits() -> Iterator[tuple[str, int, int, float, float]]:
    with VITS.open(encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            measured, theirs = (float(row[f"{who}_tflops_per_device"]) for who in ("measured", "madmax"))
            yield row["model"], int(row["devices"]), int(row["global_batch"]), measured, theirs


def _point(what: str, measured: float, theirs: float, ours: float) -> tuple[str, ...]:
    return what, f"{measured:g}", f"{theirs:.4g}", _percent(theirs / measured - 1), f"{ours:.4g}", _percent(ours / measured - 1)


def _sources(report: Report) -> Iterator[str]:
    named = {_plain(source) for table in report.tables for source in table.groups.get("source", ())}
    works = prose()["works"]
    yield from (about for name, about in works.items() if name in named)
    logs = sorted(name for name in named - set(works) if not name.startswith(PLURAL))
    if logs:
        yield "public nccl-tests logs: " + "; ".join(logs)


def _plain(source: str) -> str:
    return re.sub(r"\s*\(.*$|\s*@.*$", "", source)


def _table(table: Table) -> str:
    if isinstance(table, TrainingTable):
        return _runs(table)
    ways = ("device and regime", "regime", "system") if table.name == "collectives" else ("device", "device and regime", "regime")
    rows = [_statistics("**all**", table.measured, table.predicted)]
    for way in (way for way in (*ways, "figure", "seen", "source") if way in table.groups):
        members = [_plain(member) if way == "source" else member for member in table.groups[way]]
        rows += [_statistics(name, table.measured[mask], table.predicted[mask]) for name, mask in _masks(members)]
    notes = [f"- conditions of the measurement: {note}\n" for note in table.notes]
    skipped = [f"- {count:,} rows skipped: {reason}\n" for reason, count in table.skipped.items()]
    skipped = skipped or ["No row was skipped.\n" + "\n" * bool(notes)]
    figure = f"![Predicted against measured](figures/{table.name}.png)\n\n"
    return markdown(("", *STATISTICS), rows, right=range(1, 6)) + "\n" + "".join([*skipped, *notes]) + "\n" + figure


def _runs(table: TrainingTable) -> str:
    """Training runs: errors of time, order of layouts, memory, and what fits."""
    rows = [_run_statistics("**all**", table, np.ones(len(table.measured), dtype=bool))]
    for way in ("source", "device", "source and model", "model", "kind", "type"):
        rows += [_run_statistics(name, table, mask) for name, mask in _masks(table.groups.get(way, ()))]
    skipped = [f"- {count:,} rows skipped: {reason}\n" for reason, count in table.skipped.items()] or ["No row was skipped.\n"]
    header = ("", *STATISTICS, "rank", "memory", "fit predicted right", "of runs out of memory, predicted")
    figure = f"![Predicted against measured](figures/{table.name}.png)\n\n"
    words = f"\n{prose()['runs']}\n\n" if table.name == "training_runs" else "\n"
    return markdown(header, rows, right=range(1, len(header))) + "\n" + "".join(skipped) + words + figure


def _run_statistics(name: str, table: TrainingTable, mask: Any) -> tuple[str, ...]:
    found = table.statistics(mask)
    rank = found["rank_correlation"]
    return (
        name, f"{found['n']:,}", *(_percent(found[key]) for key in ERRORS),
        "-" if rank is None else f"{rank:.2f}", _percent(found["memory_median_abs_error"]), _percent(found["oom_accuracy"]),
        "-" if not found["oom_n"] else f"{_percent(found['oom_recall'])} of {found['oom_n']}",
    )  # fmt: skip


def _masks(members: Sequence[str]) -> Iterator[tuple[str, Any]]:
    names = np.array(members)
    yield from ((name, names == name) for name in sorted(set(members)))


def _statistics(name: str, measured: Any, predicted: Any) -> tuple[str, ...]:
    found = errors(measured, predicted)
    return name, f"{found['n']:,}", *(_percent(found[key]) for key in ERRORS)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _anchors() -> str:
    """Generated V100 and P4 beside the datasheets of the products."""
    rows = []
    for generated, published, dtype in (("v100", "v100-sxm2-16gb", "fp16"), ("p4", "p4-datasheet", "fp32")):
        plain = {"system": {"template": generated}, "workload": {"model": "gemm", "m": 1, "n": 1, "k": 1, "dtype": dtype}}
        made = crossflow.predict(crossflow.from_dict(plain)).device
        sheet = device_architecture(published)
        assert sheet is not None
        for what, unit, figure in _figures(made, sheet, dtype):
            ours, theirs = figure
            rows.append((generated, what, show(ours, unit), show(theirs, unit), f"{100 * (ours / theirs - 1):+.1f} %"))
    return markdown(("template", "figure", "generated", "datasheet", "difference"), rows, right=(2, 3, 4))


def _chips() -> str:
    """Chips generated from their budgets beside what is published of them."""
    header = ("chip", "figure", "published", "generated", "ratio", "kind", "source of the published figure")
    return markdown(header, [row.shown() for row in chips.rows()], right=(2, 3, 4))


def _figures(made: Architecture, sheet: Architecture, dtype: str) -> Iterator[tuple[str, str, tuple[float, float]]]:
    rate = sheet.throughput.get(dtype, sheet.vector_throughput.get(dtype))
    yield f"{dtype} rate", "flop/s", (made.throughput[dtype][0], rate[0])  # type: ignore[index]
    yield "units (SMs)", "1", (made.units[0], sheet.units[0])
    if "l2" in [level.name for level in sheet.levels]:
        yield "L2 capacity", "B", (made.level("l2").capacity[0], sheet.level("l2").capacity[0])
    # Memory as built, before check bits and the share of the bandwidth that kernels reach.
    published = _published_memory(sheet)
    yield "memory capacity", "B", (made.memory.capacity[0], published.capacity[0])
    yield "memory bandwidth", "B/s", (made.memory.bandwidth[0], published.bandwidth[0])


def _published_memory(sheet: Architecture) -> Any:
    from crossflow.base.files import Document
    from crossflow.hardware.architecture.system import resolve

    system, _ = resolve(Document(file="docs", data={"template": sheet.name}))
    return system.levels["memory"]


# What the README says of some figures of `crossflow bench`, by name, and how it shows their values.
SPEEDS = {
    "predict_first": "the first prediction in a fresh process, by the names of a model and a system: start and choice of a strategy included",
    "predict_changed": "one prediction of the case study (LSTM language model, 512 devices; 65,536 devices take as long)",
    "points_per_second": "technology and budget points of it",
    "study_points_per_second": "random designs of it, written to disk by a study; a million take 140 MB of memory",
    "gradient_search": "the paper's search of 14 budget shares (10 starts, 100 steps)",
    "transformer_changed": "one evaluation of GPT-3 175B on 512 GPUs, interleaved pipeline and memory included",
    "transformer_warm": "the same once more, with nothing changed",
    "transformer_points": "the same with many values of a quantity at once",
    "plans_per_second": "plans that divide GPT-3 175B over 4096 GPUs; half as many a second the first time in a process",
    "replayed_requests": "requests of conversations, replayed through eight engines with prefix caches",
    "gemms_100k": "100,000 distinct matrix products on an A100",
}


def speed() -> str:
    """The table of speeds of the README, from the recorded figures."""
    recorded = bench.read(DOCS / "bench.json")
    rows = [[words, _speed(recorded[name]["value"], recorded[name]["unit"])] for name, words in SPEEDS.items()]
    return markdown(["", ""], rows, right=[1])


def _speed(value: float, unit: str) -> str:
    """A figure with two digits."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f} a second" if unit == "1/s" else show(rounded, "s")


def summary(report: Report) -> str:
    """The small table of the README."""
    rows = []
    for table in report.tables:
        if table.name == "gemm":
            names = {
                "a100-80gb, >= 100 us": "matrix products on A100, 100 us and more",
                "h100-80gb, >= 100 us": "matrix products on H100, 100 us and more",
            }
            rows += _summary_rows(table, "device and regime", names)
            rows.append(("matrix products, all", *_short(table.measured, table.predicted)))
        elif table.name == "training_runs" and isinstance(table, TrainingTable):
            names = {
                "hf-ultrascale-2025": "training of Llamas, nanotron, 8 to 512 H100, weeks of a degraded network",
                "hf-ultrascale-2025-early": "the same in healthy weeks, to which its software is fitted",
                "llm-foundry": "training of MPT, FSDP, 8 to 512 A100 and H100",
                "vtrain-2024": "training of GPT, Megatron-DeepSpeed, 64 and 512 A100",
                "bigscience-2022": "training of BLOOM, Megatron-DeepSpeed, 384 A100",
                "simumax-b200-2026": "training of Llama layers, Megatron-Core, 8 B200",
            }
            rows += _summary_rows(table, "source", names)
            rows.append(("training runs, all", *_short(table.measured, table.predicted)))
            rows.append(("peak memory of training runs", *_short(table.peak, table.needed)))
            for kind, title in (("dense", "dense models in 8 and 4 bits"), ("experts", "mixtures of experts")):
                found = _published_errors(kind)
                shown = (_percent(size) for size in _sizes(found)[:2])
                rows.append((f"rates that NVIDIA publishes, {title}; {_fitted(title)}", str(len(found)), *shown))
        elif table.name == "generated_gemm":
            rows.append(("the same on generated A100 and H100, 100 us and more", *_short(table.measured, table.predicted)))
        elif isinstance(table, HindcastTable):
            names = {"matrix products": "matrix products", "training of dense language models": "training", TOKENS: "decoding"}
            for kind, mask in _masks(table.alike["kind"]):
                if kind in names:
                    title = f"{names[kind]} of chips predicted before they were announced; nothing fitted"
                    rows.append((title, *_short(table.measured[mask], table.predicted[mask])))
        elif table.name == "collectives":
            names = {
                "inside NVSwitch nodes, >= 1 MiB": "collectives inside NVSwitch nodes, 1 MiB and more",
                "where the wiring matters, >= 1 MiB": "collectives on cube mesh and NVLink pairs, 1 MiB and more",
                "across nodes, >= 1 MiB": "collectives across nodes, 1 MiB and more",
            }
            rows += _summary_rows(table, "regime", names)
            rows.append(("collectives, all sizes", *_short(table.measured, table.predicted)))
        elif table.name in ("mlperf_training", "published_training", "maxtext_training"):
            title = {
                "mlperf_training": "steps of MLPerf training",
                "published_training": "rates of Megatron Bridge",
                "maxtext_training": "rates of MaxText on TPU v4 to Ironwood",
            }[table.name]
            for kind, mask in _masks(table.groups["kind"]):
                short = kind.removeprefix("training of ")
                rows.append((f"{title}, {short}; {_fitted(short)}", *_short(table.measured[mask], table.predicted[mask])))
        elif table.name == "serving":
            figures, left = dict(_masks(table.groups["figure"])), np.ones(table.measured.size, bool)
            for title, kinds in SERVED.items():
                mask = np.any([figures[kind] for kind in kinds], axis=0)
                rows.append((title, *_short(table.measured[mask], table.predicted[mask])))
                left &= ~mask
            for figure in ("time per token", "first token"):
                mask = np.any([held for kind, held in figures.items() if kind.startswith(f"{figure}, {APART}")], axis=0)
                title = f"serving with {APART}, {figure}; mostly it is not said whether it guesses"
                rows.append((title, *_short(table.measured[mask], table.predicted[mask])))
                left &= ~mask
            title = "serving of which something is not said (docs/validation.md)"
            rows.append((title, *_short(table.measured[left], table.predicted[left])))
        elif table.name == "power":
            names = {name: f"power of H100 nodes in MLPerf training, {name}" for name, _ in _masks(table.groups["trained"])}
            rows += _summary_rows(table, "trained", names)
        elif table.name in OF_MAKERS and table.measured.size:
            title = OF_MAKERS[table.name]
            names = {name: title.format(name) for name, _ in _masks(table.groups["maker"])}
            rows.extend(_summary_rows(table, "maker", names))
        elif table.measured.size:
            rows.append((PLAIN.get(table.name, table.name.replace("_", " ")), *_short(table.measured, table.predicted)))
    return "\n" + markdown(("measured", "rows", "median error", "mean error"), rows, right=(1, 2, 3)) + "\n"


# Figures of services whose conditions are known, by what the summary calls them.
SERVED = {
    "serving, time per token": ("time per token, more than 8 requests", "time per token, up to 8 requests"),
    "serving, first token": ("first token",),
}
# Tables of which the summary has a line for each maker of chips.
OF_MAKERS = {
    "accelerators_training": "training on chips of {}; nothing fitted",
    "accelerators_serving": "serving on chips of {}; nothing fitted",
}
# What the tables without groups of their own are called in the summary.
PLAIN = {
    "gemm_graph": "matrix products of serving engines, in CUDA graphs",
    "simumax_kernels": "matrix products and attention of training, launched one by one",
    "moe": "layers of experts",
    "torchtitan_training": "rates of torchtitan",
    "wide_experts": "services with experts over many nodes; nothing fitted, 18 rows known before",
    "kernel_power": "power of a B200 while one kernel runs",
}


def _fitted(kind: str) -> str:
    """What was fitted to published runs of a kind: of experts how fast their rows are moved (docs/scripts/fit_published.py)."""
    return "one number fitted" if "mixtures" in kind else "nothing fitted"


def _summary_rows(table: Table, way: str, names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for name, mask in _masks(table.groups[way]):
        if name in names:
            yield names[name], *_short(table.measured[mask], table.predicted[mask])


def _short(measured: Any, predicted: Any) -> tuple[str, str, str]:
    known = np.isfinite(measured)
    found = errors(measured[known], predicted[known])
    return f"{found['n']:,}", _percent(found["median_abs_error"]), _percent(found["mean_abs_error"])


# -------------------------------------------------------------------------------------------- figures

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")  # colour-blind safe (Okabe and Ito)
MARKERS = ("o", "^", "s")  # where there are more groups than colours


def draw_figures(report: Report | None) -> None:
    """The technology-scaling study, and predicted against measured where data are given."""
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for path in crossflow.run_study(ROOT / "studies" / "technology-scaling.yaml", out=folder).files:
            if path.suffix in (".png", ".svg"):
                shutil.copy(path, FIGURES / path.name)
    first, second = (simulate(crossflow.load(EXAMPLES / name)) for name in ("pipeline.yaml", "zero-bubble.yaml"))
    draw_gantt(gantt_of(first), FIGURES / "timeline.png")
    draw_comparison(first, second, FIGURES / "timeline-compare.png")
    crossflow.requests(EXAMPLES / "conversation.yaml").plot().save(FIGURES / "requests.png")
    for name in ("timeline.svg", "timeline-compare.svg", "requests.svg"):  # of thousands of slots, too large for a repository
        (FIGURES / name).unlink()
    for table in report.tables if report is not None else ():
        if table.measured.size and not isinstance(table, HindcastTable):
            _draw(table, next(way for way in (*DRAWN.get(table.name, ()), "regime", "device", "source") if way in table.groups))


# What tells the colours of a figure apart, where that is not the regime.
DRAWN = {
    "gemm": ("device",),
    "training_runs": ("source",),
    "mlperf_training": ("model",),
    "published_training": ("model",),
    "torchtitan_training": ("model",),
    "maxtext_training": ("device",),
    "accelerators_training": ("device",),
    "accelerators_serving": ("device",),
    "wide_experts": ("seen",),
}


def _draw(table: Table, way: str) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "crossflow"
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    ends = np.array([np.nanmin(table.measured) * 0.7, np.nanmax(table.measured) * 1.4])
    left.plot(ends, ends, color="#444444", linewidth=1)
    right.axhline(0, color="#444444", linewidth=1)
    size = float(np.clip(4000 / table.measured.size, 5, 30))  # a few dots are found, thousands do not cover each other
    for (name, mask), (marker, colour) in zip(_masks(table.groups[way]), itertools.product(MARKERS, COLOURS), strict=False):
        wide = size * (1 if marker == MARKERS[0] else 2)
        style = {"color": colour, "marker": marker, "s": wide, "linewidths": 0, "alpha": 0.5, "rasterized": True}
        left.scatter(table.measured[mask], table.predicted[mask], label=name, **style)
        right.scatter(table.measured[mask], np.clip(100 * (table.predicted[mask] / table.measured[mask] - 1), -100, 100), **style)
    what = "power [W]" if "power" in table.name else "time [s]"
    left.set(xlim=ends, ylim=ends)
    right.set(xlim=ends, ylim=(-105, 105), ylabel="Error [%], cut at 100")
    for numbers, label in ((left.xaxis, "Measured"), (left.yaxis, "Predicted"), (right.xaxis, "Measured")):
        number_axis(numbers, Scale(f"{label} {what}", log=True))
    for axis in (left, right):
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{TITLES.get(table.name, table.name)}: predicted against measured, {table.measured.size:,} rows")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9, markerscale=3 * (5 / size) ** 0.5)
    figure.savefig(FIGURES / f"{table.name}.png", dpi=130, metadata={"Software": None})
    figure.savefig(FIGURES / f"{table.name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
