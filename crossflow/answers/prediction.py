"""A prediction: one design point's score in the form that people and scripts read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossflow.answers.bands import Band, Trust, full_text, slowdown
from crossflow.answers.evaluation import evaluate
from crossflow.answers.evaluation.congestion import CongestedStep, congested_step
from crossflow.answers.evaluation.likeness import told_trust, trust, trusts
from crossflow.answers.evaluation.narrow import slower_experts, unused_sparsity
from crossflow.answers.evaluation.scoring import NO_BANDWIDTH
from crossflow.answers.evaluation.slips import slips
from crossflow.answers.idle import idle
from crossflow.answers.points import division_notes, variant
from crossflow.answers.scenario import Scenario, requests_of
from crossflow.answers.score import Score, money, no_column
from crossflow.answers.sections import of_other_makers
from crossflow.answers.steps import own_step
from crossflow.answers.steps.machines import machine
from crossflow.answers.steps.step import PlacedStage
from crossflow.base.arrays import plain
from crossflow.base.errors import CrossflowError
from crossflow.base.results import Amounts, DeviceMemory, PlainData, Tabular, known, later, public
from crossflow.base.units import ZERO_CELSIUS, show
from crossflow.hardware.architecture.connected import unconnected
from crossflow.hardware.architecture.model import Architecture
from crossflow.hardware.architecture.run_cost import DAY, KILOWATT_HOUR
from crossflow.hardware.architecture.system import architecture
from crossflow.hardware.architecture.template import DatasheetSystem, GeneratedSystem, is_none
from crossflow.parallel.strategy.hierarchy import Hierarchy
from crossflow.parallel.strategy.notation import PAPER_KEYS, is_by_types
from crossflow.parallel.strategy.plan import Plan
from crossflow.parallel.strategy.reading import every_strategy
from crossflow.workload.released import MTP_NOTE, file_notes, release_notes
from crossflow.workload.spec import TransformerSpec

if TYPE_CHECKING:
    from crossflow.answers.evaluation.remedies import Remedy
    from crossflow.answers.explanation.answers import Explanation
    from crossflow.base.drawing.picture import Picture
    from crossflow.engine.timeline.record import Timeline
else:
    Explanation = later("crossflow.answers.explanation.answers", "Explanation")
    Picture = later("crossflow.base.drawing.picture", "Picture")
    Remedy = later("crossflow.answers.evaluation.remedies", "Remedy")
    Timeline = later("crossflow.engine.timeline.record", "Timeline")


_PROJECTED = 2 / 3  # share of a component's figures from which on it is told that they are projected
REPLAYED_NOTE = "times, rates and energy come from a replay of {n:,} requests; a step is the mean one, of which no parts are known"
UNITS = ("_s", "_j", "_w", "_bytes")  # ends of names of columns that may be left out


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction(PlainData, Tabular):
    """What is predicted of one scenario.

    Every column of a score is an attribute and an item too, with its unit in the name: ``prediction.step_time_s``,
    ``prediction["breakdown_s.compute"]``.

    Attributes
    ----------
    scenario, score : what was predicted, and its score, which holds the one point.
    assumptions : sentences on what nobody gave and was assumed; none where a scenario says everything.

    Examples
    --------
    >>> import crossflow
    >>> prediction = crossflow.predict(model="llama3-8b", on="dgx-h100", strategy="tp8", task="decode", batch=8)
    >>> prediction.feasible, prediction.memory.fits, round(prediction.breakdown.total / prediction.step_time, 6)
    (True, True, 1.0)
    """

    scenario: Scenario
    score: Score
    assumptions: tuple[str, ...] = ()

    @functools.cached_property
    def device(self) -> Architecture:
        """The derived architecture, with its use of the budgets."""
        return architecture(self.scenario.system, self.scenario.library)

    @property
    def replayed(self) -> bool:
        """Whether its figures come from a replay of requests, which knows no parts of a step; `crossflow.serve` has all of it."""
        return self.scenario.requests is not None

    @property
    def step_time(self) -> float:
        """Time of one step. [s]"""
        return float(self.score.step_time[0])

    @property
    def feasible(self) -> bool:
        """Whether the design can be built and holds its model."""
        return bool(self.score.feasible[0])

    @property
    def reason(self) -> str | None:
        """What makes it infeasible, in a sentence."""
        return self.score.why(0)

    @property
    def strategy(self) -> str:
        """The strategy as text that reads back as itself."""
        return self.scenario.strategy_text

    @property
    def devices(self) -> int:
        """Accelerators in use. [1]"""
        return self.scenario.devices

    @property
    def mfu(self) -> float | None:
        """Operations that the model needs over what all devices could do at peak. [1]"""
        return known(self.score.mfu)

    @property
    def hfu(self) -> float | None:
        """Operations that kernels execute, recomputation included, over what all devices could do at peak. [1]"""
        return known(self.score.hfu)

    @property
    def samples_per_second(self) -> float:
        """Samples, or requests of a service, per second over all devices. [1/s]"""
        return float(self.score.samples_per_second[0])

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over all devices; None where the word has no meaning. [1/s]"""
        return float(self.score.tokens_per_second[0]) if self.scenario.tokens_per_sample else None

    @property
    def tokens_per_second_per_device(self) -> float | None:
        """Tokens per second of one device; None where the word has no meaning. [1/s]"""
        return None if self.tokens_per_second is None else self.tokens_per_second / self.devices

    @property
    def requests_per_second(self) -> float | None:
        """Requests that a service answers per second; None for all else. [1/s]"""
        return self.samples_per_second if self.serving else None

    @property
    def throughput(self) -> Amounts:
        """Samples, and where the word has a meaning tokens, per second: ``samples_per_s``, ``tokens_per_s``. [1/s]"""
        return Amounts({name: value for name, value in throughput(self.scenario, self.score).items() if value is not None}, "1/s")

    @property
    def breakdown(self) -> Amounts:
        """Where the step goes, by kind; the parts add up to `step_time`. [s]"""
        return Amounts({name: float(value[0]) for name, value in self.score.breakdown.items()}, "s")

    @property
    def communication(self) -> Amounts:
        """Time of communication by collective, what is hidden behind computing included. [s]"""
        return Amounts({name: float(value[0]) for name, value in self.score.communication.items()}, "s")

    @property
    def exposed_communication(self) -> Amounts:
        """Time of communication by collective as far as it lengthens the step. [s]"""
        return Amounts({name: float(value[0]) for name, value in self.score.exposed_communication.items()}, "s")

    @property
    def memory(self) -> DeviceMemory:
        """What the fullest device needs of its memory by kind, its `total`, the `capacity`, and whether it `fits`. [B]"""
        score = self.score
        held = {kind: float(size[0]) for kind, size in score.memory.items()}
        return DeviceMemory(held, capacity=float(score.memory_capacity[0]), fits=bool(score.fits[0]), tight=bool(score.tight()[0]))

    @property
    def energy(self) -> float | None:
        """Energy of one step over all devices; None where it is not known. [J]"""
        return known(self.score.energy)

    @property
    def power(self) -> float | None:
        """Mean power of all devices over the step; None where it is not known. [W]"""
        return known(self.score.power)

    @property
    def cost(self) -> Amounts:
        """Prices that are known: ``usd_per_million_tokens`` where the system has a price by the hour, ``cost_usd`` of parts. [USD]"""
        return Amounts(money(self.score, 0), "USD")

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Rent of a million tokens; None where the system has no price (``system.operation.price``) or tokens no meaning. [USD]"""
        return self.cost.get("usd_per_million_tokens")

    @property
    def ttft(self) -> float | None:
        """Time to the first token of a service, on average; None for all else. [s]"""
        return self.serving.get("ttft_s")

    @property
    def tpot(self) -> float | None:
        """Time of each further token of a service, on average; None for all else. [s]"""
        return self.serving.get("tpot_s")

    def explain(self, objective: str | None = None) -> Explanation:
        """What limits it: `crossflow.explain` of its scenario."""
        return public("explain")(self.scenario, objective)  # type: ignore[no-any-return]

    def timeline(self) -> Timeline:
        """What every device does and when: `crossflow.engine.timeline` of its scenario."""
        return public("timeline")(self.scenario)  # type: ignore[no-any-return]

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        return self.score.columns()

    def _column(self, name: str) -> Any:
        if name not in self._columns:  # ttft_p99 for ttft_p99_s
            name = next((f"{name}{unit}" for unit in UNITS if f"{name}{unit}" in self._columns), name)
        value = self._columns[name][0]
        return value.item() if isinstance(value, np.generic) else value

    def keys(self) -> list[str]:
        """Names of its columns, so that ``dict(prediction)`` holds all figures."""
        return list(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def get(self, name: str, default: Any = None) -> Any:
        """A figure by the name of its column, or a default where there is none."""
        return self._column(name) if name in self._columns else default

    def export(self, kind: str = "megatron") -> str:
        """The launch file of its strategy: `crossflow.export` of its scenario."""
        return public("export")(self.scenario, kind)  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> Any:
        """A figure by the name of its column; units are SI and stand in the name."""
        if not isinstance(name, str) or name not in self._columns:
            raise KeyError(no_column(str(name), list(self._columns)))
        return self._column(name)

    def table(self) -> dict[str, Any]:
        """The columns of its score, a row."""
        return self.score.table()

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the command-line contract; times in s, sizes in B, energy in J, power in W."""
        score = self.score
        stages = [{**{f"{kind}_bytes": size for kind, size in s.items()}, "total_bytes": sum(s.values())} for s in self.memory_by_stage]
        placed = [
            {"place": one.place, "devices": one.devices, "layers": list(one.layers), "capacity_bytes": one.capacity}
            for one in self.placed_stages
        ]
        phases = {"phases": list(self.phases)} if self.phases else {}
        return {
            "name": self.scenario.name,
            "step_time_s": _number(score.step_time),
            "feasible": self.feasible,
            "reason": self.reason,
            "extrapolated": extrapolated(self.scenario),
            **told_trust(self.scenario),
            "remedies": list(self.remedies),
            **({"notes": list(self.notes)} if self.notes else {}),
            "breakdown_s": {name: _number(value) for name, value in score.breakdown.items()},
            "communication_s": {
                name: {"total": _number(value), "exposed": _number(score.exposed_communication[name])}
                for name, value in score.communication.items()
            },
            **({} if self.replayed else {"overlap": self._overlap()}),
            **({"congestion": self.congestion.to_dict()} if self.congestion else {}),
            "memory": self._memory_told(),
            **({"memory_by_stage": stages} if stages else {}),
            **({"stages": placed} if placed else {}),
            **({"sharding": {"sharder": self.sharding[0], "ranks": self.sharding[1]}} if self.sharding else {}),
            "by_layer_s": {name: _number(value) for name, value in score.by_layer.items()},
            "throughput": throughput(self.scenario, score),
            **({"serving": self.serving} if self.serving else {}),
            **({"reading_problem": self.reading_problem} if self.reading_problem else {}),
            **({} if np.isnan(score.measured_share[0]) else {"measured_share": _number(score.measured_share)}),
            "mfu": _number(score.mfu),
            "hfu": _number(score.hfu),
            "cost_per_million": {name: _number(value) for name, value in score.per_million().items()},
            **({"run": {**self.run, **_in_other_units(self.run), **phases}} if self.run else {}),
            **({"job": self.job} if self.job else {}),
            "energy_j": _number(score.energy),
            **self.operation,
            "cost_usd": _number(score.cost),
            "power_w": _number(score.power),
            **{name: _number(value) for name, value in score.node.items()},
            "bound_by": [{"resource": name, "share": share} for name, share in self.bound_by()],
            "architecture": {
                **{name: _number(value) for name, value in score.architecture.items()},
                "limits": self.device.bound_by,
                "budgets": self.device.budget_rows(),
            },
            "system": {"name": self.scenario.system.name, "devices": self.scenario.devices, "strategy": self.scenario.strategy_text},
            **({} if self.scenario.auto is None else {"auto": {**asdict(self.scenario.auto), "text": str(self.scenario.auto)}}),
            "provenance": self.scenario.provenance(),
        }

    def _overlap(self) -> dict[str, Any]:
        """What of the communication work hides."""
        score = self.score
        return {
            "serialized_s": _number(score.serialized),
            "hidden_communication_s": _number(score.hidden_communication),
            "exposed_share": _number(score.exposed_share),
        }

    def _memory_told(self) -> dict[str, Any]:
        """What the fullest device needs of its memory, as plain data."""
        score = self.score
        return {
            **{f"{kind}_bytes": _number(value) for kind, value in score.memory.items()},
            "total_bytes": float(score.memory_needed[0]),
            "capacity_bytes": float(score.memory_capacity[0]),
            "host_bytes": _number(score.host_memory),
            "host_capacity_bytes": _number(score.host_capacity),
            **{name: _number(value) for name, value in score.second.items()},
            "fits": bool(score.fits[0]),
            "margin": _number(score.memory_left),
            "tight": bool(score.tight()[0]),
            **({"slowdown": self.slowdown} if self.slowdown else {}),
        }

    @property
    def slowdown(self) -> float | None:
        """How many times as long as predicted a training step may take because its memory is nearly full; None where it is not. [1]"""
        return slowdown(*self._memory) if self._memory else None

    @property
    def _memory(self) -> tuple[float, float] | None:
        """What training of layers needs of a device's memory, and what there is, where it is a transformer's. [B]"""
        if not self.scenario.workload.trains_transformer:
            return None
        return float(self.score.memory_needed[0]), float(self.score.memory_capacity[0])

    @functools.cached_property
    def trust(self) -> Trust:
        """How far the step time, and what follows from it, can be trusted."""
        return trust(self.scenario)

    @functools.cached_property
    def trusts(self) -> Mapping[str, Trust]:
        """The same of figures that were compared with other measurements, or with none, by name."""
        return trusts(self.scenario)

    @property
    def error_band(self) -> Band | None:
        """Errors of the measured runs that are most like this one; None where there are none."""
        return self.trust.band

    @functools.cached_property
    def memory_by_stage(self) -> tuple[Mapping[str, float], ...]:
        """Bytes of a device of each pipeline stage by kind, each at its own fullest moment; none where all devices are alike. [B]"""
        found = own_step(self.scenario).memory_by_stage
        return found if len(found) > 1 else ()

    @functools.cached_property
    def placed_stages(self) -> tuple[PlacedStage, ...]:
        """Devices and layers of each pipeline stage; none where all devices are alike."""
        return own_step(self.scenario).placed_stages

    @functools.cached_property
    def congestion(self) -> CongestedStep | None:
        """What the step loses to other jobs and to colliding flows on the network between nodes; None where it has that to itself."""
        return congested_step(self.scenario)

    @functools.cached_property
    def sharding(self) -> tuple[str, list[dict[str, float]]] | None:
        """Who gave the tables of a recommendation model to ranks, and what every rank holds and takes; None where nobody did."""
        return own_step(self.scenario).sharding

    @functools.cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """What would make a layered model fit that does not, or reach its network, as sentences with settings; none where it runs."""
        scenario = self.scenario
        if self.reason == NO_BANDWIDTH and (why := unconnected(scenario.system, scenario.devices)):
            from crossflow.answers.evaluation.remedies import Remedy

            return (Remedy(f"{scenario.system.name}: {why}", {}),)
        if self.reason is None or not self.score.buildable[0]:
            return ()
        if isinstance(scenario.strategy, Hierarchy):
            return _strategies_that_fit(scenario)
        if not isinstance(scenario.strategy, Plan) or scenario.system.kinds:  # what helps one kind of devices may not help another
            return ()
        if scenario.feeders and self.score.fits[0]:  # the sentence on the experts' devices says the cure
            return ()
        written = scenario.document.data.get("strategy")
        others = is_by_types(written) or (isinstance(written, Mapping) and any(key in PAPER_KEYS for key in written))  # keys than a plan's
        from crossflow.answers.evaluation.fewer_bits import fewer_bits
        from crossflow.answers.evaluation.remedies import remedies

        own = remedies(scenario.job().own, scenario.strategy, scenario.workload_batch, machine(scenario, self.device), whole=others)
        return (*own[:1], *fewer_bits(scenario), *own[1:])

    def _of_job(self) -> tuple[str, ...]:
        """What is assumed of a job; settings without effect are not looked for."""
        from crossflow.answers.evaluation.post_training import job_row

        return job_row(self.scenario, self.score).notes if self.score.job else ()

    def _unmatched(self) -> Iterator[str]:
        """Rows of the profile that give no event its time, as sentences."""
        if self.scenario.profile is not None and np.isfinite(self.step_time):
            from crossflow.answers.evaluation.events import unmatched

            yield from unmatched(self.scenario)

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """What the scenario leaves to the file of its model, what of the model does not run, and settings without effect, as sentences."""
        workload = self.scenario.workload
        if self.scenario.post_training is not None:  # whose parts depend on settings too that the training step does not
            return self._of_job()
        if self.replayed:  # settings without effect are not looked for by replays
            from crossflow.answers.evaluation.replays import row_of

            return (REPLAYED_NOTE.format(n=len(requests_of(self.scenario))), *row_of(self.scenario).notes)
        found = [
            *slips(self.scenario),
            *(self.congestion.notes if self.congestion else ()),
            *idle(self.scenario, self.score),
            *self._unmatched(),
            *self._unused(),
            *self._unlimited(),
            *self._projected(),
            *self._on_host(),
        ]
        found += [*division_notes(self.scenario), *self._hot(), *of_other_makers(self.scenario)]
        if self.scenario.phased:
            found.append("what stands above the run is of the scenario without the settings of its phases; each phase has its own step")
        elif self.scenario.reliability is not None:
            from crossflow.answers.evaluation.lasting import notes_of_run

            found += notes_of_run(self.scenario, self.run)
        if not isinstance(workload, TransformerSpec):
            return tuple(found)
        found += slower_experts(self.scenario)
        found += unused_sparsity(self.scenario)
        if self._memory and (crowded := full_text(*self._memory)):
            found.append(crowded)
        guesses = workload.serves and workload.serving.speculation is not None
        further = (MTP_NOTE,) if workload.mtp_layers and workload.task != "training" and not guesses else ()
        given = self.scenario.document.data["workload"]
        return (*file_notes(workload, given), *release_notes(workload, given), *further, *found)

    def _projected(self) -> Iterator[str]:
        """Logic and memory of a generated device of which most of what the library holds was not published."""
        system = self.scenario.system
        if not isinstance(system, GeneratedSystem):
            return
        library = self.scenario.library_document().data
        for kind in ("logic", "memory"):
            name = getattr(system.technology, kind)
            if is_none(name):
                continue
            figures = [figure for figure in library[kind][name].values() if isinstance(figure, Mapping)]
            guessed = sum(bool(figure.get("projected")) for figure in figures)
            if guessed >= _PROJECTED * len(figures):
                yield f"{kind} {name}: {guessed} of its {len(figures)} figures are projected, not published; crossflow show {name} has them"

    def _hot(self) -> Iterator[str]:
        """Generated dies that are hotter than those of products."""
        devices = {"system": self.device, **self.scenario.pool_architectures}
        for (place, system), device in zip(self.scenario.system.places.items(), devices.values(), strict=True):
            if not isinstance(system, GeneratedSystem) or device.temperature is None:
                continue
            substrate = self.scenario.library_of(system).component("substrate", system.technology.substrate)
            usual, found = substrate.usual_temperature, float(device.temperature[0])
            if usual is not None and found > float(usual[0]) + 0.05:
                where = "" if place == "system" else f" of {place}"
                yield (
                    f"the dies{where} are at {found - ZERO_CELSIUS:.0f} C at the power that the package allows; makers keep theirs below"
                    f" {float(usual[0]) - ZERO_CELSIUS:.0f} C: less power, more die area or a cooler coolant would"
                )

    def _on_host(self) -> Iterator[str]:
        """What is assumed of the software of a device whose main memory is on the chip."""
        stack = self.scenario.stack
        if self.device.on_chip_only and stack is not None and isinstance(self.scenario.workload, TransformerSpec):
            size = show(float(stack.memory.context[0] + stack.memory.library[0]), "B")
            level = self.device.memory.name
            yield f"main memory is on the chip ({level}): the context and libraries of {stack.name}, {size}, lie on the host"

    def _unused(self) -> Iterator[str]:
        """What of the power budget a generated device cannot use."""
        system, drawn = self.scenario.system, float(self.device.maximum_power[0])
        if isinstance(system, GeneratedSystem) and (limit := self.device.bound_by["power"]) != "budget":
            given = show(float(system.budgets.power[0]), "W")
            yield f"system.budgets.power: no more than {show(drawn, 'W')} of {given} is drawn: limited by {limit}"

    def _unlimited(self) -> Iterator[str]:
        """A changed limit of power of a shipped device, of a family of which it is not known how a limit slows it."""
        system, given = self.scenario.system, self.scenario.document.data["system"]
        if not isinstance(system, DatasheetSystem) or system.execution.chip_power is not None or not isinstance(given, Mapping):
            return
        power = given.get("power")
        if "template" in given and isinstance(power, Mapping) and "tdp" in power:
            yield (
                "system.power.tdp changes the energy of a step, not its time: how a limit of power slows devices of the family"
                f" {system.family} is not known"
            )

    @property
    def serving(self) -> Mapping[str, float | None]:
        """Figures of a service by column; what needs the prompts is None where they cannot be read (`reading_problem`)."""
        return {name: _number(value) for name, value in self.score.serving.items()}

    @property
    def operation(self) -> Mapping[str, float | None]:
        """Figures of a step that the system's `operation` gives, by column."""
        return {name: _number(value) for name, value in self.score.operation.items()}

    @functools.cached_property
    def reading_problem(self) -> str | None:
        """Why the prompts of a decode scenario cannot be read by the same plan, in a sentence."""
        first = self.score.serving.get("ttft_s")
        unread = first is not None and np.isnan(first[0]) and self.scenario.requests is None  # a replay says what became of each prompt
        return evaluate(variant(self.scenario, {"workload.task": "prefill"})).why(0) if unread else None

    @property
    def run(self) -> Mapping[str, float | None]:
        """What the whole run of the scenario takes and costs, by name; empty where the scenario does not say how long it is."""
        return {name: _number(value) for name, value in self.score.run.items()}

    @functools.cached_property
    def phases(self) -> Sequence[Mapping[str, Any]]:
        """Of a run with phases what each takes and costs, and how far its step can be trusted, as plain data; empty for others."""
        if not self.scenario.phased or not self.score.run:
            return ()
        from crossflow.answers.evaluation.phases import phases_of
        from crossflow.answers.evaluation.post_training import whole_trust

        return [one.to_dict(whole_trust(one.scenario)) for one in phases_of(self.scenario)]

    @functools.cached_property
    def job(self) -> Mapping[str, Any]:
        """An iteration of the post-training job of the scenario: its time, phases, rates, idle shares, memory; empty without a job."""
        if self.scenario.post_training is None:
            return {}
        from crossflow.answers.evaluation.post_training import told_job

        return told_job(self.scenario, self.score)

    @property
    def bottleneck(self) -> str:
        """The resource that bounds the largest part of the step; `bound_by` has all."""
        return str(self.score.bound_by[0])

    def summary(self) -> str:
        """The key figures in a few lines of text."""
        if self.replayed:
            return "\n".join([repr(self), *(f"{name:<33}{value:,.4g}" for name, value in self.serving.items() if value is not None)])
        score, memory = self.score, self.memory
        verdict = "" if self.feasible else f"; infeasible: {self.reason}"
        lines = [
            repr(self.scenario),
            f"step time   {show(self.step_time, 's')}, bound by {self.bottleneck}{verdict}",
            f"throughput  {self.samples_per_second:,.4g} samples/s"
            + (f", {self.tokens_per_second:,.0f} tokens/s" if self.tokens_per_second else ""),
            f"peak use    MFU {100 * float(score.mfu[0]):.1f} %, HFU {100 * float(score.hfu[0]):.1f} %",
            f"memory      {show(memory.total, 'B')} of {show(memory.capacity, 'B')} a device",
            f"trust       {self.trust.text}",
        ]
        return "\n".join(lines)

    def bound_by(self) -> list[tuple[str, float]]:
        """Resources that bound parts of the step, with their shares, largest first."""
        shares = [(name, float(value[0])) for name, value in self.score.bound.items() if value[0] > 0]
        return sorted(shares, key=lambda pair: -pair[1])

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw where the step goes: its parts, one after the other; into a file as well where a path is given.

        Examples
        --------
        >>> import crossflow
        >>> scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
        >>> picture = crossflow.predict(scenario).plot()
        >>> [path.name for path in picture.save("step.png")]  # doctest: +SKIP
        ['step.png', 'step.svg']
        """
        from crossflow.base.drawing.charts import parts_chart

        if self.replayed:
            raise CrossflowError(
                f"{self.scenario.name}: a replay of requests knows no parts of a step; crossflow.serve draws what it knows"
            )
        parts = {name: float(value[0]) for name, value in self.score.breakdown.items()}
        return parts_chart(f"{self.scenario.name}: where the {show(self.step_time, 's')} of a step go", parts, "s").saved(path)

    def _repr_html_(self) -> str:
        from crossflow.base.drawing import html

        score, finite = self.score, np.isfinite(self.step_time)
        memory = {kind: float(size[0]) for kind, size in score.memory.items() if size[0] > 0}
        needed, capacity = float(score.memory_needed[0]), float(score.memory_capacity[0])
        rows = {"verdict": "feasible" if self.feasible else f"infeasible: {self.reason}", "step time": show(self.step_time, "s")}
        if finite:
            rate, tokens = float(score.samples_per_second[0]), float(score.tokens_per_second[0])
            rows["trust"] = self.trust.text
            rows["throughput"] = f"{rate:,.4g} samples/s" + (f", {tokens:,.0f} tokens/s" if tokens else "")
            if not self.replayed:
                rows["peak use"] = f"{100 * float(score.mfu[0]):.1f} % (MFU)"
                rows["bound by"] = ", ".join(f"{name} {100 * share:.0f} %" for name, share in self.bound_by())
        rows["memory"] = f"{show(needed, 'B')} of {show(capacity, 'B')} per device"
        rows |= {f"assumed {i + 1}": sentence for i, sentence in enumerate(self.assumptions)}
        rows |= {f"note {i + 1}": note for i, note in enumerate(self.notes)}
        parts = {name: float(value[0]) for name, value in score.breakdown.items()} if finite else {}
        bars = html.stacked_bar(parts, {name: show(part, "s") for name, part in parts.items()}) if parts else ""
        held = html.stacked_bar(memory, {kind: show(size, "B") for kind, size in memory.items()}, whole=capacity) if memory else ""
        return html.heading(self.scenario.name, repr(self.scenario)) + html.table(["", ""], rows.items()) + bars + held

    def __repr__(self) -> str:
        state = "" if self.feasible else f", infeasible: {self.reason}"
        if self.replayed:
            return f"Prediction({self.scenario.name!r}: a replay of {len(requests_of(self.scenario)):,} requests{state or self._on_target})"
        return f"Prediction({self.scenario.name!r}: {show(self.step_time, 's')}, bound by {self.score.bound_by[0]}{state})"

    @property
    def _on_target(self) -> str:
        """What a replay says of targets first, nothing where no class has any."""
        met = self.serving.get("attained")
        return "" if met is None else f", {100 * met:.1f} % on target"


def _strategies_that_fit(scenario: Scenario) -> tuple[Remedy, ...]:
    """The fastest strategies of a recommendation model that fit, or the one that lacks least."""
    texts = every_strategy(scenario.workload, scenario.nodes)
    score = evaluate(scenario, {"strategy": list(texts)})
    spare = score.memory_capacity - score.memory_needed
    fitting = np.flatnonzero(score.feasible)
    from crossflow.answers.evaluation.remedies import Remedy

    if not len(fitting):
        most = int(spare.argmax())
        return (
            (Remedy(f"no strategy fits: {texts[most]} needs least, {show(-spare[most], 'B')} more than there is"),)
            if spare[most] < 0
            else ()
        )
    fastest = fitting[np.argsort(score.step_time[fitting], kind="stable")][:3]
    return tuple(
        Remedy(
            f"strategy: {texts[i]} fits with {show(spare[i], 'B')} to spare and takes {show(score.step_time[i], 's')} a step",
            {"strategy": texts[i]},
        )
        for i in fastest
    )


# Figures of a run in the units that people quote: name -> column, and what it is divided by.
OTHER_UNITS: Mapping[str, tuple[str, float]] = {
    "days": ("time_s", DAY),
    "price_usd": ("cost_usd", 1.0),
    "device_energy_kwh": ("energy_j", KILOWATT_HOUR),
    "facility_energy_kwh": ("facility_energy_j", KILOWATT_HOUR),
}


def _in_other_units(run: Mapping[str, float | None]) -> dict[str, float | None]:
    """Figures of a run once more, in days and kilowatt-hours."""
    return {name: None if (value := run[column]) is None else value / unit for name, (column, unit) in OTHER_UNITS.items()}


def predict(scenario: Scenario) -> Prediction:
    """Predict one scenario: its step time, what bounds it, whether it fits."""
    return Prediction(scenario=scenario, score=evaluate(scenario))


def extrapolated(scenario: Scenario) -> bool:
    """Whether the result leaves what measured data cover: nothing of its kind was measured, or only far from it."""
    return trust(scenario).level in ("unknown", "extrapolated")


def throughput(scenario: Scenario, score: Score) -> dict[str, float | None]:
    """Samples and, where the word has a meaning, tokens per second."""
    result: dict[str, float | None] = {"samples_per_s": _number(score.samples_per_second)}
    if scenario.tokens_per_sample:
        result["tokens_per_s"] = _number(score.tokens_per_second)
    return result


def _number(value: Any) -> float | None:
    """A float for JSON, which has no infinity: None stands for a time that no design reaches."""
    number: float | None = plain(float(np.ravel(value)[0]))
    return number
