"""Exported deployments in the argument code of Dynamo's workers and of their engines, as far as these are installed; no GPU is needed."""

import argparse
import importlib
import json

import pytest
from engine_exports import exports
from standins import pass_as_hopper

from crossflow.edges.launch.workers import deployment

pytest.importorskip("dynamo.common.configuration.groups.runtime_args", reason="ai-dynamo and ai-dynamo-runtime are not installed")

GROUPS = {"vllm": "DynamoVllmArgGroup", "sglang": "DynamoSGLangArgGroup", "tensorrt-llm": "DynamoTrtllmArgGroup"}
MODULES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}


def dynamo_parser(backend):
    """The parser of a worker's own options, or a skip where its engine is not installed."""
    from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup

    try:
        module = importlib.import_module(f"dynamo.{MODULES[backend]}.backend_args")
    except ImportError as error:
        pytest.skip(f"workers of {backend} cannot be imported here: {error}")
    made = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    DynamoRuntimeArgGroup().add_arguments(made)
    getattr(module, GROUPS[backend])().add_arguments(made)
    return made


def engine_parser(backend):
    """The parser of an engine's options; None for TensorRT-LLM, whose workers have all of them."""
    made = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False, add_help=False)
    try:
        if backend == "sglang":
            from sglang.srt.server_args import ServerArgs

            ServerArgs.add_cli_args(made)
        elif backend == "vllm":
            pass_as_hopper()
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.utils.argparse_utils import FlexibleArgumentParser

            made = FlexibleArgumentParser(add_help=False)
            AsyncEngineArgs.add_cli_args(made, async_args_only=False)
        else:
            return None
    except ImportError as error:
        pytest.skip(f"{backend} cannot be imported here: {error}")
    return made


@pytest.mark.parametrize("backend", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.filterwarnings("ignore")
def test_workers_take_what_is_written(backend):
    own, engine, seen = dynamo_parser(backend), engine_parser(backend), 0
    for _, text in exports("dynamo"):
        for worker in deployment(text, "x.yaml").workers:
            if worker.backend == backend:
                _, rest = own.parse_known_args([word.text for word in worker.words])
                if engine is None:
                    assert not rest, rest
                else:
                    engine.parse_args(rest)
                seen += 1
    assert seen > 50


def test_deployments_are_of_the_form_that_dynamo_reads():
    config = pytest.importorskip("dynamo.profiler.utils.config", reason="the profiler of Dynamo needs packages that are not installed")
    import yaml

    for _, text in exports("dynamo"):
        found = config.Config.model_validate(yaml.safe_load(text))
        assert [one.component_type for one in found.spec.components][:1] == ["frontend"]
        assert json.dumps(found.model_dump())
