"""Commands for vLLM taken by its own parser and made into the configuration of an engine, from the model's own config.json."""

import dataclasses
import importlib.util
import shutil
import types

import pytest
from configs import CONFIGS, FILES  # models without a file are taken by the parser alone
from launch_exports import THOROUGH, exports, transformers, words_of

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)

from standins import pass_as_hopper

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(scope="module")
def vllm():
    """vLLM's parser and arguments on a node of H100, of which classes of models and kernels are not loaded."""
    pass_as_hopper()
    from vllm.config import vllm as whole
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from vllm.model_executor.layers import quantization
    from vllm.model_executor.models import registry
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    quantization.get_quantization_config = lambda _: types.SimpleNamespace(override_quantization_method=lambda *_, **__: None)
    whole.VllmConfig._get_quantization_config = staticmethod(lambda *_: None)
    registry._LazyRegisteredModel.inspect_model_cls = lambda lazy: _decoder(registry, lazy.class_name)
    return types.SimpleNamespace(parser=AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()), engine=EngineArgs)


def _decoder(registry, name):
    """What vLLM asks of a model's class: one that writes text, whose layers can be divided into stages."""
    plain = {field.name: False for field in dataclasses.fields(registry._ModelInfo)}
    told = {
        "architecture": name, "is_text_generation_model": True, "attn_type": "decoder", "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL", "score_type": "bi-encoder", "supports_pp": True, "supported_video_pruning_methods": (),
        "is_hybrid": name == "NemotronHForCausalLM", "has_inner_state": name == "NemotronHForCausalLM",
    }  # fmt: skip
    return registry._ModelInfo(**{**plain, **told})


def released(export):
    """Whether a command serves the checkpoint that was released, and not a folder that a user fills."""
    return not words_of(export, "vllm")[1].startswith("./")


def parsed(vllm, export, folder):
    """Arguments of an engine; `folder` stands in the place of the checkpoint's name, which the disk does not have."""
    command, _, *words = words_of(export, "vllm")
    assert command == "serve"
    return vllm.engine.from_cli_args(vllm.parser.parse_args(["--model", str(folder), "--skip-tokenizer-init", *words]))


@pytest.mark.parametrize("preset", transformers())
def test_commands_start(vllm, preset, tmp_path, capsys, record_property):
    """And the engine has the scenario's degrees, batch and length."""
    taken = 0
    if preset in CONFIGS:
        shutil.copy(FILES / f"{CONFIGS[preset]}.json", tmp_path / "config.json")
    for export in exports("vllm", preset):
        plan, spec = export.scenario.strategy, export.scenario.workload
        whole = preset in CONFIGS and released(export)
        try:
            arguments = parsed(vllm, export, tmp_path)
            engine = arguments.create_engine_config() if whole else None
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{preset} {export.run}: {error}\n{capsys.readouterr().err[-500:]}\n{export.text}") from error
        told = arguments.tensor_parallel_size, arguments.pipeline_parallel_size, arguments.data_parallel_size
        assert told == (plan.tp, plan.pp, plan.dp)
        assert arguments.max_model_len == spec.prompt + spec.output
        if engine is not None:
            assert engine.parallel_config.world_size == plan.tp * plan.pp
            assert engine.model_config.max_model_len == spec.prompt + spec.output
        taken += 1
    record_property("taken", taken)
    assert taken or preset not in THOROUGH["vllm"]


def test_this_engine_refuses(vllm, tmp_path):
    """What the checks above would miss if nothing were checked: more devices than a node has, and weights of another type."""
    shutil.copy(FILES / "gpt-oss-120b.json", tmp_path / "config.json")
    export = next(one for one in exports("vllm", "gpt-oss-120b") if one.run == "tp8-pp2")
    wrong = type(export)(**{**vars(export), "text": export.text.replace("--distributed-executor-backend ray", "")})
    with pytest.raises(ValueError, match=r"World size \(16\) is larger than the number of available GPUs \(8\)"):
        parsed(vllm, wrong, tmp_path).create_engine_config()
    other = type(export)(**{**vars(export), "text": f"{export.text.rstrip()} --quantization awq\n"})
    with pytest.raises(ValueError, match=r"Quantization method specified in the model config \(mxfp4\) does not match"):
        parsed(vllm, other, tmp_path).create_engine_config()
