"""Configurations for DeepSpeed taken by DeepSpeed's own."""

import importlib.util
import json
import re
import types

import pytest
from launch_exports import NODES, THOROUGH, exports, transformers

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("deepspeed is not installed", allow_module_level=True)

from standins import present

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(scope="module")
def config():
    """DeepSpeed's class of configurations."""
    with present("triton"):
        from deepspeed.runtime import config

    config.dist = types.SimpleNamespace(get_rank=lambda: 0)  # the first of ranks, whose number the grid tells
    return config.DeepSpeedConfig


def written(text):
    """The configuration that a script writes."""
    return json.loads(re.search(r"<<'JSON'\n(.*?)\nJSON\n", text, re.DOTALL)[1])


def grid(export):
    """Ranks as the engine hands them to the configuration: replicas beside tensor ranks."""
    plan = export.scenario.strategy
    return types.SimpleNamespace(get_data_parallel_world_size=lambda: plan.dp, get_tensor_model_parallel_world_size=lambda: plan.tp)


@pytest.mark.parametrize("preset", transformers())
def test_configurations_are_taken(config, preset, record_property):
    """And the batch that DeepSpeed makes of its three numbers is the scenario's."""
    taken = 0
    for export in exports("deepspeed", preset):
        try:
            made = config(written(export.text), mpu=grid(export))
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{preset} {export.run}: {error}\n{export.text}") from error
        plan, spec = export.scenario.strategy, export.scenario.workload
        assert (made.world_size, plan.dp * plan.tp) == (plan.dp, 8 * NODES)
        batch = made.train_batch_size, made.train_micro_batch_size_per_gpu, made.gradient_accumulation_steps
        assert batch == (spec.global_batch, plan.micro_batch, spec.global_batch // (plan.dp * plan.micro_batch))
        assert made.zero_config.stage == plan.zero
        assert made.bfloat16_config.enabled == (spec.dtype == "bf16")
        taken += 1
    record_property("taken", taken)
    assert taken or preset not in THOROUGH["deepspeed"]


def test_this_configuration_refuses(config):
    """What the checks above would miss if nothing were checked: numbers of samples that contradict each other."""
    export = next(exports("deepspeed", "llama3-8b"))
    with pytest.raises(AssertionError, match="train_batch_size is not equal to micro_batch_per_gpu"):
        config({**written(export.text), "train_batch_size": 513}, mpu=grid(export))
    with pytest.raises(ValueError, match="mics_shard_sizes"):
        config({**written(export.text), "zero_optimization": {"stage": 3, "mics_shard_sizes": 8}}, mpu=grid(export))
