"""Records what one step dispatches: every operation with what it reads and writes, its module, its phase, and its kernel or message."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import kernels, messages
from crossflow.evidence.torch.constants import known, value_of
from crossflow.evidence.torch.ops import local
from crossflow.evidence.torch.routing import FlagRouting
from crossflow.program.collectives import Collective
from crossflow.program.kernels import Kernel
from crossflow.program.program import HostTime

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
COPY_IN, COPY_OUT = "all_gather_copy_in", "split_with_sizes_copy"  # of FSDP's gathers
_DEVICE, _ITEM = torch.ops.prim.device.default, torch.ops.aten._local_scalar_dense.default
_ADD, _SPLIT = torch.ops.aten.add.Tensor, torch.ops.aten.split_with_sizes.default
_DRAWS = frozenset({"random_", "randperm", "randint", "bernoulli_", "bernoulli", "multinomial"})
_COMPARES = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_NEAR = 16  # numbers of nodes of autograd among which that of an operation is looked for


@dataclass(frozen=True, kw_only=True)
class Record:
    """One operation.

    Attributes
    ----------
    name, layer, phase : what it is, the path of its module, and forward, backward or update.
    kernels : what it runs on the device; none of an operation that sends, and of one for which the host waits.
    reads, writes : bytes that it moves of each storage. [B]
    fuses : whether a compiler joins it with pointwise operations around it.
    accumulates : whether autograd adds up two gradients of one tensor here; it belongs to no module.
    collective, size, ranks, axis : of a message, its kind, its buffer, the ranks that take part, and the name of their axis. [B]
    blocks : whether all that is issued later waits for the message.
    aside : whether FSDP sends it, from a stream of its own, on which what follows from it is computed too.
    host : time that the host takes once it has waited for what it reads, as `crossflow.program.program.Op` has it; none of most.
    dtype : type of what a kernel other than a pass computes.
    stage : stage of a pipeline that runs it.
    between, meets : two stages that alone take part in a message, and the name of it by which they know each other.
    """

    name: str
    layer: str
    phase: str
    kernels: tuple[Kernel, ...] = ()
    reads: dict[int, float] = field(default_factory=dict)
    writes: dict[int, float] = field(default_factory=dict)
    fuses: bool = False
    accumulates: bool = False
    collective: Collective | None = None
    size: float = 0.0
    ranks: tuple[int, ...] = ()
    axis: str = ""
    blocks: bool = False
    aside: bool = False
    host: HostTime | None = None
    dtype: str = ""
    stage: int = 0
    between: tuple[int, int] | None = None
    meets: str = ""


ModelCall = tuple[int, list[int]]  # which model, and the first dimension of every tensor that it is given


def gathers(record: Record) -> bool:
    """Whether an operation is part of how FSDP gathers shards: a copy into a buffer, the collective, a copy out of it."""
    return record.name in (COPY_IN, COPY_OUT) or (record.aside and record.collective == "all_gather")


class StepRecorder(TorchDispatchMode):
    """Collects records while it is entered; `sizes` has the bytes of every storage that it saw.

    `held` names the kind of storages that outlive a step: weights, optimizer, gradients. [B]
    """

    def __init__(self) -> None:
        super().__init__()
        self._hooks: list[Any] = []
        self.forget()

    def forget(self) -> None:
        """Forget all that was seen, models and storages included."""
        self.records: list[Record] = []
        self.marks: list[int] = []  # where the second and later microbatches begin
        self.sizes: dict[int, float] = {}
        self.held: dict[int, str] = {}
        self.parameters = 0
        self._kept: dict[int, Any] = {}  # as long as a storage lives, no other has its address
        self._names: dict[int, str] = {}
        self._scope: list[str] = []
        self._of_node: dict[int, str] = {}
        self._behind, self._updating, self._went_back = "", False, False
        self._same: dict[int, int] = {}  # storage of what was waited for -> that of the message
        self.calls: list[ModelCall] = []  # of models, not of their parts
        self._watched: set[int] = set()
        self._routing = FlagRouting(self._key)
        self._any: set[int] = set()  # flags that say whether any is set
        self._drawn: dict[int, float] = {}  # mean of what was drawn evenly
        self.guesses = False  # whether the host has read a whole number out of data
        self._compared: dict[int, bool] = {}  # whether such a mean is below or above a limit
        self._aside: set[int] = set()  # what FSDP fills on streams of its own, where nothing waits for a collective but its readers

    def clear(self) -> None:
        """Forget the records so far."""
        self.records, self.marks, self.calls, self._went_back = [], [], [], False

    def mark(self) -> None:
        """Begin another microbatch."""
        self.marks.append(len(self.records))
        self._went_back = False

    # ---------------------------------------------------------------------------------- where it stands

    def __enter__(self) -> Any:
        module = torch.nn.modules.module
        self._hooks = [
            module.register_module_forward_pre_hook(self._open),
            module.register_module_forward_hook(self._close, always_call=True),
            register_optimizer_step_pre_hook(self._update),
            register_optimizer_step_post_hook(self._updated),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*error)

    def _open(self, module: Any, _inputs: Any) -> None:
        if self._scope and id(module) not in self._names and _bare(module):  # made by the code that calls it, such as an activation
            self._scope.append(self._scope[-1])
            return
        if id(module) not in self._names:
            self._learn(module)
        if not self._scope and id(module) not in self._watched:  # hooks of all modules are not told the arguments that have names
            self._watched.add(id(module))
            self._hooks.append(module.register_forward_pre_hook(self._call, with_kwargs=True))
        self._scope.append(self._names[id(module)])

    def _close(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self._scope:
            self._scope.pop()

    def _call(self, module: Any, args: Any, kwargs: Any) -> None:
        if len(self._scope) == 1:
            leads = [one.shape[0] for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.dim() > 0]
            self.calls.append((id(module), leads))

    def _learn(self, root: Any) -> None:
        """Names and weights of all modules below one that is called on its own; a module without weights or parts has its parent's name."""
        for name, module in root.named_modules(remove_duplicate=False):
            own = name.removeprefix("module.") if name != "module" else ""
            self._names.setdefault(id(module), own.rpartition(".")[0] if _bare(module) else own)
        self._names[id(root)] = self._names.get(id(root), "")
        for one in root.parameters():
            if self._key(local(one)) not in self.held:
                self.parameters += one.numel()
                self.held[self._key(local(one))] = "weights"
        for one in root.buffers():
            self.held.setdefault(self._key(local(one)), "buffers")

    def _update(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._updating = True
        for group in optimizer.param_groups:
            for one in group["params"]:
                for found in (one.grad, getattr(one, "main_grad", None)):
                    if found is not None:
                        self.held.setdefault(self._key(local(found)), "gradients")

    def _updated(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._updating = False
        for state in optimizer.state.values():
            for one in tree_leaves(state):
                if isinstance(one, torch.Tensor):
                    self.held.setdefault(self._key(local(one)), "optimizer")

    def _place(self) -> tuple[str, str]:
        """Layer and phase of what is dispatched now."""
        if self._updating:
            return "optimizer", UPDATE
        if torch._C._current_graph_task_id() == -1:
            scope = self._scope[-1] if self._scope else ""
            self._of_node[torch.autograd._get_sequence_nr() - 1] = scope
            return scope, UPDATE if self._went_back and not self._scope else FORWARD
        self._went_back = True
        if self._scope:  # computed again
            self._of_node[torch.autograd._get_sequence_nr() - 1] = self._scope[-1]
            return self._scope[-1], BACKWARD
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else -1
        # Distributed tensors number the node of an operation some places after what they dispatch for it.
        near = (one for one in range(number, max(number - _NEAR, -1), -1) if one in self._of_node)
        self._behind = self._of_node.get(next(near, -1), self._behind)
        return self._behind, BACKWARD

    # ---------------------------------------------------------------------------------- what it is

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch calls it; tensors that wrap others are taken apart first."""
        kwargs = kwargs or {}
        if func is _DEVICE:  # asked for several times an operation
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args, **kwargs)
        if any(is_traceable_wrapper_subclass_type(one) for one in types):
            return NotImplemented
        layer, phase = self._place()
        if func is _ITEM:
            return self._item(args[0], layer, phase)
        if func is _SPLIT and self.guesses:
            args = (args[0], _evenly(*args, **kwargs), *args[2:])
        args, out = self._routing.sized(func, args)
        sized = out is not None
        if not sized:
            out = known(func, args, kwargs, kernels.result(func, args, kwargs))
        self._routing.follow(func, args, out)
        if func.namespace in messages.NAMESPACES:
            self._send(func, args, kwargs, out, layer, phase)
        elif not kernels.free(func):
            self._run(func, args, kwargs, out, layer, phase)
        if sized:  # the host waits for the number of places
            self.records.append(Record(name="item", layer=layer, phase=phase, reads={self._key(out): out.element_size()}, host="kernel"))
        return out

    def _item(self, tensor: Any, layer: str, phase: str) -> Any:
        """A number that the host reads: it waits for the device, and is told 1; of flags, that all of them are set, and none too many; of a
        number drawn evenly, the mean, and of that beside a limit, on which side it is; of a small constant, what it is.

        An optimizer is told 2: its second step is the one that stays, and NAdam divides by one minus a number that it reads.
        """
        key, value = self._key(tensor), value_of(tensor)
        whole = value is None and not tensor.dtype.is_floating_point and tensor.dtype != torch.bool
        if whole and not self._names and key not in self._drawn:  # no module has run yet: it may be the width of a layer
            raise CrossflowError(
                "what builds the model reads a whole number out of a tensor, whose values the import does not have; work it out with "
                "numbers of Python or NumPy"
            )
        self._routing.reads += whole
        self.guesses |= whole and not self._updating and key not in self._drawn
        if not self._updating:  # an optimizer reads the number of its steps, which lies on the host
            self.records.append(Record(name="item", layer=layer, phase=phase, reads={key: tensor.element_size()}, host="kernel"))
        if value is not None and not self._updating:
            return value
        if tensor.dtype == torch.bool:
            routed = self._routing.flags(tensor)
            if routed is not None:
                return routed.share > 0.0
            return self._compared.get(key, key not in self._any)
        number = 2 if self._updating else self._drawn.get(key, 1)
        return float(number) if tensor.dtype.is_floating_point else int(number)

    def _run(self, func: Any, args: Any, kwargs: Any, out: Any, layer: str, phase: str) -> None:
        reads, writes = kernels.traffic(func, args, kwargs, out)
        inputs, outputs = (self._sum(moved) for moved in (reads, writes))
        if not outputs or (not func._schema.is_mutable and not kernels.copies(func) and outputs.keys() <= self._sum_keys(args, kwargs)):
            return  # a view
        found = kernels.kernels_of(func, args, kwargs, out)
        fuses = found is None and kernels.fuses(func)
        own = isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction)  # written by the user
        accumulates = func is _ADD and phase == BACKWARD and not self._scope and not own
        dtype = "" if found is None else kernels.dtype_of(args)
        if func.namespace == "fsdp":
            self._aside |= outputs.keys()
        if kernels.name_of(func) == "any":
            self._any |= outputs.keys()
        if kernels.name_of(func) == "uniform_":
            least = args[1] if len(args) > 1 else kwargs.get("from", 0.0)
            most = args[2] if len(args) > 2 else kwargs.get("to", 1.0)
            self._drawn |= dict.fromkeys(outputs, (least + most) / 2.0)
        elif kernels.name_of(func) == "rand":
            self._drawn |= dict.fromkeys(outputs, 0.5)
        elif kernels.name_of(func) in _COMPARES and isinstance(args[1], int | float) and self._key(args[0]) in self._drawn:
            self._compared |= dict.fromkeys(outputs, _COMPARES[kernels.name_of(func)](self._drawn[self._key(args[0])], args[1]))
        elif kernels.name_of(func) in _DRAWS:
            self._drawn |= dict.fromkeys(outputs, 1.0)
        if found is None:
            found = (kernels.pass_over(func, inputs, outputs, args, out),)
        self.records.append(
            Record(
                name=kernels.name_of(func), layer=layer, phase=phase, kernels=found, reads=inputs, writes=outputs, fuses=fuses,
                accumulates=accumulates, dtype=dtype,
            )
        )  # fmt: skip

    def _send(self, func: Any, args: Any, kwargs: Any, out: Any, layer: str, phase: str) -> None:
        if messages.waits(func):  # what reads its result later waits for the message
            for before, after in zip(tree_leaves(args), tree_leaves(out), strict=False):
                if isinstance(after, torch.Tensor):
                    self._same[after.untyped_storage()._cdata] = self._key(before)
                    self._kept.setdefault(after.untyped_storage()._cdata, after.untyped_storage())
            return
        sent = messages.message(func, args, kwargs)
        reads, writes = map(self._sum, messages.buffers(func, args, out))
        aside = not self._aside.isdisjoint(reads)
        if aside:
            self._aside |= writes.keys()
        self.records.append(
            Record(
                name=sent.collective, layer=layer, phase=phase, reads=reads, writes=writes, collective=sent.collective, size=sent.size,
                ranks=sent.ranks, axis=sent.axis, blocks=sent.blocks and not aside, aside=aside,
            )
        )  # fmt: skip

    # ---------------------------------------------------------------------------------- storages

    def key(self, tensor: Any) -> int:
        """Storage of the part of a tensor that lies on this rank."""
        return self._key(local(tensor))

    def _sum(self, moved: Iterator[tuple[Any, float]]) -> dict[int, float]:
        found: dict[int, float] = {}
        for tensor, size in moved:
            key = self._key(tensor)
            found[key] = found.get(key, 0.0) + size
        return found

    def _sum_keys(self, args: Any, kwargs: Any) -> set[int]:
        return {self._key(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}

    def _key(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        key: int = self._same.get(storage._cdata, storage._cdata)
        self._kept.setdefault(key, storage)
        self.sizes[key] = max(self.sizes.get(key, 0.0), float(storage.nbytes()))
        return key


def _bare(module: Any) -> bool:
    """Whether a module has neither weights nor parts."""
    return next(module.parameters(), None) is None and next(module.children(), None) is None


def _evenly(tensor: Any, sizes: list[int], dim: int = 0) -> list[int]:
    """Sizes of a split that fit: where all are 1, the number that is told for whole numbers out of data, each has the mean."""
    whole = tensor.shape[dim]
    if sum(sizes) == whole or set(sizes) != {1}:
        return sizes
    mean, rest = divmod(whole, len(sizes))
    return [mean + (i < rest) for i in range(len(sizes))]
