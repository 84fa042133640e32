"""What calls of libraries and of kernels that people write run, from what the text says of them.

A call that says nothing of its work has the cost that the user gives.

References
----------
.. [1] NVIDIA, TransformerEngine, `transformer_engine/jax/cpp_extensions/attention.py`: attributes of its attention;
   `fused_attn.h`: numbers of its masks.
.. [2] JAX, `pallas.CostEstimate`: operations and bytes of a kernel, which XLA's own analysis takes over from the call.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from crossflow.evidence.jax.hlo import window_of
from crossflow.evidence.jax.kernels import HloSizes, convolution, product
from crossflow.evidence.jax.text import HloOp, HloTensor, TextError
from crossflow.program.kernels import Attention, Kernel, Pass, Product
from crossflow.program.operations import attention_of

# Calls that neither compute nor move anything, by the beginning of their names.
FREE_CALLS = (
    "Sharding", "SPMD", "AllocateBuffer", "AssumeGatherIndicesInBound", "annotate_device_placement", "xla.sdy", "MoveToHost",
    "MoveToDevice", "LayoutConstraint", "PinToDevice", "CreateBuffer", "Pin", "Unpin", "sdy", "mhlo.sharding", "Barrier",
)  # fmt: skip
PASS_CALLS = ("TopK", "mhlo.topk", "chlo.top_k", "cu_threefry2x32", "hip_threefry2x32", "ApproxTopK", "PartialReduce", "SliceToDynamic")
# What TransformerEngine runs beside its products and its attention: norms, activations, softmaxes, casts to fewer bits.
ENGINE_PASSES = ("te_norm", "te_layernorm", "te_rmsnorm", "te_act", "te_dact", "te_scaled", "te_quantize", "te_dequantize", "te_dbias")
ENGINE_MASKS = frozenset({2, 3, 4, 5})  # of its numbers, those under which a query sees only the keys before it [1]_
MATMUL_CALLS = ("__cublas$", "__onednn$matmul", "__triton_gemm")
GROUPED_CALLS = ("__cublas$lt$groupedMatmul", "te_grouped_gemm")
SCALED_CALLS = ("__op$block_scaled_dot", "__cudnn$blockScaledDot")
ATTENTION_CALLS = ("__cudnn$fmha",)
CONVOLUTION_CALLS = ("__cudnn$conv", "__onednn$convolution")
# Targets that stand for any kernel of Pallas, Mosaic or Triton, whose own name the text says as well.
KERNEL_CALLS = ("tpu_custom_call", "mosaic_gpu", "__gpu$xla.gpu.triton", "triton_kernel_call")
ATTENDS = re.compile(r"flash|splash|attention|(?<![a-z])m[hq]a(?![a-z])")  # in the names of kernels of attention
MATRICES = 64.0  # operations for each element that is read or written from which on a kernel multiplies matrices
# Products of the parts into which kernels divide attention's backward pass, by their names: gradients of queries; of keys and values.
PARTS_BEHIND: Mapping[str, float] = {"dkv": 4.0, "dq": 3.0}
WHOLE_BEHIND, AHEAD = 5.0, 2.0  # products of the whole backward pass, and of the forward pass


@dataclass(frozen=True, kw_only=True)
class CalledWork:
    """Kernels of a call, what they are called, and what was taken for granted; `matrices` says whether they multiply any."""

    kernels: tuple[Kernel, ...]
    name: str
    matrices: bool = True
    note: str = ""


def name_of(op: HloOp) -> str:
    """Name of the kernel that a call runs; of the call where the text names none."""
    target = str(op.attributes["target"])
    own = str(op.attributes.get("kernel", ""))
    return own if own and target.startswith(KERNEL_CALLS) else target


def work_of(op: HloOp, given: Sequence[HloTensor]) -> CalledWork | None:
    """What a call runs on tensors; None where the text does not say it."""
    target, out = str(op.attributes["target"]), op.tensors
    name = name_of(op)
    if target.startswith(GROUPED_CALLS):
        return CalledWork(kernels=(_grouped(op, given),), name=name)
    if target.startswith(MATMUL_CALLS):
        return CalledWork(kernels=(called_product(op, given, out[0]),), name=name)
    if target.startswith(SCALED_CALLS):
        return CalledWork(kernels=(_scaled(op, given),), name=name)
    if target.startswith(CONVOLUTION_CALLS):
        return CalledWork(kernels=called_convolution(op, given, out[0])[0], name=name)
    if target.startswith(ATTENTION_CALLS):
        return CalledWork(kernels=(called_attention(op, given),), name=name)
    if target.startswith("te_fused_attn"):
        return CalledWork(kernels=(_engine_attention(op, given),), name=name)
    if target.startswith("te_gemm"):
        return CalledWork(kernels=(_engine_product(op, given),), name=name)
    return _kernel(op, given, name) if target.startswith(KERNEL_CALLS) else None


def called_product(op: HloOp, given: Sequence[HloTensor], out: HloTensor) -> Product:
    """A product that a library runs, whose dimensions stand in the settings of the call."""
    found = re.search(r'"dot_dimension_numbers":\{(.*?)\}', op.attributes["config"].replace('\\"', '"'))
    said = json.loads("{" + found[1] + "}") if found else {}

    def dims(name: str) -> tuple[int, ...]:
        return tuple(int(one) for one in said.get(f"{name}_dimensions", ()))

    last = len(given[0].shape) - 1
    contract = (dims("lhs_contracting"), dims("rhs_contracting")) if said else ((last,), (max(len(given[1].shape) - 2, 0),))
    rows = tuple(range(last - 1)) if not said and last > 1 else ()
    batch = (dims("lhs_batch"), dims("rhs_batch")) if said else (rows, rows)
    return product(given[0], given[1], out, contract, batch, op.line)


def called_convolution(op: HloOp, given: Sequence[HloTensor], out: HloTensor) -> tuple[tuple[Kernel, ...], float]:
    """A convolution that a library runs."""
    groups = int(op.attributes["said"].get("feature_group_count", 1))
    attributes = {"labels": op.attributes["labels"], "window": window_of(op.attributes["window"]), "groups": groups}
    plain = HloOp(name=op.name, op="convolution", type=op.type, attributes=attributes, line=op.line)
    return convolution(plain, given[0], given[1], out)


def called_attention(op: HloOp, given: Sequence[HloTensor]) -> Attention:
    """Fused attention of cuDNN, whose settings say the sizes of its scores (samples, heads, queries, keys), the mask and the window."""
    target, config = op.attributes["target"], op.attributes["config"].replace('\\"', '"')
    tensors = [one for one in given if len(one.shape) == 4][:3]
    scores = re.search(r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\[([^\]]*)\]', config)
    if len(tensors) < 3 or scores is None:
        raise TextError(op.line, f"the call of {target} has no queries, keys and values of four dimensions, or its settings are missing")
    _, heads, length, *_ = (int(one) for one in re.findall(r"\d+", scores[1]))
    tokens_first = tensors[0].shape[1:3] == (length, heads)
    shapes = [(one.shape[0], one.shape[2], one.shape[1], one.shape[3]) if tokens_first else one.shape for one in tensors]
    query, key, value = (HloSizes(tuple(map(float, shape)), tensors[0].element_size()) for shape in shapes)
    window = re.search(r'"sliding_window_length":\s*"?(\d+)', config)
    mask = re.search(r'"mask_type":\s*"?(\w+)', config)
    causal = mask is not None and "CAUSAL" in mask[1]
    return attention_of(query, key, value, causal=causal, window=float(window[1]) if window else 0.0, backward="Backward" in target)


def _said(op: HloOp) -> dict[str, int]:
    """Whole numbers among the attributes of a call, as ``attn_heads = 32 : i64``."""
    return {name: int(value) for name, value in re.findall(r"\b(\w+) = (-?\d+) : [iu]+\d+", op.attributes["config"])}


def _engine_attention(op: HloOp, given: Sequence[HloTensor]) -> Attention:
    """Attention of TransformerEngine, whose attributes say its sizes [1]_."""
    said = _said(op)
    width = said.get("qk_head_dim", said.get("head_dim", 0))
    needed = {"input_batch", "attn_heads", "num_gqa_groups", "q_max_seqlen", "kv_max_seqlen"}
    if not width or not needed <= said.keys() or not given:
        raise TextError(op.line, f"the call of {op.attributes['target']} does not say its sizes in its backend_config; the text is cut off")
    samples, element = float(said["input_batch"]), given[0].element_size()
    keys = (samples, float(said["num_gqa_groups"]), float(said["kv_max_seqlen"]))
    query = HloSizes((samples, float(said["attn_heads"]), float(said["q_max_seqlen"]), float(width)), element)
    key, value = (HloSizes((*keys, float(one)), element) for one in (width, said.get("v_head_dim", width)))
    left = said.get("window_size_left", -1)  # -1 where there is no window
    causal = said.get("mask_type", 0) in ENGINE_MASKS
    return attention_of(
        query, key, value, causal=causal, window=left + 1.0 if left >= 0 else 0.0, backward="backward" in op.attributes["target"]
    )


def _engine_product(op: HloOp, given: Sequence[HloTensor]) -> Product:
    """A product of TransformerEngine: sizes of two matrices and of their product say what is added over, for m k * k n = m n k^2."""
    lhs, rhs, out = given[0], given[1], op.tensors[0]
    k = math.sqrt(lhs.numel() * rhs.numel() / out.numel())
    return Product(m=lhs.numel() / k, n=rhs.numel() / k, k=k)


def _grouped(op: HloOp, given: Sequence[HloTensor]) -> Product:
    """Products of groups of rows with a matrix each, or the gradients of these matrices."""
    lhs, rhs, out = given[0], given[1], op.tensors[0]
    three = next((one for one in (rhs, lhs, out) if len(one.shape) == 3), None)
    if three is None:
        raise TextError(op.line, f"the call of {op.attributes['target']} has no tensor with a matrix for each group")
    groups = three.shape[0]
    share = math.sqrt(lhs.numel() * rhs.numel() / out.numel() / groups)  # the number that is added over, of one group
    if three is out:
        return Product(m=float(out.shape[1]), n=float(out.shape[2]), k=share, batch=float(groups))
    return Product(m=lhs.numel() / share / groups, n=rhs.numel() / share / groups, k=share, batch=float(groups))


def _scaled(op: HloOp, given: Sequence[HloTensor]) -> Product:
    """A product of tensors of few bits, each block of which has a scale: batch, rows, and what is added over."""
    lhs, rhs = given[0], given[1]
    last, lead = len(lhs.shape) - 1, tuple(range(len(lhs.shape) - 2))
    return product(lhs, rhs, op.tensors[0], ((last,), (last,)), (lead, lead), op.line)


def _kernel(op: HloOp, given: Sequence[HloTensor], name: str) -> CalledWork | None:
    """A kernel of Pallas or Triton: by the estimate of its author, or as attention that its name and its tensors show."""
    told = _estimate(op.attributes["config"])
    if ATTENDS.search(name) and (found := _attention_of_kernel(given, name)) is not None:
        if told is None:
            note = f"the kernel '{name}' does not say its work; it is taken for causal attention over all its tokens (--cost gives it)"
            return CalledWork(kernels=(found,), name=name, note=note)
        flops, moved = told
        blocks = 1.0 if found.work is None else float(found.work[2])
        return CalledWork(kernels=(replace(found, work=(flops, moved, blocks)),), name=name)
    if told is None:
        return None
    flops, moved = told
    elements = sum(one.numel() for one in (*given, *op.tensors))
    if flops <= MATRICES * elements:
        return CalledWork(kernels=(Pass(moved=moved, flops=flops, what=name),), name=name, matrices=False)
    return CalledWork(kernels=(_estimated_product(given, op.tensors, flops),), name=name)


def _estimate(config: str) -> tuple[float, float] | None:
    """Operations and bytes of a kernel as its author estimates them [2]_; None where the text says none."""
    found = re.search(r'"cost_estimate":\s*\{(.*?)\}', config.replace('\\"', '"').replace("\\0A", " "), re.DOTALL)
    if found is None:
        return None
    said = dict(re.findall(r'"(\w+)":\s*"?([\d.e+]+)', found[1]))
    return (float(said["flops"]), float(said["bytes_accessed"])) if {"flops", "bytes_accessed"} <= said.keys() else None


def _attention_of_kernel(given: Sequence[HloTensor], name: str) -> Attention | None:
    """Attention over the first three tensors of numbers of four dimensions, or of three for one sample: samples, heads, tokens, width.

    Tokens are the larger of the two numbers in the middle. The parts of a backward pass have their share of its products.
    """
    floats = [one for one in given if one.floats and len(one.shape) in (3, 4)]
    most = max((len(one.shape) for one in floats), default=0)
    tensors = [one for one in floats if len(one.shape) == most][:3]
    if len(tensors) < 3 or len({one.shape[-1] for one in tensors[:2]}) > 1:
        return None
    shapes = [(1, *one.shape) if most == 3 else one.shape for one in tensors]
    if shapes[1][1] > shapes[1][2]:
        shapes = [(one[0], one[2], one[1], one[3]) for one in shapes]
    query, key, value = (HloSizes(tuple(map(float, shape)), tensors[0].element_size()) for shape in shapes)
    part = next((products for word, products in PARTS_BEHIND.items() if word in name), None)
    behind = part is not None or re.search(r"bwd|backward", name) is not None
    found = attention_of(query, key, value, causal=True, backward=behind)
    if part is None:
        return found
    samples, heads, length, width = query.shape
    flops = part * samples * heads * length * key.shape[2] * width  # of two operations each, half of which the mask leaves
    moved = sum(one.numel() * one.element_size() for one in (query, query, key, value)) + (
        query.numel() * query.element_size() if part < max(PARTS_BEHIND.values()) else 2.0 * key.numel() * key.element_size()
    )
    return replace(found, work=(flops, moved, samples * heads))


def _estimated_product(given: Sequence[HloTensor], made: Sequence[HloTensor], flops: float) -> Product:
    """A product of the operations that a kernel is said to have, for its largest result; as many as it reads matrices of that size."""
    out = max(made, key=HloTensor.numel)
    n = float(out.shape[-1]) if out.shape else 1.0
    k = flops / (2.0 * out.numel())
    second = max((one.numel() for one in given if len(one.shape) > 2 and one.shape[-1] == n), default=0.0)
    copies = max(1.0, round(second / (k * n)))
    return Product(m=out.numel() / n / copies, n=n, k=k, batch=copies)
