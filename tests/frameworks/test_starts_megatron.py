"""Scripts for Megatron-LM taken by its own parser, its checks of arguments, its configurations, and its groups of ranks."""

import contextlib
import functools
import importlib.util
import inspect
import sys
import types
import typing

import pytest
from launch_exports import NODES, THOROUGH, exports, transformers, words_of

if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.training") is None:
    pytest.skip("megatron-core 0.19 or later, with megatron.training, is not installed", allow_module_level=True)

from standins import present

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
CAPABILITIES = {"dgx-h100": (9, 0), "dgx-b200": (10, 0)}


@pytest.fixture(scope="module")
def megatron():
    """Megatron's modules, as on a machine with an accelerator and Transformer Engine, of which only versions and names are asked."""
    if not hasattr(typing, "override"):  # which Python 3.12 has
        import typing_extensions

        typing.override = typing_extensions.override
    with present("triton"):
        from megatron.core import parallel_state, utils
        from megatron.core.models.common.embeddings import rope_utils
        from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
        from megatron.training import argument_utils, arguments, training
    from packaging.version import Version

    inspect.getsource = functools.cache(inspect.getsource)  # of which each parser is made anew
    utils._te_version = Version("2.12.0")
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = lambda *_: None
    yield types.SimpleNamespace(
        arguments=arguments, argument_utils=argument_utils, training=training, groups=parallel_state,
        calculator=ConstantNumMicroBatchesCalculator,
    )  # fmt: skip
    inspect.getsource = inspect.getsource.__wrapped__


def start(megatron, export, monkeypatch):
    """Everything that Megatron checks before it builds a model; what it returns for one."""
    import torch

    world = 8 * NODES
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: CAPABILITIES[export.scenario.system.name])
    major, minor = CAPABILITIES[export.scenario.system.name]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: types.SimpleNamespace(major=major, minor=minor))
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *words_of(export, "pretrain_gpt.py")])
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1" if "export CUDA_DEVICE_MAX_CONNECTIONS=1" in export.text else "8")
    arguments = megatron.arguments.parse_args()
    megatron.arguments.validate_args(arguments)
    model = megatron.argument_utils.core_transformer_config_from_args(arguments)
    megatron.training.get_megatron_optimizer_config(arguments)
    megatron.training.get_megatron_ddp_config(arguments)
    megatron.calculator(
        global_batch_size=arguments.global_batch_size, micro_batch_size=arguments.micro_batch_size,
        data_parallel_size=arguments.data_parallel_size, decrease_batch_size_if_needed=False, rank=0,
    )  # fmt: skip
    with ranks(world):
        place(megatron.groups, arguments)
    return arguments, model


@contextlib.contextmanager
def ranks(world):
    """As many ranks as a run has, of which none sends anything."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def place(groups, arguments):
    """The groups of ranks, as Megatron's start makes them."""
    try:
        groups.initialize_model_parallel(
            arguments.tensor_model_parallel_size, arguments.pipeline_model_parallel_size, arguments.virtual_pipeline_model_parallel_size,
            context_parallel_size=arguments.context_parallel_size, expert_model_parallel_size=arguments.expert_model_parallel_size,
            num_distributed_optimizer_instances=arguments.num_distributed_optimizer_instances,
            expert_tensor_parallel_size=arguments.expert_tensor_parallel_size, create_gloo_process_groups=False,
            order="tp-cp-ep-pp-dp" if arguments.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        )  # fmt: skip
    finally:
        groups.destroy_model_parallel()


@pytest.mark.parametrize("preset", transformers())
def test_scripts_start(megatron, preset, monkeypatch, capsys, record_property):
    """And the numbers that Megatron has are those of the scenario."""
    taken = 0
    for export in exports("megatron", preset):
        try:
            arguments, model = start(megatron, export, monkeypatch)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{preset} {export.run}: {error}\n{capsys.readouterr().err[-500:]}\n{export.text}") from error
        plan, spec = export.scenario.strategy, export.scenario.workload
        assert arguments.data_parallel_size == plan.dp
        assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (spec.layers, spec.hidden, spec.heads)
        if spec.latent is None:
            assert (model.num_query_groups, model.kv_channels) == (spec.kv_heads or spec.heads, spec.head_dim or spec.hidden // spec.heads)
        assert (model.num_moe_experts or 0) == (spec.experts.count if spec.experts else 0)
        assert model.gated_linear_unit == spec.gated
        taken += 1
    record_property("taken", taken)
    assert taken or preset not in THOROUGH["megatron"]


def test_at_least_20_models_are_written():
    assert sum(any(True for _ in exports("megatron", preset)) for preset in transformers()) >= 20


def test_this_parser_refuses(megatron, monkeypatch, capsys):
    """What the checks above would miss if nothing were checked: routers with a bias and no score function."""
    export = next(exports("megatron", "deepseek-v3"))
    wrong = type(export)(**{**vars(export), "text": export.text.replace("--moe-router-score-function sigmoid", "--lr 1.0e-4")})
    with pytest.raises(ValueError, match="Expert bias for aux-loss-free routing only supports 'sigmoid'"):
        start(megatron, wrong, monkeypatch)
    unknown = type(export)(**{**vars(export), "text": export.text.replace("--moe-router-score-function", "--moe-router-score")})
    with pytest.raises(SystemExit):
        start(megatron, unknown, monkeypatch)
    assert "unrecognized arguments: --moe-router-score" in capsys.readouterr().err
