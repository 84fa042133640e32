"""What users bring beside plain models: attention of torch's own layers, copies, autocast, options that change nothing."""

import copy
import functools
import importlib
import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import record
from crossflow.program.kernels import Attention, Product


def layer():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0), torch.randn(2, 16, 64)


def perceptron():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def held(program, kind):
    return program.memory[0].get(kind, 0.0)


@pytest.mark.parametrize("task", ["training", "inference"])
def test_attention_of_torchs_own_layers_is_a_kernel(task):
    before = nn.functional.scaled_dot_product_attention
    kernels = record(layer, task=task).kernels
    assert [one.backward for one in kernels if isinstance(one, Attention)] == ([False, True] if task == "training" else [False])
    assert nn.functional.scaled_dot_product_attention is before


def test_copies_of_a_model_hold_their_weights_once():
    plain, copied = (
        record(make) for make in (lambda: (perceptron(), torch.randn(4, 64)), lambda: (copy.deepcopy(perceptron()), torch.randn(4, 64)))
    )
    for kind in ("weights", "buffers"):
        assert held(copied, kind) == held(plain, kind)


def test_autocast_of_a_gpu_is_that_of_the_import():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.inner(x)

    assert record(lambda: (Mixed(), torch.randn(4, 64))).dtype == "bf16"
    assert any(isinstance(one, Product) for one in record(lambda: (Mixed(), torch.randn(4, 64))).kernels)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # nothing of it is left
        assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16


def test_options_that_change_nothing_are_refused():
    def own():
        return perceptron(), torch.randn(4, 64)

    with pytest.raises(
        CrossflowError, match=r"has inputs of its own, so --batch changes nothing; leave it out, or let the function take 'batch'"
    ):
        record(own, batch=8)
    with pytest.raises(CrossflowError, match="a word is given twice"):
        record(own, world_size=8, parallel="tp=2,tp=4")


class Routed(nn.Module):
    """A layer with a router in fp32 beside matrices in bf16, as mixtures of the transformers package have it."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256, dtype=torch.bfloat16), nn.Linear(256, 64, dtype=torch.bfloat16)
        self.router = nn.Linear(64, 64)

    def forward(self, x):
        return self.down(self.up(x)) * self.router(x.float()).to(x.dtype)


def stack_of(layer):
    return lambda: (nn.Sequential(*(layer() for _ in range(3))), torch.randn(4, 64, dtype=torch.bfloat16))


def test_a_router_of_another_type_is_sharded_by_itself():
    alone, found = record(stack_of(Routed)), record(stack_of(Routed), world_size=8, parallel="fsdp2")
    assert held(found, "weights") == pytest.approx(held(alone, "weights") / 8)
    sizes = [found.messages[op.message].size for op in found.ops if op.message is not None and op.phase == "forward"]
    matrices, router = 2 * (2 * 64 * 256 + 256 + 64), 4 * (64 * 64 + 64)
    assert Counter(sizes) == {matrices: 3, router: 3}


def test_a_module_with_weights_of_two_types_is_told():
    class Both(nn.Linear):
        def __init__(self):
            super().__init__(64, 64, dtype=torch.bfloat16)
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, x):
            return super().forward(x) * self.scale.to(x.dtype)

    with pytest.raises(CrossflowError, match=r"Both has weights of several types \(bfloat16 and float32\).* convert the model to one type"):
        record(stack_of(Both), world_size=8, parallel="fsdp2")


def trained_by(make):
    def build():
        model = nn.Sequential(*(perceptron() for _ in range(3)))
        return {"model": model, "inputs": torch.randn(4, 64), "optimizer": make(model)}

    return build


MATRICES = 3 * 2 * 64 * 256
OWN = {
    "decoupled": (lambda model: torch.optim.AdamW(model.parameters()), 2),  # whose defaults are more than its arguments
    "class": (lambda model: torch.optim.AdamW, 2),
    "groups": (lambda model: torch.optim.AdamW([{"params": [one], "lr": 1e-4 * one.dim()} for one in model.parameters()]), 2),
    "nadam": (lambda model: torch.optim.NAdam(model.parameters()), 2),
    "muon": (lambda model: torch.optim.Muon([one for one in model.parameters() if one.dim() == 2]), 1),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
@pytest.mark.parametrize("own", OWN)
def test_an_optimizer_keeps_its_settings_and_its_weights(own, parallel):
    make, states = OWN[own]
    found = record(trained_by(make), world_size=4, parallel=parallel)
    weights = MATRICES if own == "muon" else MATRICES + 3 * (256 + 64)
    assert held(found, "optimizer") == pytest.approx(4 * states * weights / (4 if parallel == "fsdp2" else 1), rel=0.001)


def test_scalar_weights_stay_whole():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = nn.Sequential(*(perceptron() for _ in range(2))), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.inner(x) * self.scale

    found = record(lambda: (Scaled(), torch.randn(4, 64)), world_size=4, parallel="fsdp2")
    assert held(found, "weights") == 4 * (2 * (2 * 64 * 256 + 256 + 64) / 4 + 1)


def test_sparse_gradients_are_told():
    with pytest.raises(CrossflowError, match="build embeddings with sparse=False"):
        record(lambda: (nn.EmbeddingBag(100, 8, sparse=True), torch.zeros(4, 3, dtype=torch.long)), world_size=4, parallel="ddp")


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (torch.optim.Adafactor, "torch does not do one of its in-place operations on divided weights"),
        (torch.optim.LBFGS, "the optimizer runs the model itself, by a closure"),
    ],
)
def test_optimizers_that_cannot_be_imported_say_why(make, cure):
    with pytest.raises(CrossflowError, match=cure):
        record(trained_by(lambda model: make(model.parameters())), world_size=4, parallel="fsdp2")


def test_boxes_that_depend_on_data_are_told():
    class Detector(nn.Conv2d):
        def forward(self, x):
            found = super().forward(x)
            return found[(found.mean(1, keepdim=True) > 0).expand_as(found)]

    with pytest.raises(CrossflowError, match="return of a detector its backbone and heads, with a loss of what they give"):
        record(lambda: (Detector(3, 4, 3), torch.randn(2, 3, 8, 8)), world_size=4, parallel="ddp")


def test_a_line_of_a_package_is_told_where_none_of_ones_own_fails(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    code = "import torch\nclass Boxes(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x)[x > 0]\n"
    (tmp_path / "site-packages" / "boxes.py").write_text(code)
    boxes = importlib.import_module("boxes")
    monkeypatch.delitem(sys.modules, "boxes")
    with pytest.raises(CrossflowError, match=r"of what they give \(line 4 of boxes\.py\)$"):
        record(lambda: (boxes.Boxes(4, 4), torch.randn(2, 4)))


def test_packages_that_an_environment_shares_stay_imported(tmp_path, monkeypatch):
    """As those of the interpreter below an environment made with --system-site-packages, torch among them: none is imported twice."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "shared_package.py").write_text("")
    (tmp_path / "own_module.py").write_text("")

    def build():
        importlib.import_module("shared_package")
        importlib.import_module("own_module")
        return perceptron(), torch.randn(4, 64)

    record(build)
    assert "shared_package" in sys.modules
    assert "own_module" not in sys.modules
    monkeypatch.delitem(sys.modules, "shared_package")


def test_a_depthwise_convolution_has_its_operations():
    """Per output element two operations for each of 9 taps; two gradients of as many. FlopCounterMode counts the first as well."""

    def build():
        return nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.Conv2d(8, 8, 3, groups=8, bias=False)), torch.randn(2, 4, 10, 10)

    made = [one for one in record(build, kernels="eager", optimizer="none").kernels if getattr(one, "what", "").startswith("convolution")]
    assert sum(one.flops for one in made) == 3 * 2 * 9 * (2 * 8 * 8 * 8)


class Heads(nn.Module):
    """Attention that knows its heads, and lets the tokens follow from the width, as many models do."""

    def __init__(self, norm=False, inplace=False):
        super().__init__()
        self.num_heads, self.width, self.inplace = 4, 16, inplace
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64) if norm else nn.Identity()

    def forward(self, x):
        q, k, v = (one(x) for one in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (one.view(len(x), -1, self.num_heads, self.width).transpose(1, 2) for one in (self.norm(q), k, v))
        out = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], -1)
        return self.out_proj(out).add_(x) if self.inplace else self.out_proj(out) + x


def heads(plan=None, **given):
    def build():
        model = nn.ModuleDict({"layers": nn.Sequential(Heads(**given), Heads(**given))})
        model.forward = lambda x: model["layers"](x)
        if plan:
            model._tp_plan = plan
        return model, torch.randn(2, 8, 64)

    return build


def test_tensor_ranks_share_heads_and_not_tokens():
    found = [one for one in record(heads(), world_size=2, parallel="tp=2").kernels if isinstance(one, Attention)]
    assert {(one.samples, one.heads, one.length, one.seen, one.width) for one in found} == {(2, 2, 8, 8, 16)}


def test_a_style_of_several_matrices_in_one_is_that_of_its_matrices():
    """As plans of diffusers have them."""

    class PackedColwiseParallel:
        pass

    class PackedRowwiseParallel:
        pass

    packed = {"layers.*.[qkv]_proj": PackedColwiseParallel(), "layers.*.out_proj": PackedRowwiseParallel()}
    words = {"layers.*.[qkv]_proj": "colwise", "layers.*.out_proj": "rowwise"}
    first, second = (record(heads(plan), world_size=2, parallel="tp=2") for plan in (packed, words))
    assert first.kernels == second.kernels
    assert first.messages == second.messages
    assert any(one.collective == "all_reduce" for one in first.messages)


def messages_of(program):
    """How often each collective runs over how many bytes."""
    found = (program.messages[op.message] for op in program.ops if op.message is not None)
    return Counter((one.collective, one.size) for one in found)


def test_matrices_whose_code_sees_whole_tensors_are_divided_one_by_one():
    """A norm over all heads: queries, keys and values are gathered, the last matrix reads its part of the whole, attention runs whole."""
    with pytest.warns(UserWarning, match=r"gives and takes whole tensors, which are gathered, .*: layers\.\*\.q_proj .*"):
        found = record(heads(norm=True), world_size=2, parallel="tp=2")
    assert divided_products(found) == {(16, 32, 64): 6, (16, 64, 32): 2}
    assert {one.heads for one in found.kernels if isinstance(one, Attention)} == {4}
    whole = 4.0 * 16 * 64  # a tensor in FP32
    assert messages_of(found)["all_gather", whole] >= 6


def test_what_a_divided_matrix_gives_may_be_changed_in_place():
    """DTensor gives a view, which autograd lets nobody change; the collectives are those of code that works out of place."""
    found, plain = (record(heads(inplace=one), world_size=2, parallel="tp=2") for one in (True, False))
    assert messages_of(found) == messages_of(plain)
    assert divided_products(found) == divided_products(plain)


class Fixed(nn.Module):
    """Layers whose code writes down a width in two places and in another way each, so that no way to divide them fits."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x @ self.up.weight.detach().numpy().sum() + self.down(self.up(x))


def test_what_tensor_ranks_cannot_divide_is_refused_with_the_cure():
    def build():
        return nn.Sequential(Fixed(), Fixed()), torch.randn(2, 8, 64)

    with pytest.raises(CrossflowError, match="leave tp out, or call parallelize_module in the function"):
        record(build, world_size=2, parallel="tp=2")


def test_an_unknown_error_on_tensor_ranks_names_the_way_without_them():
    def build():
        model, inputs = heads()()
        model.forward = lambda _: 1 / 0
        return model, inputs

    with pytest.raises(CrossflowError, match=r"raised ZeroDivisionError.*; leave tp out, or call parallelize_module in the function"):
        record(build, world_size=2, parallel="tp=2")


def test_a_number_drawn_evenly_is_the_mean_of_what_it_may_be():
    """As detection models of torchvision choose one of their sizes; a place among one was told 1, behind the end."""
    found = []

    def build():
        model = perceptron()
        own = model.forward

        def forward(x):
            found.append((float(torch.empty(1).uniform_(0.0, 3.0).item()), float(torch.rand(()).item())))
            return own(x)

        model.forward = forward
        return model, torch.randn(4, 64)

    record(build)
    assert {first for first, _ in found} == {1.5}


def test_a_norm_over_one_sample_names_the_batch():
    def build(batch=1):
        return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)), torch.randn(batch, 64)

    record(build, batch=2)
    with pytest.raises(CrossflowError, match="needs more than one of them; give a larger --batch, or fewer --microbatches"):
        record(build, batch=1)


def test_widths_out_of_data_are_refused_and_those_of_constants_and_what_is_drawn_are_not():
    """RegNet of torchvision works its widths out with tensors, which are the same in every run. A sampler reads whole numbers as well."""

    def widths():
        width = int((torch.arange(2) * 32 + 32)[1].item())
        return nn.Linear(64, width), torch.randn(4, 64)

    def data():
        return nn.Linear(64, int(torch.randn(96).argmax().item())), torch.randn(4, 64)

    def drawn():
        torch.randperm(4).tolist()
        return perceptron(), torch.randn(4, 64)

    with pytest.raises(CrossflowError, match=r"reads a whole number out of a tensor, .*; work it out with numbers of Python or NumPy"):
        record(data)
    assert record(widths).parameters == 64 * 64 + 64
    assert record(drawn).parameters == record(lambda: (perceptron(), torch.randn(4, 64))).parameters


class Chosen(nn.Module):
    """Reads what it does out of tensors, as models do that drop whole layers or look at their masks."""

    def __init__(self, limit):
        super().__init__()
        self.layers, self.limit = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(4)), limit

    def forward(self, x):
        for layer in self.layers:
            x = x if torch.rand([]) < self.limit else layer(x)
        return x[:, torch.tensor([True, False, True, False]).nonzero().flatten()]


@pytest.mark.parametrize(("limit", "layers"), [(0.1, 4), (0.9, 0)])
def test_a_draw_beside_a_limit_is_on_the_side_of_its_mean(limit, layers):
    """Forward passes of layers that are dropped with a probability below one half run; each was dropped before."""
    found = record(lambda: (Chosen(limit), torch.randn(4, 64)), task="inference")
    assert sum(isinstance(found.kernels[i], Product) for op in found.ops for i in op.kernels) == layers


def test_a_constant_that_is_written_over_has_no_value():
    def build():
        width = torch.zeros(1, dtype=torch.long)
        width += torch.randn(96).argmax()
        return nn.Linear(64, int(width.item())), torch.randn(4, 64)

    with pytest.raises(CrossflowError, match="reads a whole number out of a tensor"):
        record(build)


class Packed(nn.Module):
    """Attention with one matrix for queries, keys and values, whose code splits them by a width that it knows, and an MLP."""

    def __init__(self, splits=True):
        super().__init__()
        self.n_head, self.n_embd, self.splits = 4, 64, splits
        self.c_attn, self.c_proj = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)

    def forward(self, x):
        q, k, v = self.c_attn(x).split(self.n_embd if self.splits else 64, dim=2)
        q, k, v = (one.unflatten(2, (self.n_head, -1)).transpose(1, 2) for one in (q, k, v))
        x = x + self.c_proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.relu(self.up(x)))


def packed(**given):
    return lambda: (nn.Sequential(*(Packed(**given) for _ in range(2))), torch.randn(2, 8, 64))


def divided_products(program):
    return Counter(
        (kernel.m, kernel.n, kernel.k) for op in program.ops if op.phase == "forward" for kernel in (program.kernels[i] for i in op.kernels)
        if isinstance(kernel, Product)
    )  # fmt: skip


def test_tensor_ranks_share_a_packed_matrix_whose_code_knows_its_width():
    found = record(packed(), world_size=2, parallel="tp=2")
    assert divided_products(found) == dict.fromkeys([(16, 96, 64), (16, 64, 32), (16, 128, 64), (16, 64, 128)], 2)
    assert {one.heads for one in found.kernels if isinstance(one, Attention)} == {2}
    assert found.parameters == record(packed()).parameters


class Denoising(nn.Module):
    """A layer as diffusers has it: the last matrix of attention stands in a list with its dropout, and that has the name."""

    def __init__(self):
        super().__init__()
        self.heads = 4
        self.to_q, self.to_k, self.to_v = (nn.Linear(64, 64) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(64, 64), nn.Dropout(0.0)])
        self.net = nn.ModuleList([nn.Linear(64, 256), nn.Dropout(0.0), nn.Linear(256, 64)])

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.to_q, self.to_k, self.to_v))
        x = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        for part in (*self.to_out, *self.net):
            x = part(x)
        return x


@pytest.mark.filterwarnings("error")  # of matrices that stay whole
def test_tensor_ranks_share_attention_whose_last_matrix_stands_in_a_list():
    found = record(lambda: (nn.Sequential(Denoising(), Denoising()), torch.randn(2, 8, 64)), world_size=2, parallel="tp=2")
    assert divided_products(found) == {(16, 32, 64): 6, (16, 64, 32): 2, (16, 128, 64): 2, (16, 64, 128): 2}
    assert {one.heads for one in found.kernels if isinstance(one, Attention)} == {2}


class OwnTable(nn.Embedding):
    """Looks up the local part by itself, as torchtitan's does under a plan of its own, which is that of no whole table."""

    def forward(self, tokens):
        return nn.functional.embedding(tokens, self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 256)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.output = OwnTable(512, 64), nn.Linear(64, 512, bias=False)
        self.layers = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(64), "feed_forward": Gated()}) for _ in range(2))

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = x + layer["feed_forward"](layer["norm"](x))
        return self.output(x)


def test_a_matrix_behind_the_one_that_ends_its_mlp_is_divided_with_it():
    with pytest.warns(UserWarning, match="stay whole on all ranks, because the code around them does not allow their division: vocabulary"):
        found = record(lambda: (Llama(), torch.randint(0, 512, (2, 8))), world_size=2, parallel="tp=2")
    assert divided_products(found) == {(16, 128, 64): 4, (16, 64, 128): 2, (16, 512, 64): 1}


def test_matrices_that_code_does_not_let_divide_gather_what_they_give_and_are_named():
    with pytest.warns(UserWarning, match=r"gives and takes whole tensors, .*: \*\.c_attn \*\.c_proj$"):
        found = record(packed(splits=False), world_size=2, parallel="tp=2")
    assert divided_products(found) == dict.fromkeys([(16, 96, 64), (16, 64, 32), (16, 128, 64), (16, 64, 128)], 2)
    assert {one.heads for one in found.kernels if isinstance(one, Attention)} == {4}


class Conditioned(nn.Module):
    """Layers of which others use a part, or weights, while they are not called, as models of diffusion do; and one that works in place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(64, 64), nn.Linear(64, 64)) for _ in range(3)))

    def forward(self, x):
        first = self.layers[0][1](x)  # part of a layer
        return self.layers(x + first) @ self.layers[2][2].weight  # of another one its weights


def test_shards_follow_how_the_code_uses_the_weights():
    def build():
        return Conditioned(), torch.randn(4, 64)

    alone, found = record(build), record(build, world_size=4, parallel="fsdp2")
    assert held(found, "weights") == pytest.approx(held(alone, "weights") / 4)
    gathered = [found.messages[op.message].size for op in found.ops if op.message is not None and op.phase == "forward"]
    layer = 4 * (64 * 64 + 64)
    # The whole model gathers the last layer with its root; the part by itself, for each of its calls, and what else there is in the layers.
    assert Counter(gathered) == {2 * layer: 2, layer: 3}
    assert divided_products(found) == divided_products(alone)


def test_grouped_products_run_in_every_type():
    """Torch says of BF16 alone what they give."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 64, 32))

        def forward(self, x):
            return nn.functional.grouped_mm(x, self.weight, offs=torch.tensor([4, 8, 12, 16], dtype=torch.int32))

    found = record(lambda: (Experts(), torch.randn(16, 64)))
    assert found.dtype == "fp32"
    assert next((one.m, one.n, one.k, one.batch) for one in found.kernels if isinstance(one, Product)) == (4, 32, 64, 4)


def test_parts_that_run_while_the_model_is_built_count_once():
    """As a parametrization does, whose weights FSDP2 then puts others in place of."""

    def build():
        return nn.Sequential(*(nn.utils.parametrizations.weight_norm(nn.Linear(64, 64, bias=False)) for _ in range(2))), torch.randn(4, 64)

    assert record(build, world_size=4, parallel="fsdp2").parameters == 2 * (64 * 64 + 64)


class Chained(nn.Module):
    """Layers in lists of lists, or in a dictionary by their numbers, as Funnel and torchtitan have them."""

    def __init__(self, layers):
        super().__init__()
        self.parts = layers

    def forward(self, x):
        for layer in self.parts.modules():
            x = layer(x) if isinstance(layer, nn.Sequential) else x
        return x


@pytest.mark.parametrize(
    "listed",
    [
        lambda layers: nn.ModuleList(nn.ModuleList([one]) for one in layers),
        lambda layers: nn.ModuleDict({str(i): one for i, one in enumerate(layers)}),
    ],
)
def test_lists_of_lists_and_numbered_dictionaries_are_lists_of_layers(listed):
    def build(**given):
        return record(lambda: (Chained(listed([perceptron() for _ in range(4)])), torch.randn(4, 64)), **given)

    found = build(world_size=4, parallel="fsdp2")
    gathered = [found.messages[op.message].size for op in found.ops if op.message is not None and op.phase == "forward"]
    assert gathered == [4 * (2 * 64 * 256 + 256 + 64)] * 4
    assert build(world_size=4, parallel="pp=4").ranks == {"pp": 4}


class Experts(nn.Module):
    """Each takes as many rows as the router gave it."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(64, 4), nn.ModuleList(perceptron() for _ in range(4))

    def forward(self, x):
        places = self.router(x).argmax(-1)
        rows = x[places.argsort()].split(torch.zeros(4, dtype=torch.long).index_add(0, places, torch.ones_like(places)).tolist())
        return torch.cat([expert(mine) for expert, mine in zip(self.experts, rows, strict=True)])


def test_experts_whose_rows_are_split_by_numbers_out_of_data_have_the_mean():
    found = record(lambda: (Experts(), torch.randn(66, 64)), world_size=4, parallel="ddp")
    products = divided_products(found)
    assert products == {(66, 4, 64): 1, (17, 256, 64): 2, (17, 64, 256): 2, (16, 256, 64): 2, (16, 64, 256): 2}


def test_numbers_out_of_data_that_do_not_fit_are_told():
    """Torch's own words would be those of a shape that is invalid."""

    class Longest(Experts):
        def forward(self, x):
            return super().forward(x.view(3 * int(self.router(x).argmax(-1).max()), -1))

    for parallel in ("ddp", "tp=4"):
        with pytest.raises(CrossflowError, match=r"reads whole numbers out of data, such as .*fails with others \(line .*grouped products"):
            record(lambda: (Longest(), torch.randn(64, 64)), world_size=4, parallel=parallel)


class Pictures(nn.Module):
    """Finds the places of its pictures by their heights and widths, as Qwen-VL does: numbers out of tensors, and tensors out of these."""

    def __init__(self):
        super().__init__()
        self.inner = perceptron()

    def forward(self, rows, grid):
        sizes = grid.prod(-1)
        ends = torch.tensor([sizes[: i + 1].sum() for i in range(len(grid))]).tolist()
        offset = rows.new_tensor([sizes.max(), rows.mean()])
        return torch.cat([self.inner(rows[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]) + offset.sum()


def test_a_tensor_of_numbers_out_of_tensors_has_them():
    """Torch looks for them in memory, which fake tensors lack."""
    found = record(lambda: (Pictures(), (torch.randn(22, 64), torch.tensor([[1, 2, 3], [1, 4, 4]]))), task="inference")
    assert {one.m for one in found.kernels if isinstance(one, Product)} == {6, 16}


def replicas_of_tensor_groups(convert):
    """Tensor groups with replicas, by the function that torch has for them: it takes the weights out of the modules in the first step."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(input_layouts=Shard(1)), "1": RowwiseParallel(output_layouts=Shard(1)), "2": SequenceParallel()}
    layers = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64), torch.nn.LayerNorm(64)
    model = parallelize_module(torch.nn.Sequential(*layers), mesh["tensor"], plan)
    _pre_dp_module_transform(model)
    model = model.bfloat16() if convert else model
    inputs = torch.ones(2, 32, 64, dtype=torch.bfloat16 if convert else None)
    return torch.nn.parallel.DistributedDataParallel(model, device_mesh=mesh["data"]), inputs


@pytest.mark.parametrize(("convert", "states"), [(False, 2), (True, 3 * 2)])
def test_weights_that_hooks_take_out_of_their_modules_are_updated(convert, states):
    """Each has its two moments, in BF16 also its copy, in FP32; what was not in a module after a step had none."""
    program = record(functools.partial(replicas_of_tensor_groups, convert), world_size=4)
    held = program.memory[0]
    assert held["weights"] == (2 * 64 * 64 + 64 + 64 + 2 * 64) * (2 if convert else 4)
    assert held["optimizer"] == states * held["weights"]


class Activated(nn.Module):
    """Makes an activation where it calls it, as models of transformers do whose configuration names one."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return self.down(nn.SiLU()(self.up(x) * 2) * 3)


def test_an_activation_belongs_to_the_module_that_makes_it():
    """It was of no layer, and joined with nothing there: three passes."""
    program = record(lambda: (nn.Sequential(Activated(), Activated()), torch.ones(4, 32)), task="inference")
    passes = [op.layer for op in program.ops if not any(isinstance(program.kernels[i], Product) for i in op.kernels)]
    assert passes == ["0", "1"]


def hooked(hook):
    model = torch.nn.parallel.DistributedDataParallel(nn.Linear(32, 32))
    model.register_comm_hook(None, hook)
    return model, torch.ones(4, 32)


def test_a_hook_that_sends_what_it_wants_is_refused(exactly):
    """Whatever its name is."""

    def fp16_compress_hook(_state, bucket):
        return bucket

    sentence = (
        "register_comm_hook: the import knows allreduce_hook, fp16_compress_hook, bf16_compress_hook of torch, not your "
        "fp16_compress_hook; leave it out, or reduce the gradients in a step of your own"
    )
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        record(functools.partial(hooked, fp16_compress_hook), world_size=2)


@pytest.mark.parametrize("task", ["training", "inference"])
def test_a_file_of_torch_export_is_a_model(task, tmp_path):
    """It is in the mode in which it was exported, and says so where it is asked to change."""
    file = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(perceptron().eval(), (torch.ones(4, 64),)), file)
    found, plain = (
        record(one, world_size=2, parallel="ddp", task=task)
        for one in (lambda: (torch.export.load(file).module(), torch.ones(4, 64)), lambda: (perceptron(), torch.ones(4, 64)))
    )
    assert found.parameters == plain.parameters
    work = [sum(one.m * one.n * one.k for one in program.kernels if isinstance(one, Product)) for program in (found, plain)]
    assert work[0] == work[1] > 0


class WithWords(nn.Module):
    """An MLP between a table and a head whose bias is a weight of the model, as that of ESM is."""

    def __init__(self):
        super().__init__()
        self.table, self.head, self.bias = nn.Embedding(64, 16), nn.Linear(16, 64, bias=False), nn.Parameter(torch.zeros(64))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))

    def forward(self, words):
        found = self.table(words)
        for layer in self.layers:
            found = found + layer(found)
        return self.head(found) + self.bias


@pytest.mark.parametrize("more", ["", ",ddp", ",fsdp2"])
def test_a_whole_weight_beside_a_divided_head_gets_its_gradient_gathered(more):
    """Ranks have parts of it, by the vocabulary; torch left the parts to the optimizer, and FSDP2 to its own error."""
    program = record(lambda: (WithWords(), torch.zeros(2, 8).long()), world_size=4 if more else 2, parallel=f"tp=2{more}")
    gathered = [one.size for one in program.messages if one.collective == "all_gather" and one.size == 64 * 4]
    assert program.parameters == 64 * 16 * 2 + 64 + 2 * (16 * 32 * 2 + 32 + 16)
    assert gathered


class Refined(nn.Module):
    """Heads behind each layer that share their weights, as those of Deformable DETR."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(perceptron() for _ in range(2))
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))
        for ours, theirs in zip(self.heads[0], self.heads[1], strict=True):
            if isinstance(ours, nn.Linear):
                theirs.weight, theirs.bias = ours.weight, ours.bias

    def forward(self, x):
        made = 0.0
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x)
            made = made + head(x).sum()
        return made


def test_layers_that_share_weights_are_gathered_with_the_whole_model():
    """FSDP2 shards weights once; torch refused the second layer that has them."""
    program = record(lambda: (Refined(), torch.randn(4, 64)), world_size=4, parallel="fsdp2")
    perceptrons, heads = 2 * (2 * 64 * 256 + 256 + 64), 64 * 64 + 64 + 64 * 4 + 4
    assert program.parameters == perceptrons + heads
    gathered = Counter(one.size for op in program.ops if op.message is not None for one in [program.messages[op.message]]
                       if op.phase == "forward" and one.collective == "all_gather")  # fmt: skip
    assert gathered == {4 * perceptrons / 2: 2, 4 * heads: 1}


class Biased(nn.Module):
    """Attention with a trained number for every pair of tokens, which code makes by a product and adds as a mask."""

    def __init__(self):
        super().__init__()
        self.made = nn.Linear(8, 16, bias=False)

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=self.made(x.new_ones(16, 8)))


def test_a_trained_bias_of_attention_has_its_gradient():
    """Its product backward was missing, and the gradient of its weights with it."""
    program = record(lambda: (Biased(), torch.randn(2, 4, 16, 8, requires_grad=True)))
    kernels = [(op.phase, program.kernels[i]) for op in program.ops for i in op.kernels]
    assert Counter(phase for phase, one in kernels if isinstance(one, Product)) == {"forward": 1, "backward": 1}
    assert [(phase, one.moved) for phase, one in kernels if getattr(one, "what", "") == "bias"] == [
        ("forward", 16 * 16 * 4),
        ("backward", 2 * 16 * 16 * 4),
    ]
    assert held(program, "optimizer") == 2 * 16 * 8 * 4


class Sorted(nn.Module):
    """Experts whose tokens code picks out by their values: by one-hot masks, by comparisons, by masks, by the host's own look."""

    def __init__(self, how, width=8):
        super().__init__()
        self.router, self.how = nn.Linear(width, 4, bias=False), how
        self.experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        weight, chosen = torch.topk(self.router(x).softmax(-1), 2)
        made = torch.zeros_like(x)
        if self.how == "one-hot":
            mask = nn.functional.one_hot(chosen, num_classes=5).permute(2, 1, 0)  # one more for padding, which nothing chooses
            for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
                place, token = torch.where(mask[expert[0]])
                made.index_add_(0, token, self.experts[0](x[token]) * weight[token, place, None])
        for i, expert in enumerate(self.experts):
            if self.how == "compared":
                token, place = torch.where(chosen == i)
                made[token] += expert(x[token]) * weight[token, place, None]
            elif self.how == "masked":
                mask = (chosen == i).any(-1)
                if mask.any():
                    made[mask] += expert(x[mask])
            elif self.how == "scattered":
                mask = torch.zeros_like(weight, dtype=torch.bool).new_zeros(len(x), 4).scatter_(1, chosen, True)
                token = mask[:, i].nonzero().squeeze(-1)
                made = made.index_add(0, token, expert(x[token]))
        return made


@pytest.mark.parametrize("how", ["one-hot", "compared", "masked", "scattered"])
def test_each_expert_gets_the_mean_of_the_tokens_that_are_picked_out(how):
    """11 tokens choose two of four experts each; their 22 rows fall to the experts as 5 and 6. The host waits for each number of rows."""
    program = record(lambda: (Sorted(how), torch.randn(11, 8)), task="inference")
    rows = [program.kernels[i].m for op in program.ops for i in op.kernels if isinstance(program.kernels[i], Product)]
    assert rows[0] == 11
    assert len(rows) == 5
    assert sum(rows[1:]) == 22
    assert set(rows[1:]) == {5, 6}
    assert sum(op.host is not None for op in program.ops) >= 4


def test_choices_that_a_mask_clears_are_not_taken_for_those_that_it_sets():
    class Cleared(nn.Linear):
        def forward(self, x):
            mask = x.new_ones(x.shape, dtype=torch.bool).scatter(1, torch.topk(x, 2).indices, False)
            return super().forward(x[mask.nonzero()[:, 0]])

    with pytest.raises(CrossflowError, match="depends on the values of data"):
        record(lambda: (Cleared(8, 8), torch.randn(4, 8)))


@pytest.mark.parametrize("how", ["one-hot", "compared", "masked", "scattered"])
def test_gradients_go_back_to_the_tokens_that_are_picked_out(how):
    program = record(lambda: (Sorted(how), torch.randn(11, 8)), world_size=4, parallel="ddp")
    back = [program.kernels[i] for op in program.ops if op.phase == "backward" for i in op.kernels]
    router = 11 * 4 * 8 if how in ("one-hot", "compared") else 0  # whose weights the others do not use
    assert sum(one.flops for one in back if isinstance(one, Product)) == 2 * (22 * 8 * 8 + router)


class Listed(nn.Module):
    """Layers that are dictionaries, which nobody calls."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"wide": nn.Linear(64, 256), "back": nn.Linear(256, 64)}) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer["back"](layer["wide"](x).relu())
        return x


def test_a_layer_that_is_a_dictionary_is_gathered_as_one():
    program = record(lambda: (Listed(), torch.randn(4, 64)), world_size=4, parallel="fsdp2")
    gathered = [program.messages[op.message].size for op in program.ops if op.message is not None and op.phase == "forward"]
    assert gathered == [4 * (2 * 64 * 256 + 64 + 256)] * 3


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(perceptron() for _ in range(2))

    def forward(self, x, edges):
        for layer in self.layers:
            x = layer(x) + layer(x[edges])[:1]
        return x


def test_inputs_that_no_microbatch_divides_are_named():
    given = {"x": torch.randn(4, 64), "edges": torch.zeros(12, dtype=torch.long)}
    with pytest.warns(UserWarning, match=r"every microbatch gets all .* the 4 samples: \['edges'\] of \(12,\); if they are data"):
        record(lambda: (Joined(), given), world_size=2, parallel="pp=2")
