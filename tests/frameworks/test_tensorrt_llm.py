"""Exported scripts in the options of trtllm-serve and the models of its YAML file; tensorrt-llm needs an NVIDIA GPU and its own index."""

import pytest
from engine_exports import exports
from test_engine_options import words

try:
    from tensorrt_llm.commands.serve import serve
    from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
except ImportError as error:
    pytest.skip(f"TensorRT-LLM cannot be imported here: {error}", allow_module_level=True)


def test_trtllm_serve_takes_what_is_written():
    for scenario, text in exports("tensorrt-llm"):
        rest, documents = words(text, "trtllm-serve")
        found = serve.make_context("serve", rest).params
        config = documents[found["extra_llm_api_options"]]
        made = TorchLlmArgs(model=found["model"], tensor_parallel_size=found["tensor_parallel_size"], **config)
        assert made.tensor_parallel_size * found["pipeline_parallel_size"] == scenario.devices
