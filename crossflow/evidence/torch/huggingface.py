"""Models of Hugging Face's transformers, built from a ``config.json`` without weights, with inputs of their kind."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from crossflow.base import files
from crossflow.base.errors import CrossflowError, did_you_mean
from crossflow.evidence.torch import ops, scans
from crossflow.evidence.torch.source import DTYPES, SourceModel, SourceOptions, raised

ATTENTION = "crossflow"  # our attention's name in transformers


def load(path: Path, options: SourceOptions, world: contextlib.ExitStack) -> SourceModel:
    """The model of a config file, or of the folder that holds it.

    Raises
    ------
    CrossflowError
        Where there is no such file, transformers is not installed, or does not know the model.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise CrossflowError(f"{file}: no such file; name the config.json of a model, or the folder that holds it")
    if importlib.util.find_spec("transformers") is None:
        raise CrossflowError(f"{file} needs transformers, which is not installed; run: pip install transformers")
    world.enter_context(fused_attention())
    config, kind = _config(file)
    config.use_cache = False
    try:
        module = _built(kind, config, options)
    except CrossflowError:
        raise
    except (Exception, SystemExit) as error:
        raise raised(error, str(file)) from error
    world.enter_context(fused_scans())
    return SourceModel(module=module, kwargs=_inputs(module, config, options, str(file)))


def _config(file: Path) -> tuple[Any, Any]:
    """The configuration, and the class of the model that it is of."""
    import transformers

    try:
        plain = files.from_json(files.read_text(file))
    except (ValueError, OSError) as error:
        raise CrossflowError(f"{file}: {next(iter(str(error).splitlines()), 'cannot be read')}") from None
    if not isinstance(plain, dict):
        raise CrossflowError(f"{file}: expected a mapping, the configuration of a model")
    plain.pop("auto_map", None)  # which names code of the file's maker
    kind = plain.pop("model_type", None)
    if kind is None:
        raise CrossflowError(f"{file}: the key 'model_type' is missing, by which transformers knows a model")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        known = list(transformers.CONFIG_MAPPING.keys())
        raise CrossflowError(f"{file}: transformers knows no model_type '{kind}'{did_you_mean(str(kind), known)}")
    try:
        found = transformers.AutoConfig.for_model(kind, **plain)
    except Exception as error:
        raise raised(error, str(file)) from error
    for name in found.architectures or ():  # a model of transformers, and nothing else that it has by such a name
        named = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
            return found, named
    from transformers.models.auto import modeling_auto

    for mapping in ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "MASKED_LM", "IMAGE_CLASSIFICATION", ""):
        known = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING" if mapping else "MODEL_MAPPING")
        if type(found) in known:
            return found, known[type(found)]
    raise CrossflowError(f"{file}: transformers has no model of type {found.model_type}")


def _built(kind: Any, config: Any, options: SourceOptions) -> Any:
    """The model, with our attention where its code allows one to choose."""
    from transformers.initialization import no_init_weights

    dtype = DTYPES.get(options.dtype) or getattr(config, "dtype", None) or torch.bfloat16
    torch.set_default_dtype(torch.float32)
    refused: Exception | None = None
    for attention in (ATTENTION, "sdpa", "eager"):
        try:
            with no_init_weights():
                found = kind._from_config(config, attn_implementation=attention, dtype=dtype)
            found.tie_weights()
            return found
        except (ValueError, KeyError, ImportError) as error:
            refused = error
    raise raised(refused, kind.__name__) if refused is not None else CrossflowError(kind.__name__)


@contextlib.contextmanager
def fused_attention() -> Iterator[None]:
    """Let models of transformers run attention as one kernel, whichever they name; masks are not built: their kind is known.
    Models that choose keys by an indexer read and change theirs, so these get one.

    Code that builds masks by itself asks whether a batch has any padding, but not of fake tensors, which it takes for those of a compiler.
    """
    from transformers import masking_utils
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    tables = [(ALL_ATTENTION_FUNCTIONS._global_mapping, _attend), (ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, _mask)]
    before = [(table, dict(table)) for table, _ in tables]
    for table, ours in tables:
        table.update(dict.fromkeys([ATTENTION, "sdpa", *(name for name in table if name.startswith("fl"))], ours))
    traces = masking_utils.is_tracing
    masking_utils.is_tracing = lambda _tensor=None: traces()
    try:
        yield
    finally:
        masking_utils.is_tracing = traces
        for table, kept in before:
            table.clear()
            table.update(kept)


def _mask(batch_size: int, q_length: int, kv_length: int, *_args: Any, config: Any = None, device: Any = None, **_options: Any) -> Any:
    """Nothing, or flags of all pairs of tokens where the code of a model changes them."""
    if getattr(config, "index_topk", None) is None:
        return None
    return torch.ones((batch_size, 1, q_length, kv_length), dtype=torch.bool, device=device)


@contextlib.contextmanager
def fused_scans() -> Iterator[None]:
    """Let models of transformers that are loaded run the scan of a state-space layer as one kernel."""
    changed = [(module, name, getattr(module, name), ours) for module, name, ours in scans.replacements()]
    for module, name, _, ours in changed:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for module, name, before, _ in changed:
            setattr(module, name, before)


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *_args: Any, is_causal: bool | None = None,
    sliding_window: int | None = None, position_bias: Any = None, **_options: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Attention as models of transformers call it, on tensors of shape (batch, heads, tokens, width)."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    known = bool(causal) and query.shape[2] == key.shape[2], int(sliding_window or 0)
    found = ops.attention(query, key, value, *known, ops.learned(attention_mask if position_bias is None else position_bias))
    return found.transpose(1, 2), None


def _inputs(module: Any, config: Any, options: SourceOptions, where: str) -> Mapping[str, Any]:
    """Arguments of the forward pass: tokens, images or sounds, and labels in training where the model takes them."""
    named = inspect.signature(module.forward).parameters
    tokens = (options.batch, options.sequence or _length(config))
    found: dict[str, Any] = {}
    main = module.main_input_name
    if "input_ids" in named and None not in tokens:
        found["input_ids"] = torch.zeros(tokens, dtype=torch.long)
    if "pixel_values" in named and (main == "pixel_values" or hasattr(config, "text_config")):
        seen = getattr(config, "vision_config", config)
        size = getattr(seen, "image_size", None) or 224
        height, width = size if isinstance(size, list | tuple) else (size, size)
        found["pixel_values"] = torch.zeros((options.batch, getattr(seen, "num_channels", 3), height, width), dtype=module.dtype)
    if main == "input_features":
        frames = 2 * config.max_source_positions
        found["input_features"] = torch.zeros((options.batch, config.num_mel_bins, frames), dtype=module.dtype)
    if main not in found:
        raise CrossflowError(
            f"{where}: {type(module).__name__} takes {main}, which the import does not know; return (model, inputs) from a function"
        )
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.zeros((options.batch, options.sequence or _length(config)), dtype=torch.long)
    if options.training and "labels" in named:
        words = found.get("decoder_input_ids", found.get("input_ids"))
        many = main == "pixel_values" or "Sequence" in type(module).__name__
        found["labels"] = torch.zeros((options.batch,), dtype=torch.long) if many else torch.zeros_like(words)
    if options.training and "return_loss" in named:
        found["return_loss"] = True
    return found


def _length(config: Any) -> int | None:
    """Tokens of a sample where none are asked for: as many as the model was made for."""
    text = getattr(config, "text_config", config)
    for name in ("max_target_positions", "max_position_embeddings", "n_positions", "seq_length"):
        if isinstance(length := getattr(text, name, None), int):
            return length
    return None
