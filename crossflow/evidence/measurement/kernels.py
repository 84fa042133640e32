"""What is measured of single kernels: products, attention, passes over memory by operation, embedding bags, copies.

Which event of a program a call is, its operation and its shape, is what the importer of PyTorch models (`crossflow.evidence.torch`)
says of it, so that the names of measured and of imported kernels cannot differ.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from crossflow.base.errors import CrossflowError
from crossflow.base.provenance import digest
from crossflow.cost.profile import LOOKUPS, attention_shape, gemm_shape, lookup_shape, pass_shape
from crossflow.evidence.measurement.clock import TimedCall
from crossflow.evidence.measurement.overheads import UPDATES
from crossflow.evidence.torch.recorder import StepRecorder
from crossflow.evidence.torch.source import DTYPES
from crossflow.program.kernels import Attention, Kernel, Lookup, Pass, Product

aten = torch.ops.aten
ZEROS = "zeros"  # pass that fills the gradient of a table before rows are added
POOL = 2**20  # random numbers that tensors repeat
# A step has some twenty tensors of the size of each: a row's calls go round as many sets of buffers, so that what a cache holds of them is
# what it holds in a step of such kernels.
ROUND, SAME = 16, 1
COLUMNS = 1024  # of tensors that are normalised or added up, at most
SKINNY = 8  # side of a product that is no more than this, which one side at most is
WORK = 2.0**32  # operations of a product, at most; a row is to take a fraction of a second [flop]
HELD = 2.0**28  # bytes of a row's tensors, at most [B]
KernelName = tuple[str, str, str]  # op, shape and type as profiles have them; no op where no profile has the row


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One row to measure: its kind and name, and what makes calls of it on a new set of buffers each."""

    kind: str
    label: str
    make: Callable[[], TimedCall]
    held: float  # bytes of a set of buffers. [B]
    event: KernelName | None = None  # by the importer where absent
    less: Callable[[], TimedCall] | None = None  # part of each call that is timed too, and taken off: the pass forward
    sets: int = ROUND  # of buffers, through which its calls rotate


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """What kernels are measured on."""

    device: str
    dtype: str

    def tensor(self, *shape: int) -> Any:
        """A tensor of random numbers."""
        pool, elements = _numbers(self.device, self.dtype), math.prod(shape)
        return (pool.repeat(-(-elements // POOL))[:elements] if elements > POOL else pool[:elements].clone()).view(shape)

    @property
    def element(self) -> int:
        """Bytes of an element. [B]"""
        return int(DTYPES[self.dtype].itemsize)


@functools.cache
def _numbers(device: str, dtype: str) -> Any:
    """Random numbers above zero, made once: drawing them takes longer than most rows."""
    return torch.randn(POOL, device=device).abs().add(0.1).to(DTYPES[dtype])


def event_of(call: TimedCall, dtype: str) -> KernelName:
    """Operation, shape and type of the one kernel that a call runs, as profiles name it."""
    call()
    with torch.no_grad(), StepRecorder() as recorder:
        call()
    kernels = [kernel for record in recorder.records for kernel in record.kernels]
    if len(kernels) == 2 and isinstance(kernels[0], Pass) and kernels[0].what == ZEROS:  # its time is taken off
        del kernels[0]
    if len(kernels) != 1:
        raise CrossflowError(f"a benchmark runs {len(kernels)} kernels: {', '.join(one.name for one in recorder.records)}")
    return kernel_name(kernels[0], dtype)


def kernel_name(kernel: Kernel, dtype: str) -> KernelName:
    """Operation, shape and type of an imported kernel, as profiles name it."""
    if isinstance(kernel, Product):
        return "gemm", gemm_shape(*(float(size) for size in (kernel.m, kernel.n, kernel.k, kernel.batch))), dtype
    if isinstance(kernel, Lookup):
        sizes = kernel.samples, kernel.tables, kernel.rows, kernel.width, kernel.pooling
        return LOOKUPS[kernel.part], lookup_shape(*map(float, sizes)), ""
    if isinstance(kernel, Attention):
        shape = attention_shape(*map(float, (kernel.samples * kernel.heads, kernel.length, kernel.seen, kernel.width)))
        return f"attention_{'backward' if kernel.backward else 'forward'}", shape + " full" * (not kernel.causal), dtype
    assert isinstance(kernel, Pass)
    return "pass", pass_shape(float(kernel.moved), float(kernel.launches), kernel.what), ""


def benchmarks(kind: str, settings: BenchmarkSettings) -> list[Benchmark]:
    """Rows of a kind in the order in which they are measured: as if drawn, so that the first ones span all sizes, and always the same."""
    return sorted(KINDS[kind](settings), key=lambda one: digest(one.label))


# -------------------------------------------------------------------------------------------- products and attention


def _products(settings: BenchmarkSettings) -> Iterator[Benchmark]:
    """Products as a linear layer has them: forward with the weights transposed, gradients of inputs and of weights."""
    sides = (1, 8, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096)
    for m, n, k in itertools.product(sides, repeat=3):
        held = settings.element * (m * k + k * n + m * n)
        skinny = sum(side <= SKINNY for side in (m, n, k))
        if 2.0 * m * n * k > WORK or held > HELD or skinny > 1:
            continue
        for layout, make in _LAYOUTS.items():
            yield Benchmark(kind="gemm", label=f"{m}x{n}x{k} {layout}", make=_bound(make, settings, m, n, k), held=held)
    for batch, length, width in itertools.product((8, 32, 128), (64, 256), (32, 64)):
        for m, n, k in ((length, length, width), (length, width, length)):
            held = settings.element * batch * (m * k + k * n + m * n)
            yield Benchmark(kind="gemm", label=f"{batch} x {m}x{n}x{k}", make=_bound(_batched, settings, batch, m, n, k), held=held)


def _bound(make: Callable[..., TimedCall], *given: Any) -> Callable[[], TimedCall]:
    return lambda: make(*given)


def _linear(settings: BenchmarkSettings, m: int, n: int, k: int) -> TimedCall:
    x, weight, bias = settings.tensor(m, k), settings.tensor(n, k), settings.tensor(n)
    return lambda: torch.addmm(bias, x, weight.t())


def _input_gradient(settings: BenchmarkSettings, m: int, n: int, k: int) -> TimedCall:
    x, weight = settings.tensor(m, k), settings.tensor(k, n)
    return lambda: torch.mm(x, weight)


def _weight_gradient(settings: BenchmarkSettings, m: int, n: int, k: int) -> TimedCall:
    gradient, x = settings.tensor(k, m), settings.tensor(k, n)
    return lambda: torch.mm(gradient.t(), x)


def _batched(settings: BenchmarkSettings, batch: int, m: int, n: int, k: int) -> TimedCall:
    x, y = settings.tensor(batch, m, k), settings.tensor(batch, k, n)
    return lambda: torch.bmm(x, y)


_LAYOUTS: Mapping[str, Callable[..., TimedCall]] = {"nt": _linear, "nn": _input_gradient, "tn": _weight_gradient}


def _attention(settings: BenchmarkSettings) -> Iterator[Benchmark]:
    """Fused attention, forward and backward, with every key seen and with a causal mask."""
    for heads, length, width, causal in itertools.product((4, 16, 64), (32, 64, 128, 256, 512), (32, 64, 128), (False, True)):
        held = 4.0 * settings.element * heads * length * width
        if 4.0 * heads * length * length * width > WORK / 4:
            continue
        shape = attention_shape(heads, length, length, width) + " full" * (not causal)
        given = settings, heads, length, width, causal
        forward, both = _bound(_attended, *given), _bound(_attended_back, *given)
        yield Benchmark(
            kind="attention", label=f"{shape} forward", make=forward, held=held, event=("attention_forward", shape, settings.dtype)
        )
        yield Benchmark(
            kind="attention", label=f"{shape} backward", make=both, less=_bound(_attended_graph, *given), held=2 * held,
            event=("attention_backward", shape, settings.dtype),
        )  # fmt: skip


def _attended(settings: BenchmarkSettings, heads: int, length: int, width: int, causal: bool) -> TimedCall:
    q, k, v = (settings.tensor(1, length, heads, width).transpose(1, 2) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _attended_graph(settings: BenchmarkSettings, heads: int, length: int, width: int, causal: bool) -> TimedCall:
    q, k, v = (settings.tensor(1, length, heads, width).transpose(1, 2).requires_grad_() for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _attended_back(settings: BenchmarkSettings, heads: int, length: int, width: int, causal: bool) -> TimedCall:
    q, k, v = (settings.tensor(1, length, heads, width).transpose(1, 2).requires_grad_() for _ in range(3))
    gradient = settings.tensor(1, heads, length, width)
    return lambda: torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v), gradient)


# -------------------------------------------------------------------------------------------- passes

Operands = Sequence[Any]  # tensors of rows by columns, as many as an operation needs
PassCall = Callable[[Operands], Any]
# Operations over tensors of one shape: how many of them each takes.
POINTWISE: Mapping[str, tuple[int, PassCall]] = {
    "add": (2, lambda x: x[0] + x[1]),
    "add_": (2, lambda x: x[0].add_(x[1], alpha=-1e-3)),
    "add_ scalar": (1, lambda x: x[0].add_(1e-8)),
    "mul": (2, lambda x: x[0] * x[1]),
    "mul_": (1, lambda x: x[0].mul_(0.999)),
    "sub": (2, lambda x: x[0] - x[1]),
    "div": (1, lambda x: x[0] / 3.0),
    "div_": (1, lambda x: x[0].div_(1.001)),
    "sqrt": (1, lambda x: x[0].sqrt()),
    "lerp_": (2, lambda x: x[0].lerp_(x[1], 0.1)),
    "addcmul_": (2, lambda x: x[0].addcmul_(x[1], x[1], value=1e-3)),
    "addcdiv_": (3, lambda x: x[0].addcdiv_(x[1], x[2], value=-1e-8)),
    "relu": (1, lambda x: torch.relu(x[0])),
    "gelu": (1, lambda x: torch.nn.functional.gelu(x[0])),
    "silu": (1, lambda x: torch.nn.functional.silu(x[0])),
    "tanh": (1, lambda x: torch.tanh(x[0])),
    "sigmoid": (1, lambda x: torch.sigmoid(x[0])),
    "exp": (1, lambda x: torch.exp(x[0])),
    "threshold_backward": (2, lambda x: aten.threshold_backward(x[0], x[1], 0)),
    "gelu_backward": (2, lambda x: aten.gelu_backward(x[0], x[1])),
    "silu_backward": (2, lambda x: aten.silu_backward(x[0], x[1])),
    "tanh_backward": (2, lambda x: aten.tanh_backward(x[0], x[1])),
    "sigmoid_backward": (2, lambda x: aten.sigmoid_backward(x[0], x[1])),
    "native_dropout": (1, lambda x: aten.native_dropout(x[0], 0.1, True)),
    "mse_loss": (2, lambda x: torch.nn.functional.mse_loss(x[0], x[1])),
    "mse_loss_backward": (2, lambda x: aten.mse_loss_backward(x[0][0, 0], x[0], x[1], 1)),
    "clone": (1, lambda x: x[0].clone()),
    "clone transposed": (1, lambda x: x[0].t().clone(memory_format=torch.contiguous_format)),
    "copy_": (2, lambda x: x[0].copy_(x[1])),
    "fill_": (1, lambda x: x[0].fill_(1.0)),
    "zeros_like": (1, lambda x: torch.zeros_like(x[0])),
    ZEROS: (1, lambda x: torch.zeros(x[0].shape, device=x[0].device)),
    "ones_like": (1, lambda x: torch.ones_like(x[0])),
    "binary_cross_entropy_with_logits": (2, lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x[0], x[1])),
    "cat": (2, lambda x: torch.cat(list(x), 1)),
    "stack": (2, lambda x: torch.stack(list(x))),
}

SOFTMAX: Mapping[str, tuple[int, PassCall]] = {
    "_softmax": (1, lambda x: torch.softmax(x[0], -1)),
    "_log_softmax": (1, lambda x: torch.log_softmax(x[0], -1)),
    "_softmax_backward_data": (2, lambda x: aten._softmax_backward_data(x[0], x[1], -1, x[0].dtype)),
    "_log_softmax_backward_data": (2, lambda x: aten._log_softmax_backward_data(x[0], x[1], -1, x[0].dtype)),
}
REDUCTIONS: Mapping[str, tuple[int, PassCall]] = {
    "sum rows": (1, lambda x: x[0].sum(0, keepdim=True)),
    "sum columns": (1, lambda x: x[0].sum(1)),
    "mean": (1, lambda x: x[0].mean()),
}


def _passes(kind: str, calls: Mapping[str, tuple[int, PassCall]], settings: BenchmarkSettings) -> Iterator[Benchmark]:
    """Operations over tensors from one that is all overhead to one that no cache holds."""
    for elements in (2**exponent for exponent in range(4, 25, 2)):
        columns = min(COLUMNS, elements)
        for name, (count, call) in calls.items():
            make, update = _bound(_passing, settings, call, count, elements // columns, columns), name in UPDATES
            held = settings.element * elements * (count + 1.0 - update)
            yield Benchmark(kind=kind, label=f"{name} {elements}", make=make, held=held)


def _passing(settings: BenchmarkSettings, call: PassCall, count: int, rows: int, columns: int) -> TimedCall:
    operands = [settings.tensor(rows, columns) for _ in range(count)]
    return lambda: call(operands)


def _norms(settings: BenchmarkSettings) -> Iterator[Benchmark]:
    """Layer normalisation, forward and backward."""
    for columns, elements in itertools.product((128, 512, 2048), (2**exponent for exponent in range(8, 25, 2))):
        if elements < columns:
            continue
        for name, make in (("native_layer_norm", _norm), ("native_layer_norm_backward", _norm_back)):
            held = settings.element * elements * (3.0 if make is _norm_back else 2.0)
            bound = _bound(make, settings, elements // columns, columns)
            yield Benchmark(kind="normalisation", label=f"{name} {elements // columns}x{columns}", make=bound, held=held)


def _norm(settings: BenchmarkSettings, rows: int, columns: int) -> TimedCall:
    x, weight = settings.tensor(rows, columns), settings.tensor(columns)
    return lambda: aten.native_layer_norm(x, [columns], weight, weight, 1e-5)


def _norm_back(settings: BenchmarkSettings, rows: int, columns: int) -> TimedCall:
    x, gradient, weight = settings.tensor(rows, columns), settings.tensor(rows, columns), settings.tensor(columns)
    _, mean, inverse = aten.native_layer_norm(x, [columns], weight, weight, 1e-5)
    return lambda: aten.native_layer_norm_backward(gradient, x, [columns], mean, inverse, weight, weight, [True, True, True])


def _softmaxes(settings: BenchmarkSettings) -> Iterator[Benchmark]:
    yield from _passes("softmax", SOFTMAX, settings)
    for rows, classes in itertools.product((64, 512, 4096), (1024, 8192)):
        held = settings.element * rows * classes
        for name, make in (("nll_loss_forward", _loss), ("nll_loss_backward", _loss_back)):
            yield Benchmark(kind="softmax", label=f"{name} {rows}x{classes}", make=_bound(make, settings, rows, classes), held=held)


def _loss(settings: BenchmarkSettings, rows: int, classes: int) -> TimedCall:
    x, wanted = settings.tensor(rows, classes), torch.randint(0, classes, (rows,), device=settings.device)
    return lambda: aten.nll_loss_forward(x, wanted, None, 1, -100)


def _loss_back(settings: BenchmarkSettings, rows: int, classes: int) -> TimedCall:
    x, wanted = settings.tensor(rows, classes), torch.randint(0, classes, (rows,), device=settings.device)
    total, gradient = torch.tensor(float(rows), device=settings.device), settings.tensor(1)[0]
    return lambda: aten.nll_loss_backward(gradient, x, wanted, None, 1, -100, total)


# -------------------------------------------------------------------------------------------- embedding bags


def _bags(settings: BenchmarkSettings) -> Iterator[Benchmark]:
    """Pooled look-ups of one table by its rows, their width, pooling and reuse, and gradients of tables."""
    for rows, width, samples, pooling in itertools.product((1000, 20_000, 400_000), (16, 64, 256), (64, 512, 4096), (1, 10, 50)):
        held = 4.0 * rows * width + 8.0 * samples * pooling
        if held > HELD or samples * pooling * width > 2**25:
            continue
        given, label = (settings, rows, width, samples, pooling), f"{samples} x {pooling} of {rows}x{width}"
        yield Benchmark(kind="embedding", label=label, make=_bound(_bag, *given, 1.0), held=held)
        if pooling > 1 and rows >= 20_000:
            for reuse in (4.0, 32.0):  # times that a row is wanted
                event = LOOKUPS["forward"], lookup_shape(samples, 1.0, rows, width, pooling, reuse=reuse), ""
                yield Benchmark(kind="embedding", label=event[1], make=_bound(_bag, *given, reuse), held=held, event=event)
        if rows <= 20_000:
            for name, make in (("gradient of bags", _bag_back), ("gradient", _table_back)):
                made, zeros = _bound(make, *given), _bound(_zeros, settings, rows, width)
                yield Benchmark(kind="embedding", label=f"{name} {label}", make=made, less=zeros, held=2 * held)
    for rows, width, count in itertools.product((1000, 20_000), (64, 256, 1024), (64, 1024)):
        given_, label = (settings, rows, width, count), f"{count} of {rows}x{width}"
        yield Benchmark(kind="embedding", label=f"embedding {label}", make=_bound(_embedding, *given_), held=4.0 * rows * width)


def _indices(settings: BenchmarkSettings, rows: int, count: int, reuse: float = 1.0) -> Any:
    """Rows that are looked up, each `reuse` times in the mean where that is above 1."""
    few = min(rows, max(1, int(count / reuse))) if reuse > 1.0 else rows
    chosen = torch.randperm(rows)[:few]
    return chosen[torch.randint(0, few, (count,))].to(settings.device)


def _bag(settings: BenchmarkSettings, rows: int, width: int, samples: int, pooling: int, reuse: float) -> TimedCall:
    table, indices = settings.tensor(rows, width), _indices(settings, rows, samples * pooling, reuse)
    offsets = torch.arange(0, samples * pooling, pooling, device=settings.device)
    return lambda: aten._embedding_bag(table, indices, offsets)


def _bag_back(settings: BenchmarkSettings, rows: int, width: int, samples: int, pooling: int) -> TimedCall:
    table, indices = settings.tensor(rows, width), _indices(settings, rows, samples * pooling)
    offsets = torch.arange(0, samples * pooling, pooling, device=settings.device)
    _, bags, sizes, most = aten._embedding_bag(table, indices, offsets)
    gradient = settings.tensor(samples, width)
    return lambda: aten._embedding_bag_backward(gradient, indices, offsets, bags, sizes, most, rows, False, 0, False, None)


def _zeros(settings: BenchmarkSettings, rows: int, width: int) -> TimedCall:
    return lambda: torch.zeros(rows, width, device=settings.device)


def _table_back(settings: BenchmarkSettings, rows: int, width: int, samples: int, pooling: int) -> TimedCall:
    gradient, indices = settings.tensor(samples * pooling, width), _indices(settings, rows, samples * pooling)
    return lambda: aten.embedding_dense_backward(gradient, indices, rows, -1, False)


def _embedding(settings: BenchmarkSettings, rows: int, width: int, count: int) -> TimedCall:
    table, indices = settings.tensor(rows, width), _indices(settings, rows, count)
    return lambda: torch.embedding(table, indices)


# -------------------------------------------------------------------------------------------- copies


def _copies(settings: BenchmarkSettings) -> Iterator[Benchmark]:
    """Copies within the same two buffers by size: each level of the memory hierarchy shows as a step of the rate."""
    for exponent in range(12, 29):
        size = 2**exponent
        event = ("", f"copy of {2 * size} B", "")
        yield Benchmark(kind="copies", label=event[1], make=_bound(_copy, settings, size // 4), held=2.0 * size, event=event, sets=SAME)


def _copy(settings: BenchmarkSettings, elements: int) -> TimedCall:
    source, target = (torch.ones(elements, dtype=torch.float32, device=settings.device) for _ in range(2))
    return lambda: target.copy_(source)


KINDS: Mapping[str, Callable[[BenchmarkSettings], Iterator[Benchmark]]] = {
    "gemm": _products,
    "attention": _attention,
    "pointwise": lambda settings: _passes("pointwise", POINTWISE, settings),
    "normalisation": _norms,
    "softmax": _softmaxes,
    "reductions": lambda settings: _passes("reductions", REDUCTIONS, settings),
    "embedding": _bags,
    "copies": _copies,
}
