"""Launch files of SGLang, TensorRT-LLM and Dynamo against tables of their options: the packages are large, or need a GPU."""

import argparse
import json
import re
from pathlib import Path

import pytest
import yaml
from engine_exports import exports
from sampled import fewer

from crossflow.edges.launch.shell import read_script
from crossflow.edges.launch.table import table
from crossflow.edges.launch.workers import deployment

OPTIONS = yaml.safe_load((Path(__file__).parent / "data" / "engine_options.yaml").read_text(encoding="utf-8"))
TYPES = {"int": int, "float": float, "str": str}


def parser(*names):
    """A parser with the options of the tables, which fails with a ValueError."""

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise ValueError(message)

    made = Parser(allow_abbrev=False, add_help=False)
    for name in names:
        for option, row in OPTIONS[name]["options"].items():
            if option in made._option_string_actions:
                continue
            form = (
                {"action": "store_true"}
                if row["type"] == "switch"
                else {"type": TYPES[row["type"]], "choices": row.get("choices"), "default": row.get("default")}
                | ({"nargs": "*"} if row.get("many") else {})
            )
            made.add_argument(option, *row.get("also", ()), **form)
    return made


def words(text, program):
    """Words behind a program in a script, and the file that the script writes."""
    script = read_script(re.sub(r'"\$\{(\w+):-([\w.]+)\}(:\d+)?"', r"\2\3", text), "x.sh")
    command = next(command for command in script.commands if any(word.text == program for word in command))
    at = next(i for i, word in enumerate(command) if word.text == program)
    return [word.text for word in command[at + 1 :]], {name: yaml.safe_load(word.text) for name, word in script.documents.items()}


def check_sglang(found):
    """What SGLang refuses, by the sources of the table."""
    assert found.tp_size % (found.dp_size if found.enable_dp_attention else 1) == 0
    assert not (found.dp_size > 1 and found.nnodes > 1 and not found.enable_dp_attention), "replicas lie in one node"
    assert (found.tp_size * found.pp_size) % found.nnodes == 0
    assert found.tp_size % found.ep_size == 0
    if found.moe_a2a_backend != "none":
        assert found.ep_size == found.tp_size, "an exchange spans all ranks"
    assert found.moe_dense_tp_size in (None, 1, found.tp_size)
    assert not (found.speculative_algorithm == "NGRAM" and found.enable_dp_attention), "n-grams do not go with attention data parallelism"
    if found.speculative_algorithm == "EAGLE":
        assert found.speculative_num_draft_tokens == found.speculative_num_steps + 1  # of a chain
    assert not found.enable_dp_lm_head or found.dp_size > 1


def check_keys(config, path=""):
    """Keys of TensorRT-LLM's YAML file, whose models refuse others."""
    for key, value in config.items():
        name = f"{path}{key}"
        if isinstance(value, dict):
            check_keys(value, f"{name}.")
            continue
        row = OPTIONS["tensorrt-llm"]["keys"][name]
        assert value is None if row["type"] == "null" else type(value).__name__ == row["type"], name
        assert value in row.get("choices", [value])


@pytest.mark.slow
def test_sglang_takes_what_is_written():
    files = exports("sglang")
    assert len(files) > fewer(100, 30)
    for scenario, text in files:
        found = parser("sglang").parse_args(words(text, "sglang.launch_server")[0])
        check_sglang(found)
        replicas = 1 if found.enable_dp_attention else found.dp_size
        assert found.tp_size * found.pp_size * replicas == scenario.devices, text
        assert found.nnodes == scenario.nodes[1], text


@pytest.mark.slow
def test_tensorrt_llm_takes_what_is_written():
    files = exports("tensorrt-llm")
    assert len(files) > fewer(50, 15)
    for scenario, text in files:
        (model, *rest), documents = words(text, "trtllm-serve")
        found = parser("tensorrt-llm").parse_args(rest)
        assert not model.startswith("-")
        config = documents[found.extra_llm_api_options]
        check_keys(config)
        assert found.tp_size * found.pp_size == scenario.devices
        assert found.tp_size % (found.ep_size or 1) == 0
        slots = config.get("moe_config", {}).get("load_balancer", {}).get("num_slots", 0)
        assert slots % (found.ep_size or 1) == 0


@pytest.mark.slow
def test_dynamo_takes_what_is_written():
    files = exports("dynamo")
    assert len(files) > fewer(100, 30)
    for scenario, text in files:
        total = 0
        for worker in deployment(text, "x.yaml").workers:
            found = parser(f"dynamo-{worker.backend}", worker.backend).parse_args([word.text for word in worker.words])
            if worker.backend == "sglang":
                found.nnodes = 1  # Dynamo places workers
                check_sglang(found)
                width = found.tp_size * found.pp_size
            elif worker.backend == "vllm":
                width = found.tensor_parallel_size * found.pipeline_parallel_size * found.data_parallel_size
                assert found.disaggregation_mode != "prefill" or json.loads(found.kv_transfer_config)
            else:
                width = found.tensor_parallel_size * found.pipeline_parallel_size
                check_keys(json.loads(found.override_engine_args))
            assert width == worker.devices, text
            total += width * worker.replicas * (not worker.reads)
        assert total == scenario.devices


@pytest.mark.parametrize("kind", ["sglang", "tensorrt-llm"])
def test_flags_of_the_tables_are_options(kind):
    """Options that the package has; flags of earlier versions, which are read alone, say so."""
    there = {
        spelling.lstrip("-").replace("_", "-")
        for name, row in OPTIONS[kind]["options"].items()
        for spelling in (name, *row.get("also", ()))
    }
    there |= {key.replace("_", "-") for key in OPTIONS[kind].get("keys", ())}
    old = {"enable-deepep-moe", "enable-ep-moe", "model", "quant-config.quant-algo", "moe-config.backend", "moe-config.load-balancer"}
    for name, row in table(kind).flags.items():
        plain = name.lstrip("-").replace("_", "-")
        assert plain in there or plain in old or not row.written, name


def test_choices_of_the_tables_are_those_of_sglang():
    for name, row in table("sglang").flags.items():
        options = OPTIONS["sglang"]["options"].get(f"--{name}")
        if options and options.get("choices") and row.values:
            assert set(options["choices"]) <= set(row.values), name
        if options and row.default is not None and row.type == "integer":
            assert options["default"] == row.default, name
