"""Parameters and operations of a model: by torch, and of the program that is imported of it."""

import logging
import math
import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import importer, record, source
from crossflow.program.kernels import Attention, Pass, Product
from tests.pytorch.foreign.further import FURTHER
from tests.pytorch.foreign.models import MODELS

OPTIONS = source.SourceOptions(batch=1, sequence=None, dtype="", training=True)


def row(name: str, layouts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What becomes of a model at each layout."""
    make = (MODELS | FURTHER)[name]
    parameters, flops = counted(make)
    return {"layouts": {layout: _imported(make, given, parameters, flops) for layout, given in layouts.items()}}


def counted(make: Any) -> tuple[int, float]:
    """Parameters of a model, and operations of a step: on tensors without memory, or on real ones where values matter."""
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _counted(make)
    except Exception:
        try:
            return _counted(make)
        except NotImplementedError:  # torch has no backward pass of flex attention on the CPU
            return sum(one.numel() for one in source.given(make, OPTIONS, "model").module.parameters()), math.nan


def _counted(make: Any) -> tuple[int, float]:
    """Parameters and operations, those of attention as the products that it stands for."""
    torch.manual_seed(0)
    found = source.given(make, OPTIONS, "model")
    model = found.module.train()

    def grouped(a: Any, b: Any, *_args: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        wide = len(a) == 2 and len(b) == 2
        return 2 * a[0] * a[1] * b[-1] if wide else 2 * a[-2] * a[-1] * b[-1]

    def convolved(gradient: Any, data: Any, weight: Any, *args: Any, out_shape: Any = None, **_kwargs: Any) -> int:
        """Torch's own count takes the groups of a convolution for one."""
        pixels = gradient if not args[4] else data
        return 2 * math.prod(weight) * pixels[0] * math.prod(pixels[2:]) * sum(args[7][:2])

    own = {torch.ops.aten._grouped_mm: grouped, torch.ops.aten.convolution_backward: convolved}
    written_out = torch.backends.mkldnn.flags(enabled=False)  # recurrent layers, which torch does not count as one operation
    with FlopCounterMode(display=False, custom_mapping=own) as count, sdpa_kernel(SDPBackend.MATH), written_out:
        source.loss_of(found, model(*found.args, **found.kwargs)).backward()
    return sum(one.numel() for one in model.parameters()), float(count.get_total_flops())


def _imported(make: Any, given: Mapping[str, Any], parameters: int, flops: float) -> dict[str, Any]:
    torch.manual_seed(0)
    ranks = 2 if "tp" in given.get("parallel", "") else 1
    own, scanned = list[float](), list[bool]()
    laid_out = importer._laid_out

    def counting(recorder: Any, *args: Any, **kwargs: Any) -> Any:  # before convolutions are joined with other passes
        own.append(sum(operations(kernel) for one in recorder.records for kernel in one.kernels))
        scanned.append(any(one.name == "scan" for one in recorder.records))
        return laid_out(recorder, *args, **kwargs)

    importer._laid_out = counting
    try:
        program = record(make, **given)
    except CrossflowError as error:
        return {"refused": str(error)}
    except Exception:
        return {"error": traceback.format_exc()[-2000:]}
    finally:
        importer._laid_out = laid_out
    if math.isnan(flops) or any(scanned):
        own[0] = flops  # torch counts the products of a scan that is written out
    return {"parameters": program.parameters, "own_parameters": parameters, "flops": own[0], "least": flops / ranks, "most": flops}


def operations(kernel: Any) -> float:
    """Operations of a kernel as FlopCounterMode counts them: all keys, and in the backward pass twice those of the forward pass. [flop]"""
    if isinstance(kernel, Product):
        return float(2.0 * kernel.m * kernel.n * kernel.k * kernel.batch)
    if isinstance(kernel, Attention) and kernel.work is not None:  # values of another width: of causal work half, five products behind
        return float(kernel.work[0] * (2.0 if kernel.causal else 1.0) * (0.8 if kernel.backward else 1.0))
    if isinstance(kernel, Attention):
        return float(4.0 * kernel.samples * kernel.heads * kernel.length * kernel.seen * kernel.width * (2 if kernel.backward else 1))
    return float(kernel.flops) if isinstance(kernel, Pass) and "convolution" in kernel.what else 0.0
