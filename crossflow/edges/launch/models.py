"""Presets by the names that frameworks have for models, and what launch files say of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossflow.answers.scenario import from_dict
from crossflow.answers.sections import presets
from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.edges.launch.settings import FlatSettings, of_model, workload_settings
from crossflow.workload.model_names import ModelNames, model_names, published_as
from crossflow.workload.released import SERVED
from crossflow.workload.spec import TransformerSpec


def vocabulary_of(tokenizer: str | None) -> int | None:
    """Words of a tokenizer whose name says them."""
    return model_names().vocabularies.get(tokenizer or "")


def by_huggingface(name: str) -> str | None:
    """The preset of a model by its name on the Hugging Face Hub, by the last folder of a path, or by its own name; None for others."""
    return published_as(name, presets())


def like_preset(name: str) -> str:
    """A guess at the preset that a name on the Hugging Face Hub is near, such as that of a checkpoint in other types; empty for none.

    >>> like_preset("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8")
    "; did you mean 'qwen3-coder-480b-a35b'?"
    """
    return did_you_mean(name.rstrip("/").rpartition("/")[2], presets())


def by_flavour(name: str, flavour: str) -> str | None:
    """The preset of a model by torchtitan's name and flavour; None for others."""
    found = (
        preset
        for preset, names in model_names().presets.items()
        if tuple(map(str.lower, names.torchtitan)) == (name.lower(), flavour.lower())
    )
    return next(found, None)


def by_maxtext(name: str) -> str | None:
    """The preset of a model by MaxText's name; None for others."""
    return next((preset for preset, names in model_names().presets.items() if name.lower() in names.maxtext), None)


def types_of(preset: str) -> Mapping[str, Any]:
    """Types in which the maker of a model released it, where they are narrower than 16 bits."""
    released = _served(preset)
    return released if "weight_dtype" in released else {}


def names_of(preset: str) -> ModelNames:
    """Names of a preset; none where the table does not have it."""
    return model_names().presets.get(preset, ModelNames())


@functools.lru_cache(maxsize=64)
def preset_settings(preset: str) -> FlatSettings:
    """FlatSettings of a preset as it stands."""
    spec = from_dict({"system": {"template": "dgx-h100", "devices": 1}, "workload": preset}).workload
    return workload_settings(spec) if isinstance(spec, TransformerSpec) else {}


def model_settings(model: str) -> FlatSettings:
    """FlatSettings of a model by the name of its preset, or of its ``config.json``; none of a file that is no model."""
    if not model.endswith(".json"):
        return preset_settings(model)
    try:
        return preset_settings(str(Path(model).resolve()))
    except CrossflowError:
        return {}


def same_model(settings: FlatSettings, preset: str) -> bool:
    """Whether settings describe the same model as a preset, however it is run."""
    mine, its = ({path: value for path, value in held.items() if of_model(path)} for held in (settings, preset_settings(preset)))
    own = _released(preset)  # which only a service has
    mine = {path: value for path, value in mine.items() if path not in own or own[path] != value}
    return mine == {path: value for path, value in its.items() if path not in own}


def _served(preset: str) -> Mapping[str, Any]:
    """What the file of a preset says of the released checkpoint."""
    served: Mapping[str, Any] = files.read_yaml(presets()[preset]).data.get(SERVED, {})
    return served


def _released(preset: str) -> FlatSettings:
    """Types of some layers, and of states, in which the maker of a model released it."""
    released = _served(preset)
    kinds = {f"workload.weight_dtypes.{kind}": stored for kind, stored in released.get("weight_dtypes", {}).items()}
    return kinds | ({"workload.ssm.state_dtype": released["state_dtype"]} if "state_dtype" in released else {})


def preset_of(settings: FlatSettings, named: Any) -> str | None:
    """The preset that describes the same model: the one that a scenario names, or the first of those with names in frameworks."""
    candidates = [named] if named in presets() else []
    candidates += [preset for preset in model_names().presets if preset in presets() and preset not in candidates]
    layers = settings["workload.layers"], settings["workload.hidden"]
    return next(
        (
            preset for preset in candidates
            if (preset_settings(preset).get("workload.layers"), preset_settings(preset).get("workload.hidden")) == layers
            and same_model(settings, preset)
        ),
        None,
    )  # fmt: skip
