# ruff: noqa: E501  (exact sentences and tables of cases)
"""Model files of transformers: parameters and operations against published counts, and wrong files told exactly."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import crossflow
from crossflow.base import files
from crossflow.base.errors import SpecError
from crossflow.base.files import Document
from crossflow.workload.frozen import frozen_layers, trainable_parameters
from crossflow.workload.kinds import MODELS
from crossflow.workload.spec import TransformerSpec
from crossflow.workload.transformer import Routing

PRESETS = {
    name: path
    for name, path in files.catalogue("templates").items()
    if path.parent.name == "models" and not name.startswith(("lstm", "dlrm"))
}
SMALL = {"model": "transformer", "layers": 4, "hidden": 8, "heads": 2, "ffn": 16, "vocabulary": 40, "sequence": 6, "global_batch": 3}


def preset(name, **changes):
    document = files.read_yaml(PRESETS[name])
    return files.validate(TransformerSpec, files.merge(document, Document(file="own", data=changes)))


def model(name, **changes):
    return preset(name, **changes).transformer()


def small(**changes):
    return files.validate(TransformerSpec, Document(file="own", data={**SMALL, **changes}))


# ------------------------------------------------------------------------------------------ published counts

# Counted by the code that its authors published (for the most part as Hugging Face holds it): no tolerance.
COUNTED = {
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-65b": 65_285_660_672, "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320, "llama2-70b": 68_976_648_192, "llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800, "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_630_071_296, "deepseek-v2": 235_741_434_880,
    "bloom-176b": 176_247_271_424, "mpt-125m": 125_311_488, "mpt-760m": 760_470_528, "mpt-1b": 1_315_950_592, "bert-base": 110_106_428,
    "bert-large": 336_226_108, "t5-large": 737_668_096, "t5-11b": 11_307_321_344, "gpt2-345m": 354_823_168, "gpt2-xl": 1_557_611_200,
    "qwen3-32b": 32_762_123_264, "kimi-k2": 1_026_408_232_448, "llama4-maverick": 400_711_848_960, "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288, "opt-66b": 65_719_701_504,
    "vit-l": 304_326_632, "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560,
    "mistral-7b": 7_241_732_096, "gemma3-27b": 27_009_346_304, "gpt-oss-120b": 116_829_156_672, "llama4-scout": 107_769_861_120,
    "mamba2-2.7b": 2_702_599_680, "nemotron-h-8b": 8_100_852_736,
    "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200, "qwen2.5-7b": 7_615_616_512, "codellama-34b": 33_743_970_304,
    "gpt-oss-20b": 20_914_757_184,
    "bert-exlarge": 336_226_108 + 24 * (12 * 1024**2 + 13 * 1024),  # BERT-large with as many layers again
}  # fmt: skip
# As printed in papers, within half a unit of the last digit printed where no tolerance is given.
PRINTED = [
    ("gpt3-175b", 174.6e9, 0.05e9), ("llama-30b", 32.5e9, 0.05e9), ("llama-65b", 65.2e9, 0.1e9), ("deepseek-v3", 671e9, 0.5e9),
    ("megatron-1.7b", 1.7e9, 0.05e9), ("megatron-3.6b", 3.6e9, 0.05e9), ("megatron-7.5b", 7.5e9, 0.05e9), ("megatron-18b", 18.4e9, 0.05e9),
    ("megatron-22b", 22e9, 0.5e9), ("megatron-39b", 39.1e9, 0.05e9), ("megatron-76b", 76.1e9, 0.05e9), ("megatron-145b", 145.6e9, 0.05e9),
    ("megatron-310b", 310.1e9, 0.05e9), ("megatron-530b", 529.6e9, 0.05e9), ("megatron-1t", 1008.0e9, 0.05e9), ("mpt-7b", 6.65e9, 0.02e9),
    ("mpt-3b", 2.65e9, 0.005e9), ("mpt-30b", 29.96e9, 0.02e9), ("vit-h", 632e6, 0.5e6), ("vit-10b", 10.07e9, 0.01e9), ("vit-25b", 25.49e9, 0.01e9),
    ("vit-60b", 60.41e9, 0.02e9), ("vit-120b", 120.8e9, 0.05e9), ("gpt4-1.8t", 1815.5e9, 0.5e9),
    ("gpt3-5b", 5e9, 0.5e9), ("gpt3-20b", 20e9, 0.6e9), ("nemotron3-8b", 8e9, 0.6e9), ("nemotron3-22b", 22e9, 0.8e9),
    ("nemotron4-340b", 331.6e9 + 9.4e9, 0.1e9), ("nemotron3-nano-30b-a3b", 31.6e9, 0.05e9),
    ("nemotron3-super-120b-a12b", 120e9, 1e9), ("nemotron3-ultra-550b-a55b", 550e9, 1e9),  # as their names say
    ("palm-540b", 540.35e9, 0.01e9),
    ("deepseek-v3.2", 671e9, 1e9), ("deepseek-v4-pro", 1.6e12, 0.05e12), ("deepseek-v4-flash", 284e9, 1e9), ("kimi-k3", 2.8e12, 0.05e12),
    ("kimi-k2.5", 1.03e12, 0.005e12), ("glm-5.2", 743e9, 1e9), ("qwen3-coder-480b-a35b", 480e9, 0.5e9), ("qwen3.5-27b", 27e9, 0.5e9),
    ("qwen3.5-35b-a3b", 35e9, 0.5e9), ("mimo-v2-flash", 309e9, 0.5e9), ("gemma4-31b", 31e9, 0.5e9),
    ("glm-5", 744e9, 0.5e9), ("minimax-m2", 229e9, 0.5e9),
    ("qwen3.5-397b-a17b", 397e9 - 0.447e9, 0.5e9),  # its vision tower left out
]  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_that_the_published_code_counts(name):
    assert model(name).parameters == COUNTED[name]


@pytest.mark.parametrize(("name", "printed", "tolerance"), PRINTED)
def test_parameters_are_those_of_the_paper(name, printed, tolerance):
    assert model(name).parameters == pytest.approx(printed, abs=tolerance)


def test_every_preset_is_checked_against_a_published_count():
    assert {*COUNTED, *(name for name, *_ in PRINTED)} == PRESETS.keys()


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12.9e9),
        ("mixtral-8x22b", 39e9),
        ("deepseek-v2", 21e9),
        ("deepseek-v3", 37e9),
        ("qwen3-30b-a3b", 3.3e9),
        ("qwen3-235b-a22b", 22e9),
        ("llama4-scout", 17.17e9),
        ("gpt-oss-120b", 5.13e9 + 0.58e9),  # the model card leaves the embedding's table out
    ],
)
def test_parameters_that_a_token_passes(name, active):
    """As the papers print them: to the last digit for Mixtral, the embedding in or out for DeepSeek (2%)."""
    assert model(name).active_parameters == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(("experts", "active", "groups"), [(8, 2, 4), (6, 3, 2), (6, 3, 6), (4, 4, 2), (8, 3, 1), (8, 1, 4)])
def test_groups_of_experts_that_a_token_reaches(experts, active, groups):
    """Counted over all choices of different experts."""
    chosen = list(itertools.combinations(range(experts), active))
    reached = sum(len({one * groups // experts for one in some}) for some in chosen) / len(chosen)
    assert Routing(experts=experts, active=active).reached(np.array([float(groups)]))[0] == pytest.approx(reached, rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize(("groups", "chosen"), [(4, 2), (4, 4), (6, 2), (2, 1)])
def test_ranks_that_hold_an_expert_of_a_token_whose_groups_are_chosen_first(groups, chosen, ranks):
    """Counted over all choices of groups, and of three of their experts, of twelve that lie on ranks in their order."""
    size, counts = 12 // groups, []
    for some in itertools.combinations(range(groups), chosen):
        pool = [group * size + i for group in some for i in range(size)]
        counts += [len({expert * ranks // 12 for expert in experts}) for experts in itertools.combinations(pool, 3)]
    found = Routing(experts=12, active=3, groups=groups, active_groups=chosen).reached(np.array([float(ranks)]))[0]
    if groups % ranks and ranks % groups:
        assert found == pytest.approx(Routing(experts=12, active=3).reached(np.array([float(ranks)]))[0])
    else:
        assert found == pytest.approx(np.mean(counts), rel=1e-12)


def test_a_token_of_deepseek_v3_goes_to_no_more_than_four_of_eight_nodes():
    """Sec. 2.1.2 of its report: each token is sent to at most 4 nodes."""
    routing = next(part.routing for part in model("deepseek-v3").parts if part.routing)
    limited = routing.reached(np.array([8.0]))[0]
    assert 3.5 < limited < 4.0 < replace(routing, groups=1, active_groups=1).reached(np.array([8.0]))[0]


@pytest.mark.parametrize(("changes", "published"), [({}, 110_106_428), ({"pooler": False}, 109_514_298), ({"head": "none"}, 109_482_240)])
def test_berts_heads(changes, published):
    """BertForPreTraining, BertForMaskedLM and BertModel of the transformers library."""
    assert model("bert-base", **changes).parameters == published


def test_patches_decide_the_ends_of_a_vision_transformer():
    """ViT-H/14 as torchvision counts it; patches of 32 have 828 pixels of 3 values more, and 207 positions fewer."""
    assert model("vit-h", image={"patch": 14}).parameters == 632_045_800
    assert model("vit-h", image={"patch": 32}).parameters == 632_045_800 + 1280 * (3 * 828 - 207)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_what_it_is_and_where_it_comes_from(name):
    spec = preset(name)
    assert spec.title
    assert spec.sources
    assert all(len(source) > 40 for source in spec.sources.values())


# ------------------------------------------------------------------------------------------ operations


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("megatron")])
def test_operations_are_those_of_megatrons_formula(name):
    """Narayanan et al. 2021, appendix: the forward pass of one sample, 24 s l h^2 (1 + s/6h) + 2 s h V, with scores that a mask hides."""
    spec = preset(name, causal=False)
    s, n, h = spec.sequence, spec.layers, spec.hidden
    assert spec.transformer().forward_flops() == pytest.approx(
        24 * s * n * h**2 * (1 + s / (6 * h)) + 2 * s * h * spec.vocabulary, rel=1e-12
    )


@pytest.mark.parametrize(
    ("name", "tflop"), [("vit-l", 0.122), ("vit-h", 0.254), ("vit-10b", 5.218), ("vit-25b", 13.16), ("vit-60b", 31.18), ("vit-120b", 62.34)]
)
def test_operations_of_vision_transformers(name, tflop):
    """Forward pass of an image, from the sheet of MAD-Max's ViT measurements; it prints three or four digits."""
    assert model(name).forward_flops() / 1e12 == pytest.approx(tflop, rel=0.01)


@pytest.mark.parametrize(("name", "per_token"), [("gpt3-175b", 350e9), ("llama-65b", 130.4e9), ("llama2-70b", 140e9)])
def test_operations_of_a_token_are_twice_its_parameters(name, per_token):
    """MAD-Max, Table II, counts no attention, and 2 x 70 for Llama 2 (2%); a token with no context passes all but the embedding's table."""
    described = model(name)
    assert described.forward_flops(tokens=1) == pytest.approx(per_token, rel=0.02)
    table = 0 if described.tied else described.embedding.table
    assert described.forward_flops(tokens=1) == pytest.approx(2 * (described.active_parameters - table), rel=1e-3)


def test_attention_grows_with_the_square_of_the_context():
    """4 h for each pair of query and key in each of 96 layers, half of the pairs under a causal mask."""
    for share, described in ((0.5, model("gpt3-175b")), (1.0, model("gpt3-175b", causal=False))):
        scores = share * 4 * 96 * 12288
        linear = described.forward_flops(tokens=1) - scores
        assert described.forward_flops() == pytest.approx(2048 * linear + scores * 2048**2, rel=1e-12)


def test_keys_of_cross_attention_are_of_the_encoders_tokens():
    """Of m of them, keys and values of 8 elements are 2 m 8 8, and 6 tokens' scores and values 2 m 6 (8 + 8), two heads of 4."""
    short, long = (small(kv_heads=1, encoder={"layers": 1, "sequence": m}).transformer() for m in (5, 7))
    cross = short.layers[1].parts[1]
    assert long.part_flops(cross, 6) - short.part_flops(cross, 6) == 2 * (7 - 5) * (8 * 8 + 6 * (8 + 8))


def test_a_classifier_sees_one_token_an_image():
    few, many = (model("vit-l", image={"classes": classes}) for classes in (1, 1001))
    assert many.forward_flops() - few.forward_flops() == 2 * 1024 * 1000


# ------------------------------------------------------------------------------------------ structure


@pytest.mark.parametrize(("name", "cached"), [("deepseek-v3", 512 + 64), ("llama2-70b", 2 * 8 * 128), ("gpt3-175b", 2 * 12288)])
def test_what_a_token_leaves_in_the_cache_of_a_layer(name, cached):
    assert {part.attention.cached for layer in model(name).layers for part in layer.parts if part.attention} == {cached}


def test_layers_alike_are_one_group():
    layers = model("deepseek-v3").layers
    assert [(layer.name, layer.count, layer.parts[-1].type) for layer in layers] == [
        ("layers 0-2", 3, "mlp"),
        ("layers 3-60", 58, "experts"),
        ("mtp", 1, "head"),
    ]


def test_experts_of_every_second_layer():
    layers = small(layers=5, experts={"count": 4, "active": 1, "every": 2, "dense_layers": 2}).transformer().layers
    assert [(layer.name, layer.parts[-1].type) for layer in layers] == [("layers 0-2", "mlp"), ("layers 3", "experts"), ("layers 4", "mlp")]


def test_an_encoder_sees_all_tokens_and_a_decoder_those_before():
    encoder, decoder = model("t5-large").layers
    assert [part.attention.causal for part in encoder.parts if part.attention] == [False]
    assert [(part.attention.causal, part.attention.cross) for part in decoder.parts if part.attention] == [(True, False), (False, True)]
    assert (encoder.tokens, decoder.tokens) == (512, 114)


def test_norms_of_a_layer_are_shared_out():
    """Of 1, 2 and 4 RMS norms of 8 elements attention has 1, 1, 2 and the MLP 0, 1, 2."""
    vectors = [[part.vectors for part in small(norms=norms).transformer().layers[0].parts] for norms in (1, 2, 4)]
    assert vectors == [[8, 0], [8, 8], [16, 16]]


def test_a_model_is_described_once_whatever_its_sources():
    one, other = small(sources={"a": "b"}), small(sources={"c": "d"})
    assert hash(one) == hash(other)
    assert one != other
    assert one.transformer() is one.transformer()


def test_an_image_decides_the_sequence():
    assert preset("vit-l").sequence == 14**2 + 1
    assert preset("vit-l", image={"size": 448, "class_token": False}).sequence == 28**2


# ------------------------------------------------------------------------------------------ fine-tuning


@pytest.mark.parametrize(
    ("frozen", "trained"),
    [
        ((), ["embedding", "attention", "mlp", "head"]),
        (("embedding", "attention"), ["mlp", "head"]),
        (("layers:0-3",), ["embedding", "head"]),
        (("mlp", "layers:0-2", "embedding", "head"), ["one attention"]),
    ],
)
def test_what_is_not_frozen_is_trained(frozen, trained):
    described = small().transformer()
    attention, mlp = (part.parameters for part in described.layers[0].parts)
    sizes = {"embedding": 40 * 8, "attention": 4 * attention, "one attention": attention, "mlp": 4 * mlp, "head": 8 + 8 * 40}
    assert trainable_parameters(described, frozen_layers(frozen, described)) == sum(sizes[name] for name in trained)


def test_the_table_of_a_tied_head_is_the_embeddings():
    described = small(tied_embeddings=True).transformer()
    assert trainable_parameters(described, frozen_layers(("embedding", "layers:0-3"), described)) == 8


def test_layers_of_an_encoder_are_counted_first():
    described = small(encoder={"layers": 2, "sequence": 5}).transformer()
    frozen = frozen_layers(("layers:0-1",), described)
    left = trainable_parameters(described, frozen)
    assert frozen_layers(("layers:0", "layers:1"), described) == frozen
    assert described.parameters - left == 2 * described.layers[0].parameters
    assert (frozen.covers("mlp", 1), frozen.covers("mlp", 2)) == (True, False)


# ------------------------------------------------------------------------------------------ wrong files

IMAGE = {"size": 224, "patch": 16, "classes": 10}
EXPERTS = {"count": 4, "active": 2}
WRONG = [
    ({"heads": 3}, "heads", "hidden = 8 is not a multiple of heads = 3; give head_dim"),
    ({"heads": 4, "kv_heads": 3}, "kv_heads", "heads = 4 is not a multiple of kv_heads = 3"),
    ({"dtype": "int8"}, "dtype", "training in integers is not modelled; train in fp8, bf16 or fp16, or give a service's task"),
    ({"vocabulary": None}, "", "the key 'vocabulary' is missing; only a model with `image` has none"),
    ({"head": "classifier"}, "head", "a classifier needs `image` with its `classes`"),
    ({"image": IMAGE}, "vocabulary", "a model of images has none, got 40"),
    ({"image": {**IMAGE, "patch": 15}}, "image", "size = 224 is not a multiple of patch = 15"),
    ({"image": IMAGE, "vocabulary": None, "head": "language"}, "head", "a language head needs a vocabulary; a model of images has the head classifier or none"),
    ({"image": IMAGE, "vocabulary": None, "head": "none"}, "sequence", "an image has 197 tokens, got sequence = 6; leave it out"),
    ({"positions": "learned", "max_positions": 5}, "max_positions", "6 tokens need as many learned positions, there are 5"),
    ({"positions": "learned", "max_positions": 9, "prompt": 8, "output": 4}, "max_positions", "12 tokens need as many learned positions, there are 9"),
    ({"experts": {**EXPERTS, "active": 5}}, "experts", "a token cannot pass 5 of 4 experts"),
    ({"experts": {**EXPERTS, "capacity": 1.25, "uneven": 1.5}}, "experts", "a capacity fills all experts up alike; leave out `uneven` or `capacity`"),
    ({"experts": {**EXPERTS, "dense_layers": 4}}, "experts", "dense_layers = 4 and every = 1 leave no layer with experts"),
    ({"experts": {**EXPERTS, "dense_layers": 4}, "ssm": {"heads": 4, "head_dim": 4, "state": 16, "pattern": ["ssm", "attention"]}}, "experts", "dense_layers = 4 and every = 1 leave no layer with experts"),
    ({"experts": {"count": 4}}, "experts", "the key 'active' is missing: experts that a token passes"),
    ({"window": {"size": 4, "chunked": True}, "causal": False, "head": "none"}, "window.chunked", "chunks are modelled for causal decoders only; leave it out"),
    ({"window": 4, "encoder": {"layers": 1, "sequence": 5}}, "window", "windows are supported for models without an encoder before the layers only; leave it out"),
    ({"window": {"size": 4, "pattern": "global"}}, "window", "the pattern makes none of 4 layers local; leave it out"),
    ({"window": {"size": 4, "global_rotary": False}, "positions": "alibi"}, "window", "global_rotary = false needs positions: rotary, got alibi"),
    ({"window": 0}, "window", "expected more than 0, got 0"),
    ({"window": {"size": 4, "pattern": "local, full"}}, "window.pattern", "expected one of local, global, got 'full'"),
    ({"hiden": 8}, "hiden", "unknown key 'hiden'; did you mean 'hidden'?"),
    ({"layers": 0}, "layers", "expected more than 0, got 0"),
    ({"positions": "rotery"}, "positions", "expected one of rotary, learned, alibi, relative, none, got 'rotery'; did you mean 'rotary'?"),
    ({"frozen": ["atention"]}, "frozen[0]", "expected one of embedding, attention, ssm, mlp, experts, head, or layers:first-last; got 'atention'; did you mean 'attention'?"),
    ({"frozen": ["mlp", "layers:two"]}, "frozen[1]", "expected one of embedding, attention, ssm, mlp, experts, head, or layers:first-last; got 'layers:two'"),
    ({"frozen": ["experts"]}, "frozen", "the model has no layers of type 'experts'; it has attention, embedding, head, mlp"),
    ({"frozen": ["layers:2-4"]}, "frozen", "layers:2-4 is not a range of the model's layers 0-3"),
    ({"frozen": ["layers:3-1"]}, "frozen", "layers:3-1 is not a range of the model's layers 0-3"),
    ({"frozen": ["layers:0-3", "embedding", "head"]}, "frozen", "layers:0-3, embedding, head is the whole model; nothing is left to train"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "path", "message"), WRONG)
def test_wrong_models_are_told_exactly(problems, changes, path, message):
    assert problems(small, **changes) == [(path, message)]


def test_a_wrong_image_is_not_told_as_a_missing_sequence():
    data = {key: value for key, value in SMALL.items() if key not in ("sequence", "vocabulary")} | {"image": {"size": "big", "patch": 16}}
    with pytest.raises(SpecError) as caught:
        files.validate(MODELS["transformer"], Document(file="own", data=data))
    assert [problem.path for problem in caught.value.problems] == ["image.size"]


@pytest.mark.parametrize(("active", "accepted"), [(1, True), (8, True), (9, False)])
def test_a_token_passes_all_experts_at_most(active, accepted):
    data = {"model": "mixtral-8x7b", "experts": {"count": 8, "active": active}}
    if accepted:
        assert crossflow.load({"system": "dgx-h100", "workload": data, "strategy": "tp8"}).workload.experts.active == active
    else:
        with pytest.raises(SpecError, match="a token cannot pass 9 of 8 experts"):
            crossflow.load({"system": "dgx-h100", "workload": data, "strategy": "tp8"})
