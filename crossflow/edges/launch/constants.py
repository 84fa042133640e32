"""Numbers of a model that training needs and no prediction: the base of its rotary positions and the epsilon of its norms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.answers.scenario import Scenario
from crossflow.base import contents, files
from crossflow.workload.huggingface import huggingface_document

BASES = ("rope_theta", "rotary_emb_base")  # names of the base in a file of Hugging Face
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
PARTS = ("partial_rotary_factor", "rotary_pct")
PLAIN = (None, "default", "mrope")  # ways of `rope_scaling` that stretch nothing in text


@dataclass(frozen=True, kw_only=True)
class ModelConstants:
    """What a model's file says of rotary positions and norms; None for what it does not say."""

    rotates: bool  # whether the model has rotary positions
    base: float | None = None
    epsilon: float | None = None
    further: tuple[str, ...] = ()  # fields that change rotary positions, and that flags here do not say

    @property
    def known(self) -> Mapping[str, float]:
        """Those that the file says, in words."""
        named = {"rotary base": self.base if self.rotates else None, "norm epsilon": self.epsilon}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Those that it does not say, in words."""
        wanted = ("rotary base", "norm epsilon") if self.rotates else ("norm epsilon",)
        return tuple(name for name in wanted if name not in self.known)


def constants_of(scenario: Scenario) -> ModelConstants:
    """The constants of a scenario's transformer, from its ``config.json`` where it has one."""
    spec: Any = scenario.workload
    rotates = spec.positions == "rotary" or spec.latent is not None
    own = scenario.document.data["workload"]
    named, given = str(own.get("model")), {".".join(map(str, path)) for path, _ in files.walk(own)}
    if not named.endswith(".json"):
        return ModelConstants(rotates=rotates)
    with scenario.contents.used():
        path = Path(named) if scenario.base is None or contents.is_file(Path(named)) else scenario.base / named
        fields = {use.key.removeprefix("text_config."): use.value for use in huggingface_document(path, given=given)[1]}
    inner = fields.get("rope_parameters")
    fields = {**(inner if isinstance(inner, Mapping) else {}), **fields}
    scaling = fields.get("rope_scaling") or {}
    way = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    further = ["rope_scaling"] if way not in PLAIN else []
    further += [name for name in PARTS if fields.get(name) not in (None, 1.0)]
    return ModelConstants(rotates=rotates, base=_first(fields, BASES), epsilon=_first(fields, EPSILONS), further=tuple(further))


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    return next((float(fields[name]) for name in names if isinstance(fields.get(name), int | float)), None)


def megatron_flags(found: ModelConstants) -> dict[str, Any]:
    """The flags of Megatron-LM for what the file says; its base is a whole number."""
    base = {} if found.base is None or not found.rotates else {"rotary-base": round(found.base)}
    return base | ({} if found.epsilon is None else {"norm-epsilon": found.epsilon})


def remarks(found: ModelConstants, kind: str, flavour: str | None) -> Iterator[str]:
    """What a reader has to check, a sentence at most for all that is not known, and one for what no flag says.

    Parameters
    ----------
    kind : the framework.
    flavour : the model that the launch file names, which brings numbers of its own; None where it names none.
    """
    what = f"flavour {flavour}" if kind == "torchtitan" else flavour
    told = " and ".join(f"{name} {value:g}" for name, value in found.known.items())
    if kind == "megatron":
        flags = {"rotary base": "--rotary-base (else 10000)", "norm epsilon": "--norm-epsilon (else 1e-05)"}
        if found.unknown:
            checked = " and ".join(flags[name] for name in found.unknown)
            is_not = "is not" if len(found.unknown) == 1 else "are not"
            yield f"the model's {' and '.join(found.unknown)} {is_not} known to crossflow: check {checked}"
    elif flavour is not None and told:
        yield f"the model's file has {told}: check that {what} has the same"
    elif kind in ("torchtitan", "maxtext"):
        yield f"{' and '.join(found.unknown)} are those of {what}: check them against your model's"
    elif flavour is None:
        yield f"the trainer's model must have {told}" if told else f"check the {' and '.join(found.unknown)} of the trainer's model"
    if found.further and found.rotates:
        yield f"the model's file has {' and '.join(found.further)}, which no flag here says: add it"
