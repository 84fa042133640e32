"""What the kernels of a traced operation do: products, attention, look-ups, passes over memory, by the sizes of its tensors.

The formulas of products and tables are those of an import (`crossflow.program.operations`). An operation of eager PyTorch runs its
kernels one after the other, so that every pass over memory counts; what the sizes do not say is refused with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from crossflow.cost.lookups import RADIX
from crossflow.evidence.replay.lookups import UNSIZED, UPDATES, bag, looks_up, lookup_optimizer, tables
from crossflow.evidence.replay.tensors import DTYPES, UNSAID, TracedOperation, TracedTensor, tensors_of
from crossflow.program import operations
from crossflow.program.kernels import Attention, Kernel, Pass
from crossflow.program.operations import ADDS, SETS, attention_of, implicit, nbytes, scattered, touched

# Kinds of kernels, for people.
PRODUCT, CONVOLUTION, ATTENTION, NORM, SOFTMAX = "product", "convolution", "attention", "normalisation", "softmax"
POINTWISE, REDUCTION, GATHER, OPTIMIZER, SORT = "pointwise", "reduction", "gather and scatter", "optimizer", "sort and scan"
LOOKUP, LOOKUP_SORT, UPDATE, RESHUFFLE = "look-up", "look-up sort", "look-up update", "rearrangement"
POOL, FUSED = "pooling", "fused passes"
_FUSED = ("triton_poi_", "triton_per_", "triton_red_")  # how the compiler of PyTorch names pointwise kernels and reductions
NARROW_SORT = 4096  # elements of a row that PyTorch sorts in one pass, in the memory of one unit


@dataclass(frozen=True, kw_only=True)
class KernelPart:
    """Kernels that an operation runs, or a part of them.

    Attributes
    ----------
    kind : what they do, for people.
    kernels : what is priced.
    dtype : type that products compute in, "" for passes over memory.
    named : what the names of its kernels hold, any of them; all that no other part names where empty.
    """

    kind: str
    kernels: tuple[Kernel, ...]
    dtype: str = ""
    named: tuple[str, ...] = ()


KernelParts = tuple[KernelPart, ...]
KernelRule = Callable[[str, TracedOperation], KernelParts | str]


def parts_of(
    name: str, operation: TracedOperation, gradient: TracedTensor | None = None, forward: TracedOperation | None = None
) -> KernelParts | str | None:
    """What the kernels of an operation do; a reason where its sizes do not say it, None for an operation that is not known.

    Parameters
    ----------
    name : as a trace has it, such as ``aten::mm``.
    gradient : of a look-up of several tables, the gradient of its result, whose width the profiler does not write.
    forward : of the backward pass of such a look-up, the look-up.
    """
    plain = plain_name(name)
    if looks_up(plain) or plain.startswith(UPDATES):
        return _tables(plain, operation if looks_up(plain) else forward, gradient)
    rule = _rule(plain)
    if rule is None:
        return None
    try:
        return rule(plain, operation)
    except (IndexError, AttributeError, TypeError, ValueError, ZeroDivisionError):  # sizes that are no such operation's
        return UNSIZED


def plain_name(name: str) -> str:
    """Name of an operation without its namespace; of a node of autograd that of its function.

    >>> plain_name("aten::addmm"), plain_name("torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&f> >")
    ('addmm', 'PermutePooledEmbsFunction')
    """
    node = _NODE.match(name)
    return node["function"] if node else name.rpartition("::")[2]


_NODE = re.compile(r"torch::autograd::CppNode<(?:\w+::)*(?P<function>\w+)")


def _rule(name: str) -> KernelRule | None:
    if name in _RULES:
        return _RULES[name]
    if name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_")):
        return _foreach
    if name.startswith(_FUSED):
        return _fused
    base = name.rstrip("_").removesuffix("_data").removesuffix("_backward")
    return _pass_of(POINTWISE) if base in _POINTWISE else None


# -------------------------------------------------------------------------------------------- products and attention


def type_of(given: object) -> str:
    """Type that an operation computes in: that of its first tensor of numbers with a point, "" without one."""
    return next((DTYPES[one.type] for one in tensors_of(given) if one.type in DTYPES), "")


def _product(name: str, operation: TracedOperation) -> KernelParts | str:
    dtype = type_of(operation.args)
    found = operations.kernels_of(name, operation.args, _first(operation.out))
    if not dtype or not found:
        return "its tensors hold no numbers with a point" if found else UNSIZED
    return (KernelPart(kind=PRODUCT, kernels=found, dtype=dtype),)


def _first(out: tuple[object, ...] | None) -> object:
    return out[0] if out else None


def _convolution(name: str, operation: TracedOperation) -> KernelParts | str:
    """Forward: data, weight and the result; backward: the gradient of the result, data and weight."""
    backward = name.endswith("_backward")
    tensors = [*tensors_of(operation.args)]
    made = [*tensors_of(operation.out or ())]
    if not backward and not made:
        return "the size of its result was not recorded"
    gradient, data, weight = tensors[:3] if backward else (made[0], *tensors[:2])
    turned = data.shape[1] == weight.shape[0] != weight.shape[1] and gradient.shape[1] != weight.shape[0]  # a transposed convolution
    groups = data.shape[1] // weight.shape[1] if not turned else 1
    wanted = operation.args[10] if backward and len(operation.args) > 10 else None
    ways: tuple[str, ...] = ("input", "weight") if backward else ("forward",)
    if isinstance(wanted, tuple):
        ways = tuple(way for way, want in zip(ways, wanted, strict=False) if want)
    elif backward and made:
        ways = tuple(way for way, one in zip(ways, operation.out or (), strict=False) if isinstance(one, TracedTensor) and one.numel())
    rows = (data if turned else gradient).shape
    pixels = float(rows[0] * math.prod(rows[2:]))
    found = implicit(weight, groups, pixels, ways)
    if found is None:  # depthwise: each way reads two of the tensors and writes the third
        moved = len(ways) * sum(nbytes(one) for one in (gradient, data, weight))
        return (KernelPart(kind=CONVOLUTION, kernels=(Pass(moved=moved, flops=operations.depthwise_flops(weight, pixels, ways)),)),)
    return (KernelPart(kind=CONVOLUTION, kernels=found, dtype=type_of(operation.args)),)


# Fused attention: place of the query, of whether the mask is causal, and whether tokens come before heads.
_ATTENTION: Mapping[str, tuple[int, int, bool]] = {
    "_scaled_dot_product_flash_attention": (0, 4, False), "_scaled_dot_product_flash_attention_backward": (1, 11, False),
    "_scaled_dot_product_efficient_attention": (0, 6, False), "_scaled_dot_product_efficient_attention_backward": (1, 11, False),
    "_scaled_dot_product_cudnn_attention": (0, 6, False), "_scaled_dot_product_cudnn_attention_backward": (1, 14, False),
    "_cudnn_attention_forward": (0, 9, False), "_cudnn_attention_backward": (1, 14, False),
    "_flash_attention_forward": (0, 8, True), "_flash_attention_backward": (1, 11, True),
    "_efficient_attention_forward": (0, 9, True), "_efficient_attention_backward": (1, 14, True),
}  # fmt: skip


def _attention(name: str, operation: TracedOperation) -> KernelParts | str:
    """Fused attention; a mask that the trace does not call causal hides nothing."""
    place, mask, tokens_first = _ATTENTION[name]
    query, key, value = operation.args[place : place + 3]
    if tokens_first:
        query, key, value = (replace(one, shape=tuple(one.shape[axis] for axis in (0, 2, 1, 3))) for one in (query, key, value))
    causal = bool(operation.args[mask]) if len(operation.args) > mask else False
    found: Attention = attention_of(query, key, value, causal=causal, backward=bool(place))
    return (KernelPart(kind=ATTENTION, kernels=(found,), dtype=type_of(query)),)


# -------------------------------------------------------------------------------------------- passes over memory


def _pass_of(kind: str) -> KernelRule:
    """A pass that reads all that an operation takes and writes what it makes."""
    return lambda name, operation: _passed(kind, name, operation)


def _passed(kind: str, name: str, operation: TracedOperation) -> KernelParts | str:
    given = [*tensors_of(operation.args)]
    inplace = name.endswith("_") and not name.endswith("__")
    if UNSAID in operation.args or not (given or operation.out):
        return UNSIZED
    made = [given[0]] if inplace else _made(kind, name, operation, given)
    if made is None:
        return "the size of its result was not recorded"
    sizes, total = [nbytes(one) for one in given], sum(map(nbytes, made))
    parts = [touched(name, place, size, total, sizes[1:]) for place, size in enumerate(sizes)]
    read = sum(parts[1:]) if name in SETS else sum(parts)
    written = parts[0] if inplace else total
    flops = float(sum(one.numel() for one in made))
    return (KernelPart(kind=kind, kernels=(Pass(moved=read + written, flops=flops),)),)


def _made(kind: str, name: str, operation: TracedOperation, given: Sequence[TracedTensor]) -> Sequence[TracedTensor] | None:
    """Results of an operation: as recorded, else as its kind gives them."""
    if operation.out is not None:
        return [*tensors_of(operation.out)]
    if kind == REDUCTION:  # much smaller than what is read
        return []
    if name in ("cat", "stack"):
        return given
    if name == "gather":
        return [replace(given[0], shape=given[-1].shape)]
    if name == "embedding":
        return [replace(given[0], shape=(*given[1].shape, given[0].shape[-1]))]
    if kind == POOL and name.endswith("_backward"):
        return given[1:2]
    if kind != POINTWISE:
        return None
    shape = _broadcast([one.shape for one in given])
    wide = [one for one in given if one.shape] or given  # tensors of one number do not widen the others
    wide = [one for one in wide if one.type in DTYPES] or wide
    element = 1 if name in _COMPARISONS else max(one.element for one in wide)
    return [replace(given[0], shape=shape, element=element)]


def result_of(name: str, operation: TracedOperation) -> TracedTensor | None:
    """What a pointwise operation writes, None where its sizes do not say it."""
    plain, given = plain_name(name), [*tensors_of(operation.args)]
    if not given:
        return None
    made = given if plain.endswith("_") and not plain.endswith("__") else _made(POINTWISE, plain, operation, given)
    return made[0] if made else None


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _times(kind: str, passes: float, launches: float = 1.0) -> KernelRule:
    """A kernel that passes so many times over as many bytes as its first tensor has."""

    def rule(_name: str, operation: TracedOperation) -> KernelParts | str:
        first = next(tensors_of(operation.args), None)
        if first is None:
            return UNSIZED
        return (KernelPart(kind=kind, kernels=(Pass(moved=passes * nbytes(first), flops=float(first.numel()), launches=launches),)),)

    return rule


def _foreach(name: str, operation: TracedOperation) -> KernelParts | str:
    """Lists of tensors, element by element: all are read, and the first list is written; of a fused optimizer its states, too."""
    lists = [[*tensors_of(one)] for one in operation.args if isinstance(one, tuple)]
    if not lists or not lists[0]:
        return "the sizes of its lists of tensors were not recorded"
    sizes = [sum(map(nbytes, one)) for one in lists]
    written = sum(sizes) - sizes[1] if name.startswith("_fused") and len(sizes) > 1 else sizes[0]
    read = sum(sizes[1:]) if name in SETS else sum(sizes)
    flops = float(sum(one.numel() for one in lists[0]))
    return (KernelPart(kind=OPTIMIZER, kernels=(Pass(moved=read + written, flops=flops),)),)


def _fused(_name: str, operation: TracedOperation) -> KernelParts | str:
    """A kernel that a compiler joined of passes: every tensor that it is given crosses memory once, read or written."""
    given = [*tensors_of(operation.args)]
    if not given:
        return UNSIZED
    return (KernelPart(kind=FUSED, kernels=(Pass(moved=sum(map(nbytes, given)), flops=float(max(one.numel() for one in given))),)),)


def _scatter(_name: str, operation: TracedOperation) -> KernelParts | str:
    """The gradient of a table of as many rows as it is told."""
    gradient, indices = operation.args[:2]
    rows = operation.args[2] if len(operation.args) > 2 else None
    made = [*tensors_of(operation.out or ())]
    if not made and not isinstance(rows, int):
        return "the size of its result was not recorded"
    written = nbytes(made[0]) if made else float(rows * gradient.shape[-1] * gradient.element)
    return (KernelPart(kind=GATHER, kernels=scattered(gradient, indices, written)),)


def _sorted(_name: str, operation: TracedOperation) -> KernelParts | str:
    """A radix sort of keys with their places, a pass over both for every 8 bits of a key; short rows in one pass."""
    keys = next(tensors_of(operation.args))
    passes = 1 if keys.shape and keys.shape[-1] <= NARROW_SORT else math.ceil(8 * keys.element / RADIX)
    moved = keys.numel() * (2.0 * passes * (keys.element + 8) + keys.element)
    return (KernelPart(kind=SORT, kernels=(Pass(moved=moved, flops=float(keys.numel())),)),)


def _permuted(_name: str, operation: TracedOperation) -> KernelParts | str:
    """Lengths and values of samples in another order: read with the order, written without it."""
    given = [*tensors_of(operation.args)]
    moved = sum(map(nbytes, given)) + sum(map(nbytes, given[1:]))
    return (KernelPart(kind=RESHUFFLE, kernels=(Pass(moved=moved, flops=0.0),)),)


def _checked(_name: str, operation: TracedOperation) -> KernelParts | str:
    """Indices and offsets are read once."""
    indices, offsets = operation.args[1:3]
    return (KernelPart(kind=RESHUFFLE, kernels=(Pass(moved=nbytes(indices) + nbytes(offsets), flops=0.0),)),)


def _bag(_name: str, operation: TracedOperation) -> KernelParts | str:
    found = bag(operation)
    return found if isinstance(found, str) else (KernelPart(kind=LOOKUP, kernels=(found,)),)


def _tables(name: str, operation: TracedOperation | None, gradient: TracedTensor | None) -> KernelParts | str:
    """Look-ups of several tables, or the sort and the update of their backward pass, of which the trace shows the look-up alone."""
    found = "its look-up was not found in the trace" if operation is None else tables(lookup_optimizer(name), operation.args, gradient)
    if isinstance(found, str):
        return found
    if looks_up(name):
        return (KernelPart(kind=LOOKUP, kernels=(found,)),)
    return (
        KernelPart(kind=LOOKUP_SORT, kernels=(replace(found, part="sort"),)),
        KernelPart(kind=UPDATE, kernels=(replace(found, part="update"),), named=("embedding_backward",)),
    )


def _picked_loss(_name: str, operation: TracedOperation) -> KernelParts | str:
    """The gradient of a loss of one class a row: zero but there."""
    data = operation.args[1]
    return (KernelPart(kind=GATHER, kernels=(Pass(moved=nbytes(data), flops=0.0),)),)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Names without what marks writing in place (_) and the pass back (_backward).
_COMPARISONS = _words("""
    eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite isin
""")
_POINTWISE = frozenset(_COMPARISONS) | frozenset(
    _words("""
    add sub rsub mul div neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt pow square reciprocal sin cos tan tanh sinh cosh
    asin acos atan atan2 sigmoid logit logsigmoid log_sigmoid log_sigmoid_forward relu relu6 gelu silu elu celu selu leaky_relu
    prelu _prelu_kernel hardtanh hardswish hardsigmoid softplus mish threshold clamp clamp_min clamp_max maximum minimum fmax fmin
    where _s_where masked_fill masked_scale floor ceil round trunc frac sign sgn remainder fmod addcmul addcdiv lerp erf erfc erfinv
    fill zero copy clone contiguous _to_copy to dropout native_dropout _fused_dropout uniform normal random bernoulli exponential
    cauchy log_normal geometric nan_to_num bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ glu mse_loss
    smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits ones_like zeros_like full_like rand_like
    randn_like tril triu xlogy floor_divide true_divide hypot cat stack _cat constant_pad_nd roll flip
    _amp_update_scale arange
""")
)
_REDUCTIONS = _words("""
    sum mean amax amin max min argmax argmin var std var_mean std_mean norm linalg_vector_norm prod any all count_nonzero nansum
    logsumexp aminmax dot vdot nll_loss_forward
""")
_GATHERS = ("embedding", "index", "index_select", "gather", "take", "take_along_dim", "_unsafe_index", "masked_select", *ADDS)
_POOLS = _words("""
    max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward max_pool3d_with_indices upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d
    upsample_bilinear2d_backward avg_pool3d reflection_pad2d im2col col2im
""")
# Passes over the bytes of the first tensor. Statistics of a channel are those of all samples, so that batch and group norms read what
# they normalise twice; backward passes add up the gradients of weight and bias in a kernel of their own.
_NORMS: Mapping[str, tuple[float, float]] = {
    "native_layer_norm": (2.0, 1.0), "native_layer_norm_backward": (5.0, 2.0), "_fused_rms_norm": (2.0, 1.0),
    "_fused_rms_norm_backward": (5.0, 2.0), "native_group_norm": (3.0, 2.0), "native_group_norm_backward": (5.0, 2.0),
    "native_batch_norm": (3.0, 1.0), "native_batch_norm_backward": (5.0, 1.0), "cudnn_batch_norm": (3.0, 1.0),
    "cudnn_batch_norm_backward": (5.0, 1.0), "miopen_batch_norm": (3.0, 1.0), "miopen_batch_norm_backward": (5.0, 1.0),
    "_batch_norm_with_update": (3.0, 1.0), "batch_norm_backward": (5.0, 1.0),
    "batch_norm_stats": (1.0, 1.0), "batch_norm_elemt": (2.0, 1.0),
    "batch_norm_backward_reduce": (2.0, 1.0), "batch_norm_backward_elemt": (3.0, 1.0),
}  # fmt: skip
_RULES: Mapping[str, KernelRule] = {
    **dict.fromkeys((name for name in operations.KERNELS if "convolution" not in name and name != "_embedding_bag"), _product),
    **dict.fromkeys(
        [
            f"{maker}convolution{way}"
            for maker in ("", "cudnn_", "miopen_", "_", "mkldnn_", "thnn_conv2d_", "slow_conv2d_", "conv_depthwise3d_")
            for way in ("", "_backward")
        ],
        _convolution,
    ),
    **dict.fromkeys(("_conv_depthwise2d", "_slow_conv2d_forward"), _convolution),
    **dict.fromkeys(_ATTENTION, _attention),
    **{name: _times(NORM, *passes) for name, passes in _NORMS.items()},
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), _times(SOFTMAX, 2.0)),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _times(SOFTMAX, 3.0)),
    **dict.fromkeys(_REDUCTIONS, _pass_of(REDUCTION)),
    **dict.fromkeys(_GATHERS, _pass_of(GATHER)),
    **dict.fromkeys(_POOLS, _pass_of(POOL)),
    **dict.fromkeys(("mv", "addmv", "ger", "addr"), _pass_of(PRODUCT)),
    **dict.fromkeys(("cumsum", "cumprod", "_cumsum", "logcumsumexp", "cummax"), _times(SORT, 2.0)),
    **dict.fromkeys(("asynchronous_complete_cumsum", "asynchronous_exclusive_cumsum", "asynchronous_inclusive_cumsum"), _times(SORT, 2.0)),
    **dict.fromkeys(("sort", "argsort", "_unique2", "unique_dim", "unique_consecutive"), _sorted),
    **dict.fromkeys(("embedding_dense_backward",), _scatter),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _picked_loss),
    **dict.fromkeys(("permute_2D_sparse_data", "permute_1D_sparse_data", "permute_sparse_features"), _permuted),
    **dict.fromkeys(("permute_pooled_embs", "permute_pooled_embs_auto_grad", "PermutePooledEmbsFunction"), _times(RESHUFFLE, 2.0)),
    **dict.fromkeys(("recat_embedding_grad_output_mixed_D_batch", "recat_embedding_grad_output"), _times(RESHUFFLE, 2.0)),
    **dict.fromkeys(("FloatToFP8RowwiseQuantized", "FloatToHFP8Quantized"), _times(POINTWISE, 1.25)),
    **dict.fromkeys(("FP8RowwiseQuantizedToFloat", "HFP8QuantizedToFloat"), _times(POINTWISE, 5.0)),
    "bounds_check_indices": _checked,
    "_embedding_bag": _bag,
}  # fmt: skip
