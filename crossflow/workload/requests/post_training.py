"""Post-training jobs in files: what an iteration does beside the training step of the policy.

An iteration of direct preference optimisation (DPO [1]_) and of distillation is a forward pass of another model and a training step. One of
PPO [2]_ and GRPO [3]_ begins with a rollout, in which engines write answers; then models read these, and the policy trains on them. These
are lists of phases that are ready made; a file may list its own.

References
----------
.. [1] Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward Model", NeurIPS 2023, Sec. 4.
.. [2] Ouyang et al., "Training language models to follow instructions with human feedback", NeurIPS 2022, Sec. 3.5.
.. [3] Shao et al., "DeepSeekMath", 2024, arXiv:2402.03300, Sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from crossflow.base.errors import other_task
from crossflow.base.files import FileModel
from crossflow.base.limits import ColumnName, Flag, PositiveFloat, PositiveInt, Seed, Whole
from crossflow.workload.requests.laws import LengthLaw, TransferRate, WaitTime
from crossflow.workload.requests.spec import Text

# Models that read the samples of each kind of job, in the order in which they do; of those in brackets none is needed.
MODELS_OF: Mapping[str, tuple[str, ...]] = {
    "dpo": ("reference",), "distill": ("teacher",), "grpo": ("reference", "reward"), "ppo": ("reference", "reward", "critic"),
}  # fmt: skip
LEFT_OUT: Mapping[str, tuple[str, ...]] = {"grpo": ("reward",)}  # models that are there only where a file names them
MAY_BE_NONE: Mapping[str, tuple[str, ...]] = {"grpo": ("reference",), "ppo": ("reward", "reference")}
ROLLED_OUT = ("grpo", "ppo")
LISTED = "phases"  # kind of a job that lists its phases
POLICY = "policy"  # name of the model that the scenario trains, in such a list
TAKEN = ("rollout", "transfer", "refit", "handling", "moving", "training")  # phases that have a name of their own
MOST_ANSWERS = 200_000  # of an iteration that are replayed


class FurtherModelSpec(FileModel):
    """A model beside the policy, which reads the samples of an iteration on the devices of training."""

    model: Text | None = Field(None, description="a preset, or the file of a model; the policy's own where absent")
    strategy: str | Mapping[str, Any] | None = Field(
        None, description="how it is divided over the devices of training, micro-batch included; as training where absent"
    )


class ListedPhaseSpec(FurtherModelSpec):
    """A phase of an iteration that a file lists: a model reads the samples of a training step, or trains on them."""

    read: ColumnName | None = Field(None, description=f"name of a model that reads the samples; `{POLICY}` is the one that trains")
    train: ColumnName | None = Field(None, description=f"name of a model that trains on them; `{POLICY}` is the scenario's own")
    times: Annotated[PositiveFloat, Field(le=1000.0)] = Field(
        1.0, description="how often it passes each sample: 2 for two epochs, 0.25 where one answer in four is kept"
    )

    @model_validator(mode="after")
    def _of_one_model(self) -> Self:
        if (self.read is None) == (self.train is None):
            raise ValueError("say what the phase does: read, or train, with the name of a model, such as read: judge")
        if self.name == POLICY and (self.model is not None or self.strategy is not None):
            raise ValueError(f"{POLICY} is the scenario's own model, with its strategy; leave model and strategy out")
        if self.name in TAKEN:
            raise ValueError(f"{self.name} is a phase by itself; give the model another name")
        return self

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.read or self.train or ""


@dataclass(frozen=True, kw_only=True)
class JobPhase:
    """A phase on the devices of training: a model reads the samples of an iteration, or trains on them."""

    name: str  # of the model
    model: FurtherModelSpec  # what it is, and how it is divided
    trains: bool = False
    own: bool = False  # whether it is the policy
    times: float = 1.0  # for each sample. [1]

    @property
    def key(self) -> str:
        """Name of the phase among the figures of an iteration."""
        return f"{self.name}_pass" if not self.trains else "training" if self.own else f"{self.name}_training"


class RolloutSpec(FileModel):
    """How engines write the answers of an iteration: all prompts are there at its beginning, and the longest answer ends it, or with
    `partial` the last one that it needs.
    """

    prompts: PositiveInt = Field(description="prompts of an iteration")
    answers: PositiveInt = Field(
        1,
        description="answers that are written for each of them, the group of GRPO: an engine reads "
        "their prompt once where its software keeps prefixes",
    )
    prompt: LengthLaw = Field(description="tokens of a prompt; a plain number is the same for all")
    answer: LengthLaw = Field(description="tokens of an answer, such as {law: lognormal, mean: 2000, cv: 0.8, most: 8192}")
    strategy: Text = Field(description="plan of one engine, such as tp2; as many engines as there is room for run side by side")
    software: Text | Mapping[str, Any] = Field(
        "vllm", description="software of the engines, by name, as a file or as a mapping, such as {like: vllm, engine: {prefixes: false}}"
    )
    devices: PositiveInt | None = Field(
        None, description="devices of the engines, beside those of training; the engines take turns with training on its own where absent"
    )
    staleness: Annotated[Whole, Field(ge=0, le=16)] = Field(
        0,
        description="iterations by which answers may be older than the policy; with 1 or more, engines write while the policy trains, "
        "and answers of so many iterations at once",
    )
    partial: Annotated[PositiveFloat, Field(le=4.0)] | None = Field(
        None,
        description="prompts under way beyond those of an iteration, over these, such as 0.5: the iteration ends when enough of them are "
        "complete, and the others go on in the next one with newer weights; all are written to their end where absent",
    )
    seed: Seed = Field(0, description="of the lengths that are drawn")

    @property
    def at_once(self) -> int:
        """Prompts that engines complete between two takings of weights. [1]"""
        return self.prompts * max(self.staleness, 1)

    @property
    def beside(self) -> bool:
        """Whether engines write while the policy trains."""
        return self.staleness > 0

    @property
    def under_way(self) -> int:
        """Prompts at the beginning of a rollout. [1]"""
        return self.at_once + round((self.partial or 0.0) * self.at_once)


class OverheadsSpec(FileModel):
    """What a trainer that writes answers itself takes beside its phases; what is absent is as measured of NeMo RL (docs/validation.md)."""

    step: WaitTime = Field(
        4.6e-3, description="what a step of an engine takes longer than in a server: the trainer's process gathers tokens and their logits"
    )
    refit: WaitTime = Field(
        5.1, description="time in which engines on the devices of training wake up and take new weights, however large the model"
    )
    refit_rate: TransferRate = Field(25e9, description="rate at which the weights of the whole model pass each device meanwhile")
    sample: WaitTime = Field(5.2e-3, description="time of the trainer's driver for each answer: rewards by rules, packing, moving tokens")


class PostTrainingSpec(FileModel):
    """What an iteration of a post-training job does; workload, strategy and system of the scenario are the policy's training step."""

    kind: Literal["dpo", "distill", "grpo", "ppo", "phases"] = Field(description="what is done; `phases` lists it")
    phases: tuple[ListedPhaseSpec, ...] = Field(
        (),
        description="of kind `phases`: what follows the rollout, such as [{read: judge, model: llama3-70b}, {train: policy}]",
    )
    reference: FurtherModelSpec | Literal["none"] | None = Field(
        None, description="frozen copy of the policy; none leaves it out of grpo and ppo"
    )
    teacher: FurtherModelSpec | None = Field(None, description="of `distill`: the model whose outputs the policy learns")
    reward: FurtherModelSpec | Literal["none"] | None = Field(
        None, description="of `grpo` and `ppo`: the model that scores answers; of grpo rules do where absent, of ppo where it is none"
    )
    critic: FurtherModelSpec | None = Field(None, description="of `ppo`: the model of values, which trains as the policy does")
    old_policy: Flag | None = Field(
        None, description="of `grpo` and `ppo`: whether the policy reads the answers once more before it trains on them; true where absent"
    )
    epochs: PositiveInt | None = Field(None, description="of `grpo` and `ppo`: times that it trains on each answer; 1 where absent")
    offload: Flag = Field(False, description="whether what a phase does not use lies on the host meanwhile")
    rollout: RolloutSpec | None = Field(None, description="of `grpo` and `ppo`: how answers are written")
    overheads: OverheadsSpec | Literal["none"] | None = Field(
        None, description="of `grpo` and `ppo`: what the trainer takes beside its phases, as measured where absent; none leaves it out"
    )

    @field_validator("kind", mode="before")
    @classmethod
    def _of_several_phases(cls, kind: Any) -> Any:
        if kind not in (*MODELS_OF, LISTED) and (told := other_task(kind)):
            raise ValueError(f"{told}, and leave job out")
        return kind

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        own = MODELS_OF.get(self.kind, ())
        for name in ("reference", "teacher", "reward", "critic"):
            given = getattr(self, name)
            if given is not None and name not in own:
                takers = [kind for kind, known in MODELS_OF.items() if name in known]
                cure = f"give phases: [{{read: {name}}}]" if self.kind == LISTED else "leave it out"
                yield f"{name}: a job of kind {self.kind} has none, only {' and '.join(takers)}; {cure}"
            if given == "none" and name not in MAY_BE_NONE.get(self.kind, ()):
                yield f"{name}: a job of kind {self.kind} does not run without it; leave out none"
        if self.kind == "distill" and (self.teacher is None or self.teacher.model is None):
            yield "teacher: name the model that teaches, such as teacher: {model: llama3-70b}"
        if self.kind in ROLLED_OUT and self.rollout is None:
            yield f"rollout: {self.kind} trains on answers; say how they are written, such as {EXAMPLE}"
        for name in ("old_policy", "epochs", "rollout", "overheads"):
            if not self.rolls_out and getattr(self, name) is not None:
                yield f"{name}: a job of kind {self.kind} writes no answers, only grpo and ppo do; leave it out"
        yield from self._of_rollout()
        yield from self._of_list()

    def _of_list(self) -> Iterator[str]:
        if self.kind != LISTED:
            if self.phases:
                yield f"phases: those of a job of kind {self.kind} are known; give kind: {LISTED} to list others, or leave them out"
            return
        for name, cure in (("old_policy", f"{{read: {POLICY}}}"), ("epochs", f"{{train: {POLICY}, times: 2}}")):
            if getattr(self, name) is not None:
                yield f"{name}: a job of kind {LISTED} lists its phases; give phases: [{cure}], and leave it out"
        phases = self.on_training
        keys = [phase.key for phase in phases]
        if "training" not in keys:
            yield f"phases: the policy trains in an iteration; add {{train: {POLICY}}}"
        if twice := next((phase for phase in phases if keys.count(phase.key) > 1), None):
            yield f"phases: {twice.name} is listed twice to {'train' if twice.trains else 'read'}; give times: 2, or another name"
        models = {phase.name: phase.model for phase in phases[::-1]}
        if other := next((phase.name for phase in phases if phase.model != models[phase.name]), None):
            yield f"phases: {other} is one model, with one strategy; give both of its phases the same, or another name"

    def _of_rollout(self) -> Iterator[str]:
        found = self.rollout
        if found is None:
            return
        for key in ("prompt", "answer"):
            if getattr(found, key).least < 1:
                yield f"rollout.{key}: it has at least one token"
        if found.staleness and found.devices is None:
            yield "rollout.staleness: engines that take turns with training do not write meanwhile; give rollout.devices, or leave it out"
        if found.devices is not None and isinstance(self.overheads, OverheadsSpec):
            for name in ("refit", "refit_rate"):
                if name in self.overheads.model_fields_set:
                    yield f"overheads.{name}: engines on devices of their own do not wake up for new weights; leave it out"
        if found.partial is not None and found.under_way == found.at_once:
            yield f"rollout.partial: {found.partial:g} of {found.at_once} prompts is none; give at least {1 / found.at_once:.2g}"
        if found.under_way * found.answers > MOST_ANSWERS:
            yield f"rollout.prompts: at most {MOST_ANSWERS:,} answers are replayed; here are {found.under_way * found.answers:,}"

    @property
    def rolls_out(self) -> bool:
        """Whether an iteration begins with answers that are written."""
        return self.kind in ROLLED_OUT or (self.kind == LISTED and self.rollout is not None)

    @property
    def on_training(self) -> tuple[JobPhase, ...]:
        """Phases on the devices of training, in order: those that are listed, or those of the kind of job."""
        if self.kind == LISTED:
            return tuple(
                JobPhase(
                    name=one.name, model=FurtherModelSpec(model=one.model, strategy=one.strategy), trains=one.train is not None,
                    own=one.name == POLICY, times=float(one.times),
                )
                for one in self.phases
            )  # fmt: skip
        epochs, reads = float(self.epochs or 1), self.reads
        found = [JobPhase(name=name, model=spec) for name, spec in reads.items()]
        if self.rolls_out and self.old_policy is not False:
            found.append(JobPhase(name="old_policy", model=FurtherModelSpec(), own=True))
        if "critic" in reads:
            found.append(JobPhase(name="critic", model=reads["critic"], trains=True, times=epochs))
        return (*found, JobPhase(name=POLICY, model=FurtherModelSpec(), trains=True, own=True, times=epochs))

    def place(self, part: str) -> str:
        """Where a file says of a part what it is."""
        return f"job.phases: {part}" if self.kind == LISTED and part != "rollout" else f"job.{part}"

    @property
    def taken(self) -> OverheadsSpec | None:
        """What the trainer takes beside its phases; None where nothing is counted."""
        return None if self.overheads == "none" or not self.rolls_out else self.overheads or OverheadsSpec()

    @property
    def samples(self) -> int:
        """Answers of an iteration, 0 where none are written. [1]"""
        return 0 if self.rollout is None else self.rollout.prompts * self.rollout.answers

    @property
    def reads(self) -> Mapping[str, FurtherModelSpec]:
        """Models beside the policy that read the samples of a kind of job, by name."""
        found = {}
        for name in MODELS_OF.get(self.kind, ()):
            given = getattr(self, name)
            if given == "none" or (given is None and name in LEFT_OUT.get(self.kind, ())):
                continue
            found[name] = given or FurtherModelSpec()
        return found


EXAMPLE = "rollout: {prompts: 64, answers: 8, prompt: 512, answer: {law: lognormal, mean: 1000, cv: 1}, strategy: tp2}"
