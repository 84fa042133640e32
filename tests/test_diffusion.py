# ruff: noqa: E501  (tables of cases and exact sentences)
"""Diffusion transformers: published counts, operations of each kind of block by hand, files of diffusers, and what is told of wrong ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from blocks import block_kernels

import crossflow
from crossflow.answers.planning.question import Question
from crossflow.base import files
from crossflow.base.errors import CrossflowError, SpecError
from crossflow.parallel.strategy.layout import Layout
from crossflow.workload.diffusion import DiffusionSpec
from crossflow.workload.huggingface import huggingface_document
from crossflow.workload.spec import ImageSpec, TransformerSpec

CONFIGS = Path(__file__).parent / "data" / "huggingface"
PICTURE = {"size": 512, "compression": 8, "patch": 2, "channels": 16, "class_token": False}  # 1,024 tokens
MODEL = {
    "model": "transformer", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "gated": False, "biases": True, "norm": "layernorm",
    "norm_vectors": 0, "positions": "none", "causal": False, "head": "latents", "image": PICTURE, "global_batch": 16,
}  # fmt: skip
TEXT = {"text_tokens": 256, "text_width": 2048}
LARGE = {"hidden": 4096, "ffn": 16384, "heads": 32, "global_batch": 64}  # whose steps do not wait for the host
H = 1024


def made(strategy="dp8", software="megatron-core", nodes=1, **workload):
    data = {
        "system": {"template": "dgx-h100", "nodes": nodes},
        "workload": {**MODEL, **workload},
        "strategy": strategy,
        "software": software,
    }
    return crossflow.from_dict(data)


def model(diffusion, **workload):
    return made(diffusion=diffusion, **workload).workload.transformer()


def read(name, **image):
    given = {"image": image} if image else {}
    document, _ = huggingface_document(CONFIGS / f"{name}.json", given={f"image.{key}" for key in image})
    return files.validate(TransformerSpec, files.merge(document, files.Document(file="test", data=given)))


# ------------------------------------------------------------------------------------------ published counts

SMALL, VIDEO = {"size": 1024}, {"size": 832, "height": 480, "frames": 81}
# Files; what a scenario gives; parameters as the makers publish them, in billions (DiT, Table 1; PixArt-alpha, Sec. 1; model cards), and
# tokens of text and picture or video.
PUBLISHED = {
    "dit-xl-2-256": ({}, "0.675", 256),
    "pixart-alpha-xl-2-1024": ({}, "0.61", 4096),
    "sd3-medium": ({}, "2.03", 333 + 4096),
    "sd3.5-large": ({}, "8.06", 333 + 4096),
    "flux.1-dev": (SMALL, "11.9", 512 + 4096),
    "qwen-image": (SMALL, "20.43", 1024 + 4096),
    "wan2.1-t2v-14b": (VIDEO, "14.3", 21 * 30 * 52),
    "wan2.1-t2v-1.3b": (VIDEO, "1.42", 21 * 30 * 52),
    "cogvideox-5b": ({}, "5.57", 226 + 13 * 30 * 45),
    "ltx-video": ({"size": 704, "height": 480, "frames": 161}, "1.923385472", 21 * 15 * 22),
    "allegro": ({}, "2.771907856", 22 * 45 * 80),
    "cogview4-6b": ({}, "6.369118272", 1024 + 4096),
    "skyreels-v2-t2v": (VIDEO, "2.191878208", 21 * 30 * 52),
    "longcat-image": (SMALL, "11.877803072", 512 + 4096),
    "flux.2-dev": (SMALL, "32.223281152", 512 + 4096),
    "ernie-image": (SMALL, "2.821119104", 512 + 4096),
    "bria-3": (SMALL, "11.879375936", 128 + 4096),
    "ovis-image": (SMALL, "7.370449728", 256 + 4096),
    "hunyuanimage-2.1": ({"size": 2048}, "17.411235904", 1000 + 4096),
    "ideogram-4": (SMALL, "9.279288448", 2048 + 4096),
    "z-image": (SMALL, "6.154908736", 512 + 4096),
    "hunyuanvideo": ({"size": 1280, "height": 720, "frames": 129}, "12.82", 256 + 33 * 45 * 80),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_as_published(name):
    given, published, tokens = PUBLISHED[name]
    spec = read(name, **given)
    assert spec.transformer().parameters / 1e9 == pytest.approx(float(published), rel=0.005)
    assert spec.tokens == tokens


# Of whole files of weights; positions that are computed are left out.
EXACT = {"sd3-medium": 2_028_328_000, "flux.1-dev": 11_901_408_320, "wan2.1-t2v-14b": 14_288_491_584, "wan2.1-t2v-1.3b": 1_418_996_800}


@pytest.mark.parametrize("name", EXACT)
def test_counts_are_those_of_the_files_of_weights(name):
    assert read(name, **PUBLISHED[name][0]).transformer().parameters == EXACT[name]


# ------------------------------------------------------------------------------------------ blocks by hand


def test_a_block_of_dit_by_hand():
    """Attention, an MLP, and shift, scale and gate of each from one row a sample."""
    whole = model({})
    attention, mlp = whole.layers[0].parts
    assert attention.parameters == 4 * H * H + 4 * H + 3 * (H * H + H)
    assert mlp.parameters == 8 * H * H + 5 * H + 3 * (H * H + H)
    work = 2 * 1024 * 12 * H * H + 4 * 1024 * 1024 * H + 2 * 6 * H * H
    assert sum(whole.part_flops(part, 1024) for part in (attention, mlp)) == work


def test_a_block_of_mm_dit_by_hand():
    """256 tokens of text and 1,024 of a picture pass weights of their own, and attend to all 1,280."""
    whole = model({"text": "streams", **TEXT}, qk_norm="shared")
    attention, mlp = whole.layers[0].parts
    assert whole.layers[0].tokens == 1280
    assert attention.parameters == 2 * (4 * H * H + 4 * H + 3 * (H * H + H) + 2 * 64)
    assert mlp.parameters == 2 * (8 * H * H + 5 * H + 3 * (H * H + H))
    products = 2 * (1024 + 256) * 12 * H * H + 2 * 2 * 6 * H * H  # each token its own weights; two rows a sample
    assert sum(whole.part_flops(part, 1280) for part in (attention, mlp)) == products + 4 * 1280 * 1280 * H


def test_streams_pass_as_many_tokens_through_products():
    """Rows of products on a device: 2 samples of 1,024 tokens of a picture, and of 256 of the text; a row a sample makes the gates."""
    scenario = made(diffusion={"text": "streams", **TEXT})
    kernels = block_kernels(scenario.job(), Layout.of([scenario.strategy], np.array([16.0]), 8), scenario.stack)
    rows = {(row.unit, float(np.max(row.n)), float(np.max(row.k))): [] for row in kernels.products if row.phase == "forward"}
    for row in kernels.products:
        if row.phase == "forward":
            rows[row.unit, float(np.max(row.n)), float(np.max(row.k))].append(float(np.max(row.m)))
    micro = scenario.strategy.micro_batch
    assert rows["0.0.attention", 3.0 * H, float(H)] == [micro, micro, 1024 * micro, 256 * micro]
    assert rows["0.1.mlp", 4.0 * H, float(H)] == [1024 * micro, 256 * micro]
    assert rows["embedding", float(H), 64.0] == [1024 * micro]  # patches of 2 x 2 x 16
    assert rows["embedding", float(H), 2048.0] == [256 * micro]
    assert rows["head", 64.0, float(H)] == [1024 * micro]


def test_numbers_that_all_layers_share_by_hand():
    """One product for the picture, one for the text and one for layers of one stream, once a step; a layer has none (Flux.2)."""
    asked = {"text": "streams", "single_layers": 2, **TEXT}
    whole, own = model({**asked, "modulation": "common"}), model(asked)
    made = [matrix for matrix in whole.embedding.matrices if matrix.name == "modulation"]
    assert [(matrix.k, matrix.n) for matrix in made] == [(H, 6 * H), (H, 6 * H), (H, 3 * H)]
    assert not any("modulation" in matrix.name for layer in whole.layers for part in layer.parts for matrix in part.matrices)
    assert own.parameters - whole.parameters == (2 * 12 + 2 * 3 - 15) * (H * H + H)
    assert all(
        part.adaptive == other.adaptive
        for mine, its in zip(whole.layers, own.layers, strict=True)
        for part, other in zip(mine.parts, its.parts, strict=True)
    )
    joined = model({"text": "joined", "modulation": "common", "split_norms": False, **TEXT}).embedding.matrices
    assert [matrix.n for matrix in joined if matrix.name == "modulation"] == [6 * H]
    both = model({"text": "joined", "modulation": "common", **TEXT}).embedding.matrices
    assert [matrix.n for matrix in both if matrix.name == "modulation"] == [6 * H, 6 * H]


def test_layers_that_refine_the_picture_by_hand():
    """The first two layers multiply the picture's tokens alone, the others those of the text too; norms have scales and gates (Z-Image)."""
    whole = model({"text": "joined", "picture_layers": 2, "shifts": False, "split_norms": False, **TEXT})
    first, last = whole.layers
    assert (first.count, last.count) == (2, 2)
    assert [part.parameters for part in first.parts] == [part.parameters for part in last.parts]
    assert last.parts[0].parameters == 4 * H * H + 4 * H + 2 * (H * H + H)
    few, many = (sum(whole.part_flops(part, 1280) for part in layer.parts) for layer in (first, last))
    assert many - few == 2 * 256 * 12 * H * H
    assert whole.head.matrices[0].n == H  # a scale alone


def test_layers_that_refine_a_text_are_those_of_the_model():
    """Products of its own attention and MLP over 256 tokens; gates of HunyuanVideo come of the time step and the mean of the text."""
    given = {"text": "joined", "text_layers": 2, **TEXT}
    plain, gated = (model({**given, "text_gates": gates}, gated=True, kv_heads=4) for gates in (False, True))
    none = model({**given, "text_layers": 0}, gated=True, kv_heads=4)
    weights = 2 * H * H + 2 * 256 * H + 3 * 4096 * H
    biases = 3 * H + 2 * 256 + 2 * 4096
    assert plain.parameters - none.parameters == 2 * (weights + biases)
    assert gated.parameters - plain.parameters == 2 * (2 * H * H + 2 * H) + (256 + 2048 + 2 * H) * H + 4 * H
    embedding = [whole.part_flops(whole.embedding, 1280) for whole in (none, plain)]
    assert embedding[1] - embedding[0] == 2 * 256 * 2 * weights


def test_single_streams_by_hand():
    """Attention and MLP share a norm with its shift, scale and gate, and a bias; all tokens share weights (Flux)."""
    whole = model({"text": "streams", "single_layers": 2, **TEXT})
    double, single = whole.layers
    assert (double.count, single.count) == (2, 2)
    assert single.parameters == 12 * H * H + 3 * H + 4 * H + H + 3 * (H * H + H)


def test_kinds_of_a_few_layers_of_streams():
    """The last two have one stream, if there are as many; the last of two streams gives no text in SD3."""
    flux = DiffusionSpec(text="streams", single_layers=2, **TEXT)
    assert [flux.pattern(n) for n in (1, 4)] == [("single",), ("streams", "streams", "single", "single")]
    assert DiffusionSpec(text="streams", gives_text=False, **TEXT).pattern(3) == ("streams", "streams", "last")
    assert DiffusionSpec(text="cross", **TEXT).pattern(3) == ("cross",)


def test_the_last_layer_of_sd3_gives_no_text():
    """Its text has queries, keys, values and two of three numbers around them, and no MLP."""
    all_, without = (model({"text": "streams", "gives_text": gives, **TEXT}) for gives in (True, False))
    left = H * H + H + (H * H + H) + 8 * H * H + 5 * H + 3 * (H * H + H)
    assert all_.parameters - without.parameters == left


def test_a_block_with_cross_attention_by_hand():
    """Queries of 1,024 tokens see the 256 of a text; numbers of all layers come from one product, to which each adds a vector (PixArt)."""
    whole = model({"text": "cross", "text_mlp": True, "modulation": "shared", **TEXT})
    own, cross, mlp = whole.layers[0].parts
    assert own.parameters == 4 * H * H + 4 * H + 3 * H
    assert cross.parameters == 4 * H * H + 4 * H
    assert mlp.parameters == 8 * H * H + 5 * H + 3 * H
    assert whole.part_flops(cross, 1024) == 2 * 1024 * 2 * H * H + 2 * 256 * 2 * H * H + 4 * 1024 * 256 * H
    ends = 256 * H + H * H + 2 * H + 6 * (H * H + H) + 2048 * H + H * H + 2 * H + 64 * H + H
    assert whole.embedding.parameters == ends
    assert whole.head.parameters == 64 * H + 64 + 2 * H


def test_one_sequence_of_text_and_picture_by_hand():
    """All weights are shared, but for numbers around parts, which come from a vector of 128 elements (CogVideoX)."""
    whole = model({"text": "joined", "modulation_width": 128, **TEXT})
    attention, _ = whole.layers[0].parts
    assert attention.parameters == 4 * H * H + 4 * H + 6 * (128 * H + H)
    assert whole.part_flops(attention, 1280) == 2 * 1280 * 4 * H * H + 4 * 1280 * 1280 * H + 2 * 6 * 128 * H


@pytest.mark.parametrize(("fused", "forward", "backward"), [(["norm", "residual"], 2, 6), ([], 6, 9)])
def test_adaptive_norms_by_hand(fused, forward, backward):
    """Elements that shift, scale and gate move beside a norm and a residual, in one kernel with these or in kernels of their own."""
    moved = {}
    for name, more in (("adaptive", {"diffusion": {}}), ("plain", {"diffusion": None, "head": "none"})):
        scenario = made(software={"like": "megatron-core", "fused": fused, "fused_half": []}, **more)
        found = block_kernels(scenario.job(), Layout.of([scenario.strategy], np.array([16.0]), 8), scenario.stack)
        for phase in ("forward", "input"):
            rows = [row for row in found.passes if row.unit == "0.0.attention" and row.phase == phase]
            moved[name, phase] = sum(float(np.max(row.moved)) for row in rows)
    element = 2 * 1024 * H * made(diffusion={}).strategy.micro_batch
    for phase, each in (("forward", forward), ("input", backward)):
        assert moved["adaptive", phase] - moved["plain", phase] == each * element


# ------------------------------------------------------------------------------------------ steps


def test_a_denoising_step_is_a_forward_pass():
    training, step = (
        crossflow.evaluate(made(diffusion={"text": "streams", **TEXT}, task=task, **LARGE)) for task in ("training", "forward")
    )
    assert 2.0 < training.step_time[0] / step.step_time[0] < 5.0
    assert training.memory["optimizer"][0] > 0
    assert "optimizer" not in step.memory or step.memory["optimizer"][0] == 0


def test_more_pixels_take_longer_and_tokens_follow():
    sizes = [
        ImageSpec(**{**PICTURE, **more}).tokens
        for more in ({}, {"height": 256}, {"frames": 9, "frame_compression": 4}, {"frames": 9, "frame_compression": 4, "frame_patch": 2})
    ]
    assert sizes == [1024, 512, 3072, 2048]  # 9 frames are 3 of latents, the last of two patches is padded
    times = [
        crossflow.evaluate(made(diffusion={}, image={**PICTURE, "size": size}, task="forward", **{**LARGE, "global_batch": 512})).step_time[
            0
        ]
        for size in (512, 1024)
    ]
    assert 3 * times[0] < times[1] < 6 * times[0]


@pytest.mark.cases(4)
@pytest.mark.parametrize("strategy", ["dp8-z3-full", "tp8-sp", "tp2-dp4", "cp2-dp4", "pp4-dp2", "dp8-z2-selective"])
def test_strategies_divide_them(strategy):
    for diffusion in ({"text": "streams", "single_layers": 2, **TEXT}, {"text": "cross", **TEXT}, {"text": "joined", **TEXT}):
        score = crossflow.evaluate(made(strategy=strategy, diffusion=diffusion, layers=8, software="megatron-core"))
        assert np.isfinite(score.step_time[0])
        assert score.step_time[0] > 0


# ------------------------------------------------------------------------------------------ files, and what is told


def test_a_file_without_a_size_asks_for_it():
    with pytest.raises(SpecError) as caught:
        huggingface_document(CONFIGS / "flux.1-dev.json")
    assert (
        caught.value.problems[0].message
        == "the file does not say how large pictures are: give workload.image.size, such as 1024 (pixels of the picture, not latents)"
    )
    with pytest.raises(SpecError, match=r"videos are: give workload\.image\.height and workload\.image\.frames, such as 720, 81"):
        huggingface_document(CONFIGS / "wan2.1-t2v-14b.json", given={"image.size"})


def test_a_size_that_is_given_wins_over_that_of_a_file():
    assert read("sd3-medium").image.size == 1024
    assert read("sd3-medium", size=512).sequence == 1024


def test_what_a_step_is_and_what_stands_for_a_text_is_told():
    data = {
        "system": "dgx-h100",
        "workload": {"model": str(CONFIGS / "flux.1-dev.json"), "global_batch": 8, "image": {"size": 1024}},
        "strategy": "dp8-z3",
    }
    notes = " ".join(crossflow.predict(crossflow.from_dict(data)).notes)
    assert "flux.1-dev.json is a diffusion transformer: a step is one denoising step." in notes
    assert "diffusion.text_tokens = 512, as pipelines pad them; give workload.diffusion.text_tokens to change it" in notes


def test_a_sheet_takes_examples():
    document, _ = huggingface_document(CONFIGS / "flux.1-dev.json", examples=True)
    assert document.data["image"]["size"] == 1024
    assert "The file does not say how large pictures are; examples stand here: image.size = 1024." in document.data["notes"]


def test_a_question_has_a_sample_for_each_device(tmp_path):
    (tmp_path / "config.json").write_text((CONFIGS / "flux.1-dev.json").read_text())
    question = Question(model=str(tmp_path), system="dgx-h100", task="forward")
    document, assumed = question.scenario(["workload.image.size=512"])
    assert document.data["workload"]["global_batch"] == 8
    assert "global_batch 8: one sample for each device; --batch changes it" in assumed


@pytest.mark.thorough  # what it runs quicker tests run too
def test_a_plan_is_exported_where_a_scenario_gives_the_size():
    """What the file alone lacks is no problem where flags are written."""
    data = {
        "system": "dgx-h100",
        "workload": {"model": str(CONFIGS / "flux.1-dev.json"), "global_batch": 8, "image": {"size": 1024}},
        "strategy": "dp8-z3",
    }
    assert '"stage": 3' in crossflow.plan(crossflow.from_dict(data)).best.export("deepspeed")


def test_a_training_step_of_a_question_counts_the_tokens_of_pictures(tmp_path):
    """Four Mi tokens of 197 a picture, rounded up to 8 devices; not as many pictures."""
    (tmp_path / "config.json").write_text((CONFIGS / "vit-large-patch16-224.json").read_text())
    document, _ = Question(model=str(tmp_path), system="dgx-h100").scenario()
    assert document.data["workload"]["global_batch"] == -(-(4 * 2**20 // 197) // 8) * 8


def test_files_of_other_classes_are_told(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "LuminaNextDiT2DModel", "num_layers": 24}))
    with pytest.raises(SpecError, match="a file of diffusers, whose LuminaNextDiT2DModel is not modelled; the nearest known: "):
        huggingface_document(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "changed", "sentence"),
    [
        ("sd3.5-large", {"dual_attention_layers": [0, 1]}, "dual_attention_layers: [0, 1] is not modelled; known: []"),
        ("wan2.1-t2v-14b", {"image_dim": 1280}, "image_dim: 1280 is not modelled; known: null"),
        ("flux.1-dev", {"num_single_layers": None}, "the keys 'num_layers', 'num_single_layers' are needed; at least one is missing"),
        ("dit-xl-2-256", {"attention_head_dim": "72"}, "attention_head_dim: expected a whole number of at least 1"),
    ],
)
def test_wrong_files_are_told(tmp_path, name, changed, sentence):
    fields = {**json.loads((CONFIGS / f"{name}.json").read_text()), **changed}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(SpecError) as caught:
        huggingface_document(tmp_path / "config.json", given={"image.size", "image.height", "image.frames"})
    assert sentence in str(caught.value)


REFUSED = [
    ({"diffusion": {"text": "cross"}}, "text_tokens: text: cross needs it"),
    ({"diffusion": {"text_tokens": 7}}, "text_tokens: there is no text; leave it out, or give text"),
    ({"diffusion": {"text": "cross", "single_layers": 1, **TEXT}}, "single_layers: only text: streams has it; leave it out"),
    ({"diffusion": {"text": "streams", "single_layers": 4, **TEXT}}, "diffusion.single_layers: 4 of 4 layers leave none with streams; give fewer"),
    ({"diffusion": {"text": "streams", "modulation": "shared", **TEXT}}, "modulation: streams have products of their own in each layer"),
    ({"diffusion": {"text": "cross", "picture_layers": 1, **TEXT}}, "picture_layers: only text: joined has it; leave it out"),
    ({"diffusion": {"text": "cross", "split_norms": False, **TEXT}}, "split_norms: only text: joined has it; leave it out"),
    ({"diffusion": {"text": "cross", "text_gates": False, **TEXT}}, "text_gates: no layers refine the text; give text_layers, or leave it out"),
    ({"diffusion": {"text": "joined", "picture_layers": 4, **TEXT}}, "diffusion.picture_layers: 4 of 4 layers leave none that see the text; give fewer"),
    ({"diffusion": {}, "norms": 3}, "norms: "),
    ({"diffusion": {}, "head": "none"}, "head: a diffusion transformer gives latents; give head: latents"),
    ({"diffusion": None}, "head: latents are given with `diffusion` only"),
    ({"diffusion": {}, "task": "prefill"}, "task: a diffusion transformer has no requests, got prefill; give task: forward, a denoising step of the batch"),
    ({"diffusion": {}, "image": {**PICTURE, "class_token": True}}, "image.class_token: a diffusion transformer has none; give false"),
    ({"diffusion": {}, "image": {**PICTURE, "size": 500}}, "size = 500 is not a multiple of patch x compression = 16"),
    ({"diffusion": {}, "image": {**PICTURE, "frames": 8, "frame_compression": 4}}, "frames = 8: after the first, frames come in 4s; give 5 or 9"),
    ({"diffusion": {}, "image": {**PICTURE, "frame_compression": 4}}, "image.frame_compression: a picture is one frame; give image.frames, or leave it out"),
    ({"diffusion": {}, "causal": True}, "causal: every patch sees all others; give causal: false"),
    ({"diffusion": {}, "sequence": 77}, "sequence: an image has 1024 tokens, got sequence = 77; leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "sentence"), REFUSED)
def test_what_does_not_go_together_is_told(workload, sentence):
    with pytest.raises(CrossflowError) as caught:
        made(**workload)
    assert sentence in str(caught.value)
