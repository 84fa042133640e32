"""The best plan of a model on each of several systems: what it takes, what it costs, and which of them cannot be told apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossflow.answers.bands import order_of_pairs, spread_of, ties
from crossflow.answers.evaluation.likeness import likeness, told_trust
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.meaning import multiplied_by_all
from crossflow.answers.planning.keywords import named_so, paths, plain_names, with_other_names
from crossflow.answers.planning.opening import Overrides, as_settings, load, unplanned
from crossflow.answers.planning.planner import best_strategy
from crossflow.answers.planning.question import COMMAND, Question
from crossflow.answers.prediction import Prediction, predict
from crossflow.answers.score import larger_is_better
from crossflow.answers.sections import of_other_makers
from crossflow.base import files
from crossflow.base.arrays import plain
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.base.files import Document
from crossflow.base.limits import shown
from crossflow.base.packages import pandas
from crossflow.base.results import PlainData
from crossflow.base.units import parse, show
from crossflow.hardware.architecture.connected import systems_of, unconnected
from crossflow.hardware.architecture.system import TEMPLATES, asked_system, resolve
from crossflow.hardware.architecture.template import fills, part_of_nodes

HOUR = 3600.0
PRICE = "system.operation.price"
FIGURES = ("ttft_s", "tpot_s", "e2el_s")  # of a service


@dataclass(frozen=True, kw_only=True)
class ComparedSystem(PlainData):
    """The best plan on one system.

    Attributes
    ----------
    system, devices : its name as it was asked for, and how many devices are used; None where no number of them can be.
    prediction : of the best plan; None where there is no plan.
    reason : why there is none, or why it cannot run, in a sentence.
    price : of a device and hour, NaN where it is not known. [USD]
    rank : place among those that can run, from 1; None for the others.
    tied : systems from which it cannot be told apart; None where no measured runs tell.
    """

    system: str
    devices: int | None
    prediction: Prediction | None
    reason: str | None
    price: float = math.nan
    rank: int | None = None
    tied: tuple[str, ...] | None = None

    @property
    def feasible(self) -> bool:
        """Whether some plan can run and fits."""
        return self.prediction is not None and self.prediction.feasible

    @property
    def strategy(self) -> str | None:
        """The best plan, as text that reads back as itself."""
        return None if self.prediction is None else self.prediction.scenario.strategy_text

    def figure(self, name: str) -> float:
        """A figure of the best plan by its name in `to_dict`; NaN where it has none."""
        return self._figures().get(name, math.nan)

    def _column(self, name: str) -> float:
        """A figure by its name, with its unit or without, as an attribute."""
        found = self._figures()
        return next(found[key] for key in (name, f"{name}_s") if key in found) if name in found or f"{name}_s" in found else found[name]

    def _figures(self) -> dict[str, float]:
        if self.prediction is None:
            return {}
        score = self.prediction.score
        tokens = bool(score.tokens_per_second.any())
        rate = score.tokens_per_second if tokens else score.samples_per_second
        what, each = ("tokens" if tokens else "samples"), float(rate[0])
        counted = [f"{name}_per_million_{what}" for name in ("usd", "energy_j")]
        millions = {name: values for name, values in score.per_million().items() if name in counted}
        return {
            "step_time_s": float(score.step_time[0]),
            **{name: float(score.serving[name][0]) for name in FIGURES if name in score.serving},
            f"{what}_per_s": each,
            f"{what}_per_s_per_device": each / float(score.devices[0]),
            **{name: float(values[0]) for name, values in millions.items()},
            "power_w": float(score.power[0]),
            "mfu": float(score.mfu[0]),
            "memory_bytes": float(score.memory_needed[0]),
            "memory_capacity_bytes": float(score.memory_capacity[0]),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what has no end, or is not known, is None."""
        known = not math.isnan(self.price)
        told: dict[str, Any] = {"error_band": None, "trust": None}
        if self.prediction is not None:
            told = {"bound_by": self.prediction.score.bound_by[0], "global_batch": self.prediction.scenario.workload_batch}
            told |= told_trust(self.prediction.scenario)
        return {
            "system": self.system,
            "rank": self.rank,
            "devices": self.devices,
            "strategy": self.strategy,
            "feasible": self.feasible,
            "reason": self.reason,
            **{name: plain(value) for name, value in self._figures().items()},
            "usd_per_device_hour": self.price if known else None,
            "usd_per_hour": self.price * self.devices if known and self.devices is not None else None,
            **told,
            "tied_with": None if self.tied is None else list(self.tied),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedSystems(PlainData):
    """Systems in order, the best first.

    Attributes
    ----------
    model, task : what runs.
    rows : one a system; those that cannot run stand last.
    ordered_by : name of the figure in a row that orders them.
    assumptions, notes : sentences on numbers that nobody gave, and on how to read this.
    """

    model: str
    task: str
    rows: tuple[ComparedSystem, ...]
    ordered_by: str
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]

    def __iter__(self) -> Iterator[ComparedSystem]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> ComparedSystem:
        return self.rows[place]

    @property
    def best(self) -> ComparedSystem | None:
        """The first system; None where none can run."""
        return self.rows[0] if self.rows and self.rows[0].feasible else None

    @property
    def verdict(self) -> str:
        """Which system is best, and which cannot be told from it, in a sentence."""
        best = self.best
        if best is None:
            return "no system can run this"
        if best.tied is None:
            return f"{best.system} comes first, but nothing was measured that tells how reliable this order is"
        if not best.tied:
            return f"{best.system} is best"
        also = " and ".join([", ".join(best.tied[:-1]), best.tied[-1]]) if len(best.tied) > 1 else best.tied[0]
        return f"{best.system} comes first, but cannot be told apart from {also}"

    @property
    def order(self) -> str:
        """What orders the systems, in words."""
        return self.ordered_by.replace("usd", "USD").replace("_per_s", " a second").replace("_", " ")

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the command-line contract; times in s, sizes in B, energy in J, power in W, money in USD."""
        return {
            "model": self.model,
            "task": self.task,
            "ordered_by": self.ordered_by,
            "larger_is_better": _larger(self.ordered_by),
            "rows": [row.to_dict() for row in self.rows],
            "verdict": self.verdict,
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
        }

    def to_frame(self) -> Any:
        """One row a system as a pandas DataFrame, which must be installed; groups are joined by a dot."""
        return pandas().json_normalize([row.to_dict() for row in self.rows])

    def to_pandas(self) -> Any:
        """The same as `to_frame`, by the name that other libraries give it."""
        return self.to_frame()

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows of text: what a person compares."""
        tokens = any(not math.isnan(row.figure("tokens_per_s")) for row in self.rows)
        what = "tokens" if tokens else "samples"
        serving = any(not math.isnan(row.figure("tpot_s")) for row in self.rows)
        time = ("per token", "tpot_s") if serving else ("step time", "step_time_s")
        headers = ["", "system", "devices", time[0], "within", f"{what}/s", f"USD/M {what}", f"kWh/M {what}", "trust"]
        return headers, [self._line(row, time[1], what) for row in self.rows]

    def _line(self, row: ComparedSystem, time: str, what: str) -> list[str]:
        if row.prediction is None or not row.feasible:
            return ["", row.system, _count(row.devices), *["-"] * 6]
        figures, found = row.figure, row.prediction.trust
        tied = self.best is not None and row is not self.best and row.tied is not None and self.best.system in row.tied
        watts = figures(f"energy_j_per_million_{what}") / (1000.0 * HOUR)
        return [
            f"{'=' if tied else ''}{row.rank}",
            row.system,
            _count(row.devices),
            show(figures(time), "s"),
            "-" if found.band is None else f"{100 * found.band.p90:.0f} %",
            f"{figures(f'{what}_per_s'):,.0f}" if figures(f"{what}_per_s") >= 100 else f"{figures(f'{what}_per_s'):.3g}",
            "-" if math.isnan(price := figures(f"usd_per_million_{what}")) else f"{price:.3g}",
            f"{watts:.3g}",
            found.level,
        ]

    def __repr__(self) -> str:
        lines = [f"ComparedSystems({self.model}, {self.task}: {self.verdict})"]
        for row in self.rows:
            told = f"{show(row.figure('step_time_s'), 's')} with {row.strategy}" if row.feasible else f"cannot run: {row.reason}"
            lines.append(f"  {row.system}: {told}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        headers, lines = self.table()
        told = "".join(f"<div>{html.text(sentence)}</div>" for sentence in (*self.assumptions, *self.notes))
        return html.heading(f"{self.model}, {self.task}", self.verdict) + html.table(headers, lines) + told


def _count(devices: int | None) -> str:
    return "-" if devices is None else f"{devices:,}"


def _larger(name: str) -> bool:
    return not name.startswith("usd_") and (larger_is_better(name) or "_per_s" in name)


@named_so
@with_other_names
def compare(
    model: str,
    on: str | Sequence[str] = (),
    *,
    devices: int | None = None,
    budget: float | str | None = None,
    prices: Mapping[str, float | str] | str | None = None,
    task: str = "training",
    batch: int | None = None,
    settings: Overrides = (),
    **named: Any,
) -> ComparedSystems:
    """The best plan of a model on each of several systems, best first.

    Parameters
    ----------
    model, on : names that `crossflow list` gives, or files; systems as a list, or as text with commas.
    devices : of each system; only whole nodes are used, so that a system may have fewer, or 64 of each node of 72 where that is faster.
    budget : rent of each system for an hour, instead of devices. [USD/hour]
    prices : rent of a device for an hour, by system or by a word of one; a system's own where it is not here. [USD/hour]
    task, batch : as `crossflow predict --model` takes them.
    settings, named : what overrides fields of every scenario, as in `crossflow.predict`.

    Raises
    ------
    CrossflowError
        For a name that is no system, a price of something else, neither devices nor a budget, both, a budget without prices, and where
        no system takes the model at all. Plans that do not fit are an answer.

    Notes
    -----
    The order is by USD per million tokens (samples of models without tokens) where all systems have a price, else by tokens a second,
    of a device where their numbers differ. Of two systems that are tied, measured runs do not tell which one is better.

    Examples
    --------
    >>> import crossflow
    >>> found = crossflow.compare("llama3-8b", "dgx-a100,dgx-h100", devices=8, prices="a100=1.5,h100=2.5", workload__global_batch=64)
    >>> [row.system for row in found], found.ordered_by
    (['dgx-h100', 'dgx-a100'], 'usd_per_million_tokens')
    """
    return compared(model, on, devices=devices, budget=budget, prices=prices, task=task, batch=batch, settings=settings, **named)


def compared(
    model: str,
    on: str | Sequence[str],
    *,
    devices: int | None,
    budget: float | str | None,
    prices: Mapping[str, float | str] | str | None,
    task: str,
    batch: int | None,
    settings: Overrides,
    **named: Any,
) -> ComparedSystems:
    """What `compare` gives, with errors that name options of the command line."""
    devices, batch, named = _once(devices, batch, plain_names("compare", named))
    systems = _systems(model, on)
    known = prices_of(prices, systems)
    rent, texts = _budget(devices, budget), _open((*as_settings(settings), *_keywords(named)))
    asked = [_Asked(model=model, system=name, task=task, batch=batch, settings=_priced(texts, known.get(name))) for name in systems]
    made = [one.best(devices, rent) for one in asked]
    if not any(row.prediction for row, *_ in made):
        raise _nowhere(made)
    rows = [row for row, *_ in made]
    kept = _whole_nodes(rows, devices)
    ordered_by, why = _order(rows)
    return ComparedSystems(
        model=model,
        task=task,
        rows=_ranked(rows, ordered_by),
        ordered_by=ordered_by,
        assumptions=tuple(dict.fromkeys(sentence for _, assumed, _ in made for sentence in assumed)),
        notes=(*_doubtful(rows), *_elsewhere(rows), *why, *kept, *_told_ties(rows), *_what_helps(rows, model, task)),
    )


def _doubtful(rows: Sequence[ComparedSystem]) -> tuple[str, ...]:
    """Sentences on what was most likely not meant, each once, with cures that all systems take."""
    made = [row.prediction.scenario for row in rows if row.prediction is not None]
    rates = [multiplied_by_all(one.system) for one in made]
    common = [dtype for dtype in rates[0] if all(dtype in others for others in rates)] if rates else []
    return tuple(dict.fromkeys(sentence for one in made for sentence in slips(one, common)))


def _elsewhere(rows: Sequence[ComparedSystem]) -> Iterator[str]:
    """Sentences on software that does not run on the devices of a system, or that is taken for those of its maker."""
    for row in rows:
        if row.prediction is not None:
            yield from of_other_makers(row.prediction.scenario)


def _open(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Settings as they are; CrossflowError for a strategy among them, which a comparison seeks itself."""
    for path, _, value in (text.partition("=") for text in settings):
        if path.partition(".")[0] == "strategy" and value != "auto":
            raise CrossflowError(f"compare seeks the best plan of each system; leave {path} out, or predict with it")
    return settings


def _nowhere(made: Sequence[tuple[ComparedSystem, tuple[str, ...], CrossflowError | None]]) -> CrossflowError:
    """Why no system has any plan: of each its own reason, or the one that they share."""
    errors = [error for *_, error in made]
    if errors[0] is not None and all(error is not None and error.said == errors[0].said for error in errors):
        return errors[0]
    lines = (f"{row.system}: {row.reason}" for row, *_ in made)
    return CrossflowError("\n".join(("none of these systems can run this", *lines)))


def _what_helps(rows: Sequence[ComparedSystem], model: str, task: str) -> tuple[str, ...]:
    """Where to look for what would make a plan fit, where none does."""
    if any(row.feasible for row in rows):
        return ()
    near = min(
        (row for row in rows if row.prediction is not None),
        key=lambda row: row.figure("memory_bytes") / row.figure("memory_capacity_bytes"),
    )
    asked = "" if task == "training" else f" --task {task}"
    return (f"what would help: crossflow plan --model {model} --on {near.system} --devices {near.devices}{asked}",)


def _once(devices: int | None, batch: int | None, named: dict[str, Any]) -> tuple[int | None, int | None, dict[str, Any]]:
    """Arguments that may also be given by the names that other tools have for them, and the rest of what is named."""
    for name, given in (("devices", devices), ("batch", batch)):
        if given is not None and name in named:
            raise TypeError(f"compare() was given '{name}' twice; give it once")
    rest = {key: value for key, value in named.items() if key not in ("devices", "batch")}
    return named.get("devices", devices), named.get("batch", batch), rest


def _keywords(named: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings by keyword as those of `crossflow.predict`, but for the price, which every system has one of."""
    if "price" in named:
        raise TypeError("compare() takes no 'price'; did you mean 'prices'? such as prices={'h100': 2.2, 'b200': 4.5}")
    return as_settings(paths("compare", named))


def _systems(model: Any, on: str | Sequence[str]) -> list[str]:
    """Names of the systems, each once."""
    if not (isinstance(model, str) and isinstance(on, str | Iterable)):
        wrong = shown(on if isinstance(model, str) else model)
        raise TypeError(
            f"compare() takes a model and the names of systems, such as compare('llama3-8b', on=['dgx-h100', 'dgx-a100']), not {wrong}"
        )
    names = [part.strip() for part in (on.split(",") if isinstance(on, str) else on)]
    if not names or not all(names):
        raise CrossflowError("name the systems to compare, such as --on dgx-h100,dgx-b200")
    if len(names) < 2:
        raise CrossflowError(f"there is only {names[0]} to compare; name two systems or more, such as --on {names[0]},dgx-b200")
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise CrossflowError(f"{twice} is there twice; name each system once")
    for name in names:
        files.find("templates", asked_system(name) or name, None, *TEMPLATES)
    return names


def prices_of(prices: Mapping[str, float | str] | str | None, systems: Sequence[str]) -> dict[str, float]:
    """Rent of a device of each system that has a price. [USD/s]"""
    if isinstance(prices, str):
        parts = [part.partition("=") for part in prices.split(",")]
        if bad := next((name for name, sign, value in parts if not (name.strip() and sign and value.strip())), None):
            raise CrossflowError(f"--price: expected SYSTEM=USD with commas between, such as h100=2.2,b200=4.5; got '{bad}'")
        given: dict[str, float | str] = {name.strip(): value.strip() for name, _, value in parts}
    else:
        given = dict(prices or {})
    found: dict[str, float] = {}
    for name, value in given.items():
        mine = next((some for some in _meant(name.lower(), systems) if some), [])
        if len(mine) != 1:
            said = f"stands for {' and '.join(mine)}" if mine else f"is none of the systems that are compared{did_you_mean(name, systems)}"
            raise CrossflowError(f"--price {name}={value}: {name} {said}; these are {', '.join(systems)}")
        found[mine[0]] = _rent(value, f"--price {name}={value}")
    return found


def _meant(name: str, systems: Sequence[str]) -> Iterator[list[str]]:
    """Systems that a name may stand for, the likeliest first: as a whole, as one of its words, as the beginning of one.

    A number is taken as a whole: `mi300` is a beginning of mi300x, `a10` none of a100; and `b200` is no part of gb200.
    """
    yield [system for system in systems if system.lower() == name]
    yield [system for system in systems if name in re.split(r"[^a-z0-9]+", system.lower())]
    part = re.compile(rf"(?<![a-z0-9]){re.escape(name)}" + (r"(?!\d)" if name[-1:].isdigit() else ""))
    yield [system for system in systems if part.search(system.lower())]


def _rent(value: float | str, where: str) -> float:
    """USD an hour, or text with another unit, as [USD/s]."""
    text = str(value).strip()
    try:
        rent = float(text) / HOUR
    except ValueError:
        try:
            rent = float(parse(text, "USD/s"))
        except ValueError as error:
            raise CrossflowError(f"{where}: {error}") from None
    if not 0 < rent < math.inf:
        raise CrossflowError(f"{where}: expected more than 0 USD/hour, got {shown(text)}")
    return rent


def _budget(devices: int | None, budget: float | str | None) -> float | None:
    if devices is None and budget is None:
        raise CrossflowError("say how much of each system is compared: --devices 64, or --budget 500USD/hour with prices")
    if devices is not None and budget is not None:
        raise CrossflowError("--devices and --budget both say how many devices there are; give one of them")
    if devices is not None and devices < 1:
        raise CrossflowError(f"--devices {devices}: expected at least one device")
    return None if budget is None else _rent(budget, f"--budget {budget}")


def _priced(texts: Sequence[str], price: float | None) -> tuple[str, ...]:
    return tuple(texts) if price is None else (*texts, f"{PRICE}={price * HOUR:.10g} USD/hour")


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A model on one of the systems that are compared."""

    model: str
    system: str
    task: str
    batch: int | None
    settings: tuple[str, ...]

    def best(self, devices: int | None, budget: float | None) -> tuple[ComparedSystem, tuple[str, ...], CrossflowError | None]:
        """The best plan on so many devices, or on as many as the budget rents; sentences on what was assumed; why there is none."""
        node, price = self._node(devices)
        if devices is None and math.isnan(price):
            raise CrossflowError(f"--budget needs a price of each system; give one of {self.system}: --price {self.system}=USD")
        row = ComparedSystem(system=self.system, devices=None, prediction=None, reason=None, price=price * HOUR)
        if devices is None:
            assert budget is not None
            most = int(budget / price * (1.0 + 1e-9))
            if most < 1:
                return replace(row, reason=f"a device costs {price * HOUR:.4g} USD an hour, more than the budget"), (), None
            counts = [_whole(most, node), *(2 ** int(math.log2(count)) for count in (_whole(most, node), most))]  # these divide better
        else:
            counts = [_whole(devices, node), devices]
        counts = [*dict.fromkeys(counts)]
        tried = [self._planned(row, count) for count in counts if count == _whole(count, node)]
        tried += [self._planned(row, count, part, node) for count in counts if (part := _even_part(count, node))]
        return max(tried, key=lambda one: (one[0].feasible, _rate(one[0])))

    def _node(self, devices: int | None) -> tuple[int, float]:
        """Devices of a node, that of the system that several of a device are part of, and rent of a device, NaN where unknown. [USD/s]"""
        data = files.override(Document(file=COMMAND, data={"system": {"template": asked_system(self.system) or self.system}}), [
            text for text in self.settings if text.startswith("system.")
        ]).data  # fmt: skip
        spec = resolve(Document(file=COMMAND, data=data["system"]))[0]
        rent = spec.operation.price if spec.operation is not None else None
        if devices is not None and unconnected(spec, devices) and (usual := systems_of(spec.name)):
            spec = resolve(Document(file=COMMAND, data={"template": usual[0]}))[0]
        return int(spec.devices_per_node), math.nan if rent is None else float(np.ravel(rent)[0])

    def _planned(
        self, row: ComparedSystem, devices: int, part: int | None = None, node: int | None = None
    ) -> tuple[ComparedSystem, tuple[str, ...], CrossflowError | None]:
        """The best plan on so many devices, `part` of each node of `node` devices where not all of it are used."""
        question = Question(model=self.model, system=self.system, devices=devices, batch=self.batch, task=self.task)
        settings = self.settings if part is None else (*self.settings, f"system.devices_per_node={part}")
        used = (
            () if part is None else (f"{self.system}: {part} of the {node} devices of each node are used; fewer whole nodes were slower",)
        )
        assumed: tuple[str, ...] = ()
        try:
            document, assumed = question.scenario(settings)
            scenario, _ = unplanned(document, settings)
            text, _ = best_strategy(scenario, _objective(scenario.workload))
        except CrossflowError as error:
            return replace(row, devices=devices, reason=error.said), assumed, error
        found = predict(load(document, (*settings, f"strategy={text}")))
        return replace(row, devices=devices, prediction=found, reason=found.reason), (*assumed, *used), None


def _whole(devices: int, node: int) -> int:
    """The most devices that fill whole nodes, or all where one node holds them."""
    return devices if devices <= node else devices // node * node


def _even_part(devices: int, node: int) -> int | None:
    """Devices of each node that are used where so many fill no whole nodes, a power of two, as jobs on racks of 72 use 64; else None.

    >>> _even_part(512, 72), _even_part(504, 72), _even_part(12, 8)
    (64, None, None)
    """
    part = None if fills(devices, node) else part_of_nodes(devices, node)
    return part if part is not None and part & (part - 1) == 0 else None


def _objective(workload: Any) -> str:
    served = workload.is_service and not workload.arrives
    return "tokens_per_second" if served else "step_time_s"


def _rate(row: ComparedSystem) -> float:
    return 0.0 if row.prediction is None else float(row.prediction.score.samples_per_second[0])


def _order(rows: Sequence[ComparedSystem]) -> tuple[str, tuple[str, ...]]:
    """The figure that orders systems, and a sentence where it is not the price that somebody gave."""
    able = [row for row in rows if row.feasible]
    what = "tokens" if any(not math.isnan(row.figure("tokens_per_s")) for row in able) else "samples"
    priced = [not math.isnan(row.price) for row in able]
    if able and all(priced):
        return f"usd_per_million_{what}", ()
    same = len({row.devices for row in able}) <= 1
    name = f"{what}_per_s" if same else f"{what}_per_s_per_device"
    lacking = ", ".join(row.system for row, known in zip(able, priced, strict=True) if not known)
    each = "" if same else " of a device"
    told = f"ordered by {what} a second{each}: no price of {lacking} is known (--price)" if able else ""
    return name, (told,) if told else ()


def _whole_nodes(rows: Sequence[ComparedSystem], devices: int | None) -> tuple[str, ...]:
    cut = [row for row in rows if devices is not None and row.devices is not None and row.devices != devices]
    return tuple(f"{row.system} uses {row.devices:,} of {devices:,} devices, whole nodes" for row in cut)


def _ranked(rows: Sequence[ComparedSystem], ordered_by: str) -> tuple[ComparedSystem, ...]:
    """Rows in order, with their ranks and ties."""
    sign = -1.0 if _larger(ordered_by) else 1.0
    able = sorted((row for row in rows if row.feasible), key=lambda row: sign * row.figure(ordered_by))
    runs = [likeness(row.prediction.scenario) for row in able if row.prediction is not None]
    near = ties([row.figure(ordered_by) for row in able], runs, range(len(able)))
    placed = [
        replace(row, rank=i + 1, tied=None if found is None else tuple(able[j].system for j in found))
        for i, (row, found) in enumerate(zip(able, near, strict=True))
    ]
    return (*placed, *(replace(row, tied=()) for row in rows if not row.feasible))


def _told_ties(rows: Sequence[ComparedSystem]) -> Iterator[str]:
    """What ties are drawn from, in sentences."""
    runs = [likeness(row.prediction.scenario) for row in rows if row.feasible and row.prediction is not None]
    found = {spread_of(one, other) for i, one in enumerate(runs) for other in runs[:i]}
    known = sorted((one for one in found if one is not None), key=lambda one: one[0].order)
    for between in dict.fromkeys(name for _, name in known):
        mine = [spread for spread, name in known if name == between]
        apart = " to ".join(dict.fromkeys(f"{100 * spread.order:.3g}" for spread in (mine[0], mine[-1])))
        yield f"predictions less than {apart} % apart are tied: {order_of_pairs(mine[0], between)}"
    if None in found:
        yield "where no ties are told, nothing was measured that tells how reliable the order is"
