"""Vision and audio towers beside a language model: how many parameters each has, by its part of a ``config.json``.

A tower is a stack of encoder layers on patches or frames, and a projector that makes tokens of the language model of what it gives. It is
counted, and told; it runs where a service has images (`serving.images`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossflow.base import files
from crossflow.base.files import FileModel
from crossflow.base.limits import Flag, Whole

FIELDS: Mapping[str, str] = {
    "vision_config": "vision tower", "audio_config": "audio tower", "vision_tower": "vision tower", "talker_config": "talker",
    "code2wav_config": "vocoder", "token2wav_config": "vocoder", "speech_config": "audio tower",
}  # fmt: skip
SIZES: Mapping[str, tuple[str, ...]] = {
    "width": ("embed_dim", "hidden_size", "width", "d_model", "vt_hidden_size"),
    "layers": ("num_hidden_layers", "depth", "layers", "encoder_layers", "vt_num_hidden_layers"),
    "heads": ("num_attention_heads", "num_heads", "attention_heads", "heads", "vt_num_attention_heads"),
    "attention": ("qkv_hidden_size",),
    "inner": ("intermediate_size", "encoder_ffn_dim", "mlp_dim", "vt_intermediate_size"),
    "patch": ("patch_size", "spatial_patch_size"),
}
# Patches of a side that become one token, and the inverse of that (Llama 4, InternVL).
MERGES = ("spatial_merge_size", "merge_kernel_size", "pooling_kernel_size", "scale_factor")
SHRINKS = ("pixel_shuffle_ratio", "downsample_ratio")


class TowerKind(FileModel):
    """What towers of one `model_type` have; widths of projectors are d (of the tower), m (of merged patches), t (of the language model), or
    a field.
    """

    gated: Flag = False
    inner: str = ""  # field with the inner width of the MLP, where another one than its name says has it
    biases: Flag = True
    norm_vectors: Whole = 2
    further: Whole = 0  # vectors of width d that a layer has beside its two norms
    patch_bias: Flag = True
    class_token: Flag = False
    positions: str = ""  # field with the number of learned positions, `grid` for one of each patch of an image, "" for none
    norms: Whole = 0  # norms before and after the layers
    merger: Flag = False  # whether a product of its own, after a norm, merges them
    projector: tuple[tuple[str, str], ...] = ()
    projector_bias: Flag = True
    projector_norm: str = ""  # width of the projector's norm
    projector_vectors: Whole = 0  # vectors of width t that it has beside
    again: str = ""  # field that lists layers with projectors of their own, whose norm is over merged patches


@functools.cache
def kinds() -> Mapping[str, TowerKind]:
    """Kinds of towers by their `model_type`."""
    data = files.read_yaml(Path(__file__).with_name("towers.yaml")).data
    return {name: TowerKind.model_validate(given) for name, given in data["towers"].items()}


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A tower: what it is, and its parameters, None where its part of the file does not say them."""

    name: str
    parameters: int | None = None

    def __str__(self) -> str:
        """The tower, with its parameters."""
        return self.name if self.parameters is None else f"{self.name} ({self.parameters / 1e9:.3g} billion parameters)"


def towers(config: Mapping[str, Any], at: Sequence[str] = ()) -> Iterator[Tower]:
    """Towers that a file describes beside its language model, which lies `at` a place of it."""
    language = config
    for name in at:
        language = language[name]
    for name, part, outer in _parts(config, at):
        yield Tower(name=name, parameters=_parameters(part, outer, language))


def vision_tower(config: Mapping[str, Any], at: Sequence[str] = ()) -> dict[str, Any]:
    """The tower of images of such a file by the keys of `crossflow.workload.spec.TowerSpec`; those that it does not say are left out, as
    the size of an image is where the model takes any, and what its MLP is where its kind is not known.
    """
    part, outer = next(((part, outer) for name, part, outer in _parts(config, at) if name == "vision tower"), ({}, {}))
    kind = _kind(part, outer)
    sizes = {"layers": "layers", "hidden": "width", "heads": "heads", "patch": "patch"}
    given = {**{key: _size(part, name) for key, name in sizes.items()}, "ffn": _inner(part, kind)}
    found: dict[str, Any] = {key: size for key, size in given.items() if size}
    if not found:
        return {}
    tokens = outer.get("mm_tokens_per_image")
    if image := _whole(part.get("image_size")):
        found["size"] = image
    merge = _merged(part, outer)
    if type(tokens) is int and tokens > 0 and {"size", "patch"} <= found.keys():
        merge = round(found["size"] / found["patch"] / tokens**0.5)
    if (whole := _size(part, "attention")) and not whole % found.get("heads", whole + 1):
        found["head_dim"] = whole // found["heads"]
    of_kind = {"gated": kind.gated, "biases": kind.biases} if kind else {}
    return {**found, **_windows(part, found), "merge": merge, **of_kind}


def _kind(part: Mapping[str, Any], outer: Mapping[str, Any]) -> TowerKind | None:
    """The kind of a tower, None where it is not known; some files name it as the model, others with `_vision` behind that."""
    name = str(part.get("model_type") or outer.get("model_type"))
    return kinds().get(name) or kinds().get(name.removesuffix("_vision"))


def _first(given: Any) -> Any:
    """A number that is written for each side, as that of one."""
    return given[0] if isinstance(given, list) and given else given


def _whole(given: Any) -> int:
    """A number of a file, 0 where it is none above it."""
    number = _first(given)
    return number if type(number) is int and number > 0 else 0


def _merged(part: Mapping[str, Any], outer: Mapping[str, Any]) -> Any:
    """Patches of a side that become one token, 1 where a file does not say it. [1]"""
    if held := next((held for name in MERGES if (held := part.get(name) or outer.get(name))), None):
        return _first(held)
    shares = (part.get(name) or outer.get(name) for name in SHRINKS)
    return next((round(1.0 / share) for share in shares if type(share) is float and 0.0 < share <= 1.0), 1)


def _windows(part: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Windows of so many pixels a side, within which all layers but some attend (Qwen2.5-VL), with the patches of one."""
    side, whole = part.get("window_size"), part.get("fullatt_block_indexes")
    if type(side) is not int or not isinstance(whole, list) or not {"patch", "layers"} <= found.keys() or side < found["patch"]:
        return {}
    seen = ["global" if i in whole else "local" for i in range(found["layers"])]
    period = next(n for n in range(1, len(seen) + 1) if all(kind == seen[i % n] for i, kind in enumerate(seen)))
    return {"window": (side // found["patch"]) ** 2, "pattern": seen[:period]}


def _parts(config: Mapping[str, Any], at: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Names of towers, their parts of a file, and the sections that these stand in."""
    levels, within = [config], config
    for name in at[:-1]:
        within = within[name]
        levels.append(within)
    for level in levels:
        for field, name in FIELDS.items():
            if isinstance(level.get(field), Mapping):
                yield name, level[field], level
        for field, part in level.items():
            if at and field not in (*FIELDS, *at) and isinstance(part, Mapping) and _is_model(part):
                yield field.removesuffix("_config").replace("_", " "), part, level


def _is_model(part: Mapping[str, Any]) -> bool:
    """Whether a part of a file describes layers of its own, whatever they are called."""
    return bool(part.get("model_type") or _size(part, "width") or _size(part, "layers"))


def _size(config: Mapping[str, Any], key: str) -> int:
    """A size of a tower, 0 where its part does not give it."""
    return next((size for name in SIZES[key] if (size := _whole(config.get(name)))), 0)


def _inner(config: Mapping[str, Any], kind: TowerKind | None) -> int:
    """Inner width of a tower's MLP, 0 where its part does not give it: a number, or what it is over the width."""
    if kind and kind.inner:
        return _whole(config.get(kind.inner))
    ratio = config.get("mlp_ratio")
    share = ratio if isinstance(ratio, int | float) and 0 < ratio < math.inf else 0
    return _size(config, "inner") or round(share * _size(config, "width"))


def _parameters(config: Mapping[str, Any], outer: Mapping[str, Any], language: Mapping[str, Any]) -> int | None:
    """Parameters of a tower of a known kind with all its sizes."""
    kind = _kind(config, outer)
    d, layers, patch, inner = *(_size(config, key) for key in ("width", "layers", "patch")), _inner(config, kind)
    attention = _size(config, "attention") or d
    if kind is None or not (d and layers and inner and patch):
        return None
    target = _whole(config.get("out_hidden_size")) or _whole(language.get("hidden_size"))
    widths = {"d": d, "m": d * _whole(_merged(config, outer)) ** 2, "t": target, "": 0}
    return layers * _layer(kind, d, attention, inner) + _ends(kind, config, d, patch) + _projectors(kind, config, widths)


def _layer(kind: TowerKind, d: int, attention: int, inner: int) -> int:
    """Parameters of a layer: attention, whose heads are so wide together, MLP and norms."""
    biases = (3 * attention + d + (2 if kind.gated else 1) * inner + d) * kind.biases
    return 4 * d * attention + (3 if kind.gated else 2) * d * inner + biases + (2 * kind.norm_vectors + kind.further) * d


def _ends(kind: TowerKind, config: Mapping[str, Any], d: int, patch: int) -> int:
    """Parameters of the product of patches, of positions, and of norms before and after the layers."""
    channels = next((n for name in ("num_channels", "in_channels", "in_chans") if (n := _whole(config.get(name)))), 3)
    pixels = channels * (_whole(config.get("temporal_patch_size")) or 1) * patch**2
    image = _whole(config.get("image_size"))
    rows = (image // patch) ** 2 + kind.class_token if kind.positions == "grid" else _rows(config, kind.positions)
    return (pixels + kind.patch_bias + kind.class_token + rows + kind.norms * kind.norm_vectors) * d


def _rows(config: Mapping[str, Any], name: str) -> int:
    """Learned positions that a field gives, as a number or by the name of its two sides parted by x."""
    found = 1 if name else 0
    for side in name.split("x") if name else ():
        found *= _whole(config.get(side))
    return found


def _projectors(kind: TowerKind, config: Mapping[str, Any], widths: Mapping[str, int]) -> int:
    """Parameters of the projector, and of those of layers that have one of their own."""
    sides = [[widths[side] if side in widths else _whole(config.get(side)) for side in pair] for pair in kind.projector]
    weights = sum(k * n + n * kind.projector_bias for k, n in sides)
    listed = config.get(kind.again)
    further = len(listed) if isinstance(listed, list) else 0
    own = kind.norm_vectors * widths[kind.projector_norm] + kind.projector_vectors * widths["t"]
    merger = widths["m"] * widths["d"] + kind.norm_vectors * widths["d"] if kind.merger and widths["m"] > widths["d"] else 0
    return weights + own + merger + further * (weights + kind.norm_vectors * widths["m"])
