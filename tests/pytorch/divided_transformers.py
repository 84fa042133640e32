"""Models of transformers in BF16 that divide themselves by torch's own means and by the library's, as users write them; and the same
divided as words of the import say, which real ranks run too."""

import functools

import torch
import transformers
from divided import TOKENS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from crossflow.evidence.torch import parallelize
from crossflow.evidence.torch.parallelize import TorchDivision
from crossflow.evidence.torch.tensor import divided_loss

FEW = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 256, "max_position_embeddings": 128, "use_cache": False,
}  # fmt: skip
CONFIGS = {
    "llama": FEW,
    "qwen3_moe": {**FEW, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_oss": {**FEW, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
}


def _model(kind):
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind], dtype=torch.bfloat16)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()


def _replicated(model):
    return DistributedDataParallel(model)


def _sharded(model):
    """Gathered in BF16, reduced in FP32, as Accelerate and torchtitan have it."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def _over_tensor_ranks(model):
    """By the plan that the library ships with the model."""
    ranks = torch.distributed.get_world_size()
    plan = model._resolve_parallel_plans(DistributedConfig(tp_size=ranks))[0]
    return apply_tensor_parallelism(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",)), plan)


def _inputs():
    tokens = torch.ones(2, TOKENS, dtype=torch.long)
    return {"input_ids": tokens, "labels": tokens}


def _made(kind, divide):
    return divide(_model(kind)), _inputs()


def whole(kind):
    """A model that is not divided."""
    return _model(kind), _inputs()


def in_words(kind, words):
    """A step of a model that words of the import divide; of real ranks only."""
    plan = parallelize.read(words, torch.distributed.get_world_size())
    model = parallelize.parallelized(_model(kind), plan, None, {}, TorchDivision())
    weights = [one for one in model.parameters() if one.requires_grad]
    kinds = [[one for one in weights if isinstance(one, DTensor) == divided] for divided in (False, True)]
    optimizer, inputs = torch.optim.AdamW([{"params": kind} for kind in kinds if kind], fused=True), _inputs()

    def step():
        with divided_loss(plan.tensor):
            model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


MADE = {
    f"{kind}{divide.__name__}": functools.partial(_made, kind, divide)
    for kind in CONFIGS
    for divide in (_replicated, _sharded, _over_tensor_ranks)
}
WORDS = {f"{kind} {words}": functools.partial(in_words, kind, words) for kind in CONFIGS for words in ("ddp", "fsdp2", "tp=2")}
