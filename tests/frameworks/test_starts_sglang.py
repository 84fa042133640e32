"""Commands for SGLang taken by its own parser and resolved into what a server starts with, from the model's own config.json."""

import argparse
import importlib.util
import shutil
import types

import engine_exports
import pytest
import test_engine_options as engine_options
import yaml
from configs import CONFIGS, FILES
from launch_exports import THOROUGH, exports, transformers, words_of

if importlib.util.find_spec("sglang") is None:
    pytest.skip("sglang is not installed", allow_module_level=True)

from standins import StandIns

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
ABSENT = ("triton", "torchvision", "sgl_kernel", "flashinfer", "deep_ep", "deep_gemm")  # kernels, and pictures


@pytest.fixture(scope="module")
def sglang():
    """SGLang's arguments on a machine that passes as one of H100; what is not installed of kernels cannot be run."""
    import sys

    # Parts of torch that would use Triton are imported before it stands in, so that they find none.
    import torch._dynamo.backends.debugging
    import torch._inductor.compile_fx
    import torch.utils.flop_counter  # noqa: F401

    finder = StandIns(tuple(root for root in ABSENT if importlib.util.find_spec(root) is None))
    sys.meta_path.insert(0, finder)
    from sglang.srt.layers import quantization
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config
    from sglang.srt.runtime_context import override_platform
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    quantization.QUANTIZATION_METHODS["mxfp4"] = Mxfp4Config  # which is left out where the machine has no GPU
    with override_platform(is_cuda=True, is_sm90=True):
        yield types.SimpleNamespace(prepare=prepare_server_args, arguments=ServerArgs)
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if finder.has(name)]:
        del sys.modules[name]


def resolved(sglang, words, folder):
    """What a server starts with; `folder` stands in the place of the checkpoint's name, which the disk does not have."""
    taken = list(words)
    taken[taken.index("--model-path") + 1] = str(folder)
    found = sglang.prepare([*taken, "--skip-tokenizer-init", "--device", "cuda"])
    found.resolve_once()
    found.check_server_args()
    return found, found.resolved_dict()


def arguments(export):
    """Flags of the server's command, the address of its first node with them, as the shell puts them there."""
    return [
        word.replace("${NODE_RANK:-0}", "0").replace("${HEAD_ADDR:-localhost}", "localhost")
        for word in words_of(export, "sglang.launch_server")
    ]


@pytest.mark.parametrize("preset", [preset for preset in transformers() if preset in CONFIGS])
def test_servers_start(sglang, preset, tmp_path, capsys, record_property):
    """And the server has the scenario's degrees, batch and length."""
    shutil.copy(FILES / f"{CONFIGS[preset]}.json", tmp_path / "config.json")
    taken = 0
    for export in exports("sglang", preset):
        plan, spec = export.scenario.strategy, export.scenario.workload
        try:
            given, found = resolved(sglang, arguments(export), tmp_path)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{preset} {export.run}: {error}\n{capsys.readouterr().err[-500:]}\n{export.text}") from error
        assert found["tp_size"] * found["pp_size"] * found["dp_size"] == export.scenario.devices
        assert found["pp_size"] == plan.pp
        assert found["attn_dp_size"] * found["dp_size"] == plan.dp
        assert found["ep_size"] == max(plan.ep, 1) or plan.ep == 1
        assert found["context_length"] == spec.prompt + spec.output
        assert found["moe_a2a_backend"] == given.moe_a2a_backend
        assert found["enable_eplb"] == given.enable_eplb
        taken += 1
    record_property("taken", taken)
    assert taken or preset not in THOROUGH["sglang"]


REFUSED = [
    (("--quantization", "awq"), r"model config \(mxfp4\) does not match the quantization method"),
    (("--dp-size", "2", "--nnodes", "2"), "multi-node data-parallel replicas are not supported"),
    (("--nnodes", "3"), "tp_size must be divisible by number of nodes"),
    (
        ("--dp-size", "16", "--enable-dp-attention", "--speculative-algorithm", "NGRAM"),
        "ngram speculative decoding does not support dp attention",
    ),
    (("--context-length", "9999999"), "is greater than the derived context_length"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[message.split()[0] for _, message in REFUSED])
def test_this_server_refuses(sglang, tmp_path, words, message):
    """What the checks above would miss if nothing were checked."""
    shutil.copy(FILES / "gpt-oss-120b.json", tmp_path / "config.json")
    with pytest.raises((ValueError, AssertionError), match=message):
        resolved(sglang, ["--model-path", "x", "--tp-size", "16", *words], tmp_path)


@pytest.fixture(scope="module")
def parser(sglang):
    made = argparse.ArgumentParser(exit_on_error=False)
    sglang.arguments.add_cli_args(made)
    return made


def test_flags_keep_to_the_rules_of_the_table(parser):
    """For more plans and settings than are resolved above; the rules are those that commands are checked with where SGLang is not."""
    for scenario, text in engine_exports.exports("sglang"):
        found = parser.parse_args(engine_options.words(text, "sglang.launch_server")[0])
        engine_options.check_sglang(found)
        assert found.tp_size * found.pp_size * (1 if found.enable_dp_attention else found.dp_size) == scenario.devices


def test_the_table_has_the_options_of_the_package(parser):
    for option, row in engine_options.OPTIONS["sglang"]["options"].items():
        action = parser._option_string_actions[option]
        assert (action.nargs == 0) == (row["type"] == "switch"), option
        assert set(row.get("choices", ())) <= set(map(str, action.choices or ())), option
        assert yaml.safe_load(str(action.default)) == row["default"] if "default" in row and row["default"] != "null" else True, option


def test_layers_of_experts_with_biases_exchange_no_tokens():
    """Why exports of gpt-oss with an exchange are refused: this server takes the flag, and its layer stops."""
    from pathlib import Path

    import sglang.srt

    text = (Path(sglang.srt.__path__[0]) / "models" / "gpt_oss.py").read_text()
    assert 'raise NotImplementedError("forward_deepep branch not implemented yet")' in text
