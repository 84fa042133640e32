"""Files for torchtitan taken by its own parser, its registry of models, and what divides them over ranks."""

import contextlib
import copy
import importlib.metadata
import importlib.util
import types

import pytest
from launch_exports import NODES, THOROUGH, exports, transformers

if importlib.util.find_spec("torchtitan") is None or not importlib.metadata.version("torchtitan").startswith("0.2."):
    pytest.skip("torchtitan 0.2, the last release with TOML files, is not installed", allow_module_level=True)

from standins import present

from crossflow.edges.launch.models import names_of

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
NAMED = [preset for preset in transformers() if names_of(preset).torchtitan]
COUNTED = 0.002  # relative difference of parameters: scales of norms of heads, biases of balance, and others of one width


@pytest.fixture(scope="module")
def torchtitan():
    """torchtitan's modules, for ranks that are processors."""
    import torch

    before = torch._utils._get_available_device_type
    torch._utils._get_available_device_type = lambda: "cpu"
    try:
        with present("triton"):
            from torchtitan.config import ConfigManager
            from torchtitan.distributed import ParallelDims
            from torchtitan.protocols import model_converter, train_spec
    finally:
        torch._utils._get_available_device_type = before
    return types.SimpleNamespace(
        manager=ConfigManager, dims=ParallelDims, spec=train_spec.get_train_spec, converters=model_converter._registry_model_converter_cls
    )


def start(titan, text, folder):
    """What torchtitan's trainer does before it makes weights: its configuration, and the model divided over ranks; the parameters."""
    import torch

    file = folder / "job.toml"
    file.write_text(text, encoding="utf-8")
    config = titan.manager().parse_args(["--job.config_file", str(file)])
    spec = titan.spec(config.model.name)
    model_args = copy.deepcopy(spec.model_args[config.model.flavor])
    model_args.update_from_config(config)
    assert set(config.model.converters) <= set(titan.converters)
    with ranks(8 * NODES):
        dims = _dims(titan, config)
        replicas = dims.dp_replicate * dims.dp_shard
        assert config.training.global_batch_size % (config.training.local_batch_size * replicas) == 0
        with torch.device("meta"):
            model = spec.model_cls(model_args)
        count = sum(parameter.numel() for parameter in model.parameters())
        if dims.pp_enabled:
            assert spec.pipelining_fn, f"{config.model.name} has no pipelines"
            spec.pipelining_fn(model, dims, config, torch.device("cpu"), model_args, spec.parallelize_fn, None)
        else:
            spec.parallelize_fn(model, dims, config)
    return config, count


def _dims(titan, config):
    mine = config.parallelism
    return titan.dims(
        dp_shard=mine.data_parallel_shard_degree, dp_replicate=mine.data_parallel_replicate_degree, cp=mine.context_parallel_degree,
        tp=mine.tensor_parallel_degree, pp=mine.pipeline_parallel_degree, ep=mine.expert_parallel_degree,
        etp=mine.expert_tensor_parallel_degree, world_size=8 * NODES,
    )  # fmt: skip


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


@pytest.mark.parametrize("preset", NAMED)
def test_files_start(torchtitan, preset, tmp_path, record_property):
    """And the flavour has as many parameters as the preset."""
    taken = 0
    for export in exports("torchtitan", preset):
        try:
            config, count = start(torchtitan, export.text, tmp_path)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{preset} {export.run}: {error}\n{export.text}") from error
        assert count == pytest.approx(float(export.scenario.workload.transformer().parameters), rel=COUNTED), config.model
        taken += 1
    record_property("taken", taken)
    assert taken or preset not in THOROUGH["torchtitan"]


def test_this_parser_refuses(torchtitan, tmp_path):
    """What the checks above would miss if nothing were checked: a section of another release."""
    export = next(exports("torchtitan", "llama3-8b"))
    with pytest.raises(ValueError, match="Invalid field names"):
        start(torchtitan, f'{export.text}\n[float8]\nrecipe_name = "rowwise"\n', tmp_path)
