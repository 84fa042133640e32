"""Models of transformers as programs: each family, and the step beside that of our own builder."""

import importlib
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.answers.evaluation.events import events
from crossflow.base.errors import CrossflowError
from crossflow.evidence.torch import record
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.program import write_program
from crossflow.program.kernels import Attention, Pass, Product, Scan

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 256,
         "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
FEW = {**SMALL, "num_key_value_heads": 2, "head_dim": 16}
ROUTED = {**FEW, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {**SMALL, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
          "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
          "first_k_dense_replace": 1}  # fmt: skip
BOTH = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 256, "max_source_positions": 32, "max_target_positions": 64,
        "max_position_embeddings": 64, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 0, "bos_token_id": 0}  # fmt: skip
SEES = {**SMALL, "image_size": 32, "patch_size": 8}
MODELS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2"), FEW),
    **dict.fromkeys(("gpt_neox", "bert", "roberta", "falcon"), SMALL), "opt": {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256},
    "bloom": {"n_layer": 2, "hidden_size": 64, "n_head": 4, "vocab_size": 256},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 256, "decoder_start_token_id": 0},
    "vit": SEES, "mixtral": ROUTED, "qwen2_moe": {**ROUTED, "shared_expert_intermediate_size": 64}, "qwen3_moe": ROUTED, "gpt_oss": ROUTED,
    "deepseek_v3": LATENT, "whisper": BOTH, "bart": BOTH, "clip": {"text_config": SMALL, "vision_config": SEES},
    "mamba2": {"num_hidden_layers": 2, "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2,
               "vocab_size": 256},
}  # fmt: skip


def config(folder, kind, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **keys}))
    return str(path)


@pytest.mark.cases(6)
@pytest.mark.parametrize("kind", MODELS)
def test_families_import(kind, tmp_path):
    keys = {**MODELS[kind], **({"max_position_embeddings": 66} if kind == "roberta" else {})}
    program = record(config(tmp_path, kind, **keys), world_size=2, parallel="ddp", batch=2, sequence=None if kind == "vit" else 32)
    products = sum(isinstance(program.kernels[i], Product) for op in program.ops for i in op.kernels)
    attention = [program.kernels[i] for op in program.ops for i in op.kernels if isinstance(program.kernels[i], Attention)]
    assert products > 10
    assert program.samples == 4
    if kind not in ("bloom", "mamba2"):  # whose attention is products, or none
        assert sum(one.backward for one in attention) == sum(not one.backward for one in attention) >= 2


# Fused matrices whose halves are split, a table that several modules share, and layers in two lists.
@pytest.mark.cases(1)
@pytest.mark.parametrize(("kind", "parallel"), [("phi3", "tp=2,ddp"), ("t5", "tp=2,ddp"), ("t5", "pp=2,fsdp"), ("whisper", "pp=2,fsdp")])
def test_families_divide(kind, parallel, tmp_path):
    path = config(tmp_path, kind, **MODELS[kind])
    program = record(path, world_size=4, parallel=parallel, batch=4, sequence=32)
    assert program.parameters == record(path, batch=1, sequence=32, task="inference").parameters
    assert program.samples == 8
    assert dict(program.axes)[parallel[:2]] == 2


def test_a_family_whose_heads_share_keys_divides_its_matrices_one_by_one(tmp_path):
    """Falcon has one matrix for all queries and for the keys and values that they share: attention runs whole, all products are halves."""
    path = config(tmp_path, "falcon", **MODELS["falcon"])
    with pytest.warns(
        UserWarning, match=r"gives and takes whole tensors, .*: transformer\.h\.\*\.self_attention\.query_key_value .*\.dense$"
    ):
        divided = record(path, world_size=2, parallel="tp=2", sequence=32)
    whole = record(path, sequence=32)
    products = [sum(one.flops for op in program.ops for one in (program.kernels[i] for i in op.kernels) if isinstance(one, Product))
                for program in (divided, whole)]  # fmt: skip
    assert products[0] == pytest.approx(products[1] / 2)
    heads = [{one.heads for one in program.kernels if isinstance(one, Attention)} for program in (divided, whole)]
    assert heads[0] == heads[1]


def test_windows_and_latents_reach_the_kernels(tmp_path):
    windowed = record(config(tmp_path, "mistral", **FEW, sliding_window=16), sequence=64)
    assert {one.window for one in windowed.kernels if isinstance(one, Attention)} == {16}
    latent = record(config(tmp_path, "deepseek_v3", **LATENT), sequence=64)
    (forward,) = {one.work for one in latent.kernels if isinstance(one, Attention) and not one.backward}
    assert forward[0] == 2 * 4 * (64 * 64 / 2) * (24 + 16)


def test_experts_take_the_mean_of_the_tokens(tmp_path):
    program = record(config(tmp_path, "mixtral", **ROUTED), batch=2, sequence=32)
    grouped = {(one.m, one.n, one.k) for one in program.kernels if isinstance(one, Product) and one.batch == 4}
    assert (2 * 32 * 2 / 4, 2 * 128, 64) in grouped


@pytest.mark.parametrize("words", ["", "fsdp2"])
def test_models_that_choose_keys_by_an_indexer_get_the_mask_that_they_change(words, tmp_path):
    """DeepSeek-V3.2: its code reads the mask, which is not built for others. All keys count, as in products that are written out."""
    keys = {**LATENT, "num_key_value_heads": LATENT["num_attention_heads"], "index_n_heads": 4, "index_head_dim": 16, "index_topk": 8}
    program = record(config(tmp_path, "deepseek_v32", **keys), sequence=64, world_size=4 if words else 1, parallel=words)
    attention = [one for one in program.kernels if isinstance(one, Attention) and not one.backward]
    assert {(one.length, one.seen, one.causal) for one in attention} == {(64, 64, True)}


LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096,
         "num_hidden_layers": 2}  # fmt: skip
CASES = {
    "llama": ({**LLAMA, "tie_word_embeddings": False}, 4096, 2),
    "gpt2": ({"n_embd": 1600, "n_head": 25, "n_layer": 4, "vocab_size": 50257, "n_positions": 1024}, 1024, 8),
    "mixtral": ({**LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
                 "sliding_window": None, "tie_word_embeddings": False}, 4096, 1),
    "bert": ({"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 30522,
              "max_position_embeddings": 512, "architectures": ["BertForMaskedLM"]}, 512, 32),
    "vit": ({"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 8,
             "architectures": ["ViTForImageClassification"], "num_labels": 1000, "image_size": 224, "patch_size": 16}, None, 64),
}  # fmt: skip


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", CASES)
def test_steps_are_those_of_our_own_builder(kind, tmp_path):
    """The same config as a transformer of ours and as an imported program, replicated 8 times, on the default software."""
    keys, sequence, batch = CASES[kind]
    path = config(tmp_path, kind, **keys, torch_dtype="bfloat16")
    program = record(path, world_size=8, parallel="ddp", batch=batch, sequence=sequence)
    file = write_program(program, tmp_path / "model.program.json.gz")
    system, model = (
        {"template": "dgx-h100", "nodes": 1},
        {"model": path, "global_batch": 8 * batch, **({"sequence": sequence} if sequence else {})},
    )
    ours = crossflow.from_dict({"system": system, "workload": model, "strategy": {"dp": 8, "micro_batch": batch}})
    theirs = crossflow.from_dict({"system": system, "workload": str(file), "software": ours.stack.name})
    mine, given = crossflow.predict(ours), crossflow.predict(theirs)
    assert given.step_time == pytest.approx(mine.step_time, rel=0.05)
    assert program.parameters == pytest.approx(float(ours.job().model.parameters), rel=2e-3)
    busy = [one.to_dict()["breakdown_s"] for one in (given, mine)]
    assert math.isclose(*(sum(part[name] for name in ("compute", "memory_bound_compute")) for part in busy), rel_tol=0.1)


WIDE = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
        "num_hidden_layers": 4, "tie_word_embeddings": False}  # fmt: skip
# Keys, tokens, samples, and by how much the step is longer at most. DeepSeek-V3's experts are small, so that it shows what the library does
# to send tokens to them and back: it gathers by an index, whose backward pass adds into a table of zeros.
ROUND_TRIPS = {
    "llama": ({**WIDE, "intermediate_size": 11008}, 4096, 2, 0.03),
    "qwen3": ({**WIDE, "intermediate_size": 12288, "head_dim": 128}, 4096, 2, 0.03),
    "mixtral": ({**WIDE, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}, 4096, 1,
                0.03),
    "deepseek_v3": ({**WIDE, "num_key_value_heads": 32, "intermediate_size": 11008, "moe_intermediate_size": 2048, "n_routed_experts": 16,
                     "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
                     "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
                     "num_nextn_predict_layers": 0}, 4096, 1, 0.05),
    "mamba2": ({"hidden_size": 4096, "num_hidden_layers": 4, "vocab_size": 32000, "state_size": 128, "num_heads": 128, "head_dim": 64,
                "n_groups": 8, "chunk_size": 256, "expand": 2, "tie_word_embeddings": False}, 4096, 2, 0.03),
    "vit": (CASES["vit"][0], None, 64, 0.05),
}  # fmt: skip


def operations(scenario):
    """Operations of products, and the time of attention and scans, which are kernels of one shape in both. [flop, s]"""
    found = events(scenario).events
    sizes = ((one.count, [int(size) for size in re.findall(r"\d+", one.shape)]) for one in found if one.op == "gemm")
    others = (one.time * one.count for one in found if one.op.startswith(("attention", "scan")))
    return 2 * sum(count * math.prod(each) for count, each in sizes), sum(others)


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_a_model_is_the_same_imported_and_built_in(kind, tmp_path):
    """On software like PyTorch's without its host, whose constant times would hide what differs, with gradients in the type of weights."""
    keys, sequence, batch, longer = ROUND_TRIPS[kind]
    path = config(tmp_path, kind, **keys, dtype="bfloat16")
    program = record(path, batch=batch, sequence=sequence)
    file = write_program(program, tmp_path / "model.program.json.gz")
    host = dict.fromkeys(("kernel", "rank", "layer", "stall", "microbatch", "step"), "0 us")
    common = {"system": {"template": "dgx-h100", "devices": 1}, "software": {"like": "pytorch", "host": host, "gradient": "weight"}}
    model = {"model": path, "global_batch": batch, **({"sequence": sequence} if sequence else {})}
    ours = crossflow.from_dict({**common, "workload": model, "strategy": {"micro_batch": batch}})
    theirs = crossflow.from_dict({**common, "workload": str(file)})
    assert program.parameters == pytest.approx(float(ours.job().model.parameters), rel=1e-4)
    assert operations(theirs) == (pytest.approx(operations(ours)[0], rel=1e-4), pytest.approx(operations(ours)[1], rel=1e-6))
    steps = [float(crossflow.predict(one).step_time) for one in (ours, theirs)]
    assert -0.01 < steps[1] / steps[0] - 1 < longer


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pytorch-model.md"
LISTED = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral", "deepseek_v3": "DeepSeek-V3", "mamba2": "Mamba-2", "vit": "ViT-L"}


@pytest.mark.parametrize("kind", ROUND_TRIPS)
def test_the_page_lists_the_bytes_of_a_layer_and_why_they_differ(kind, tmp_path):
    """Passes of the last layer but one; lines add up to the difference."""
    keys, sequence, batch, _ = ROUND_TRIPS[kind]
    path = config(tmp_path, kind, **keys, dtype="bfloat16")
    program = record(path, batch=batch, sequence=sequence)
    numbers = [re.search(r"layers?\.(\d+)", op.layer) for op in program.ops]
    last = max(int(one[1]) for one in numbers if one)
    own = (op for op, one in zip(program.ops, numbers, strict=True) if one and int(one[1]) == last - 1 and op.phase != "update")
    imported = sum(one.moved for op in own for one in (program.kernels[i] for i in op.kernels) if isinstance(one, Pass))
    model = {"model": path, "global_batch": batch, **({"sequence": sequence} if sequence else {})}
    software = {"like": "pytorch", "gradient": "weight"}
    ours = crossflow.from_dict({"system": {"template": "dgx-h100", "devices": 1}, "software": software, "workload": model,
                                "strategy": {"micro_batch": batch}})  # fmt: skip
    passes = block_kernels(ours.job(), Layout.of([Plan()], np.ones(1), 8), ours.stack).passes
    unit = "1." if kind == "deepseek_v3" else "0."  # dense layers come first
    built = batch * sum(float(np.sum(one.moved)) for one in passes if one.unit.startswith(unit))
    cells = next(line for line in PAGE.read_text().splitlines() if re.match(rf"\| {LISTED[kind]}, [\d,]+ \|", line)).split("|")
    listed = [float(cell.replace(",", "")) for cell in cells[2:4]]
    assert [built / 1e6, imported / 1e6] == pytest.approx(listed, rel=2e-3)
    lines = sum(float(one.replace(",", "")) for one in re.findall(r"[+-][\d,]*\d", cells[4]))
    assert lines == pytest.approx(listed[1] - listed[0], abs=0.005 * listed[1])


def test_wrong_configs_are_refused(tmp_path, exactly):
    path = config(tmp_path, "llama", **FEW)
    missing = tmp_path / "no"
    missing.mkdir()
    sentence = f"{missing / 'config.json'}: no such file; name the config.json of a model, or the folder that holds it"
    with pytest.raises(CrossflowError, match=exactly(sentence)):
        record(str(missing))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CrossflowError, match=exactly(f"{path}: the key 'model_type' is missing, by which transformers knows a model")):
        record(path)
    config(tmp_path, "wav2vec2")
    with pytest.raises(CrossflowError, match="Wav2Vec2Model takes input_values, which the import does not know"):
        record(path)


SCANS = {
    "mamba2": (
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 16, "num_heads": 8,
         "head_dim": 8, "n_groups": 2, "chunk_size": 8},
        {"heads": 8.0, "width": 8.0, "state": 16.0, "groups": 2.0, "chunk": 8.0, "delta": False},
        2 * (32 * (2 * 64 + 2 * 2 * 16 + 8) + 64 * 32) + 32 * 64,
    ),
    "qwen3_next": (
        {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "layer_types": ["linear_attention"] * 2,
         "mlp_only_layers": [0, 1], "intermediate_size": 48, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
         "linear_key_head_dim": 16, "linear_value_head_dim": 8},
        {"heads": 4.0, "width": 8.0, "state": 16.0, "groups": 2.0, "chunk": 64.0, "delta": True},
        2 * (32 * (2 * 32 + 2 * 32 + 2 * 4) + 32 * 32 + 3 * 32 * 48) + 32 * 64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCANS)
def test_the_scan_of_a_state_space_layer_is_one_kernel(name, tmp_path):
    """As kernels of a GPU run it. All other products are those of matrices: six operations a weight and token."""
    keys, sizes, weights = SCANS[name]
    program = record(config(tmp_path, name, **keys), batch=2, sequence=16, optimizer="none")
    kernels = [program.kernels[i] for op in program.ops for i in op.kernels]
    found = Counter(one for one in kernels if isinstance(one, Scan))
    expected = {Scan(samples=2.0, length=16.0, backward=backward, **sizes): 2 for backward in (False, True)}
    assert found == expected
    assert sum(2 * one.m * one.n * one.k * one.batch for one in kernels if isinstance(one, Product)) == 6 * weights * 2 * 16
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")  # in which nothing of it is left
    assert not any(getattr(one, "__module__", "").startswith("crossflow") for one in vars(module).values())


def test_a_selective_scan_is_one_pass_however_long_the_sample(tmp_path):
    """Mamba-1 goes on token by token: 2 x 16 x 64 elements of data with 8 states each, seven operations forward and 19 backward."""
    path = config(tmp_path, "mamba", hidden_size=32, num_hidden_layers=2, vocab_size=64, state_size=8, time_step_rank=4)
    long, short = (record(path, batch=2, sequence=tokens, optimizer="none", dtype="bf16") for tokens in (1024, 16))
    assert len(long.ops) == len(short.ops)
    data, keys = 2 * 16 * 64, 2 * 16 * 8
    for moved, work in (((5, 2), 7), ((9, 4), 19)):
        scan = Pass(moved=2.0 * (moved[0] * data + moved[1] * keys), flops=work * 8.0 * data)
        assert sum(short.kernels[i] == scan for op in short.ops for i in op.kernels) == 2


@pytest.mark.parametrize("named", ["AutoModelForCausalLM", "pipeline", 3, "LlamaForCausalLM"])
def test_a_configuration_names_models_of_transformers_and_no_other_code(tmp_path, monkeypatch, named):
    (tmp_path / "canary.py").write_text("raise AssertionError('this is code of the file')")
    monkeypatch.syspath_prepend(tmp_path)
    code = {"AutoConfig": "canary.Config", "AutoModelForCausalLM": "canary.Model"}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "architectures": [named], "auto_map": code, **sizes}))
    config, kind = importlib.import_module("crossflow.evidence.torch.huggingface")._config(path)
    assert not hasattr(config, "auto_map")
    assert kind is transformers.LlamaForCausalLM


def test_keys_and_values_of_groups_of_heads_are_cut_by_columns_without_a_plan(tmp_path):
    """StableLM carries no plan. Its keys and values, of two heads for four, are narrower than what they read, and end nothing: tensor ranks
    halve every matrix of its layers."""
    given = config(tmp_path, "stablelm", **FEW)
    alone, two = record(given, batch=2, sequence=32), record(given, world_size=2, parallel="tp=2", batch=2, sequence=32)

    def widths(program):
        kernels = [program.kernels[i] for op in program.ops if op.phase == "forward" and "layers" in op.layer for i in op.kernels]
        return Counter((one.n, one.k) for one in kernels if isinstance(one, Product))

    columns, rows = {(64, 64): 4, (32, 64): 4, (128, 64): 4}, {(64, 128): 2}  # queries and results, keys and values, gate and up; down
    assert widths(alone) == {**columns, **rows}
    assert widths(two) == {(32, 64): 2, (64, 32): 2, (16, 64): 4, (64, 64): 4 + 2}
    assert two.memory[0]["weights"] < 0.51 * alone.memory[0]["weights"]


MIXTURES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("more", ["", ",fsdp2", ",ddp"])
def test_tensor_ranks_share_experts_as_the_plan_of_the_library_says(kind, more, tmp_path):
    """Each of two ranks has half of every expert: half of the products of all but the router, and nothing is lost."""
    given = config(tmp_path, kind, **{**FEW, **MIXTURES[kind]})
    alone = record(given, batch=2, sequence=32)
    two = record(given, world_size=4 if more else 2, parallel=f"tp=2{more}", batch=2, sequence=32)

    def work(program):
        kernels = [program.kernels[i] for op in program.ops for i in op.kernels]
        return sum(one.m * one.n * one.k * one.batch for one in kernels if isinstance(one, Product))

    router = 2 * 3 * 2 * 32 * 64 * 4  # of two layers, forward and both ways back: tokens, width and experts
    assert work(two) == (work(alone) - router) / 2 + router
    assert two.parameters == alone.parameters


def test_masks_of_attention_that_is_written_out_are_left_out_where_no_token_is_padded(tmp_path):
    """As on real tensors, of which the library asks it; it builds one of all pairs for tensors that a compiler traces."""
    keys = {**SMALL, "num_landmarks": 4, "segment_means_seq_len": 16, "architectures": ["NystromformerForMaskedLM"], "dtype": "float32"}
    program = record(config(tmp_path, "nystromformer", **keys), sequence=16)
    layer, landmarks, width = "nystromformer.encoder.layer.0.attention.self", 4, 16
    products = [program.kernels[i] for op in program.ops if op.layer == layer and op.phase == "forward" for i in op.kernels]
    assert (landmarks, landmarks, width) in {(one.m, one.n, one.k) for one in products if isinstance(one, Product)}


def test_biases_of_relative_positions_have_gradients(tmp_path):
    """Scores of distances, which attention is given by name beside a mask: a product forward and two backward."""
    keys = {**SMALL, "feature_projection_input_dim": 16, "position_embeddings_type": "relative_key", "conv_depthwise_kernel_size": 3,
            "left_max_position_embeddings": 8, "right_max_position_embeddings": 4, "apply_spec_augment": False, "layerdrop": 0.0,
            "num_hidden_layers": 1}  # fmt: skip
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model("wav2vec2-bert", **keys))
    program = record(lambda: (model, {"input_features": torch.zeros(2, 32, 16)}))
    scores = [op.phase for op in program.ops for i in op.kernels if op.layer.endswith("self_attn") and op.name.startswith(("bmm", "fused"))
              for one in [program.kernels[i]] if isinstance(one, Product)]  # fmt: skip
    assert Counter(scores) == {"forward": 1, "backward": 2}
