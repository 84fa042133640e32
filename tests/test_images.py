"""Images in the prompts of a service: the tower that encodes them, on the devices that read prompts or on encoders of their own."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import crossflow
from crossflow.answers.evaluation.encoding import encoder_pool
from crossflow.answers.evaluation.replaying import replayed_scenario, tallied_scenario
from crossflow.answers.explanation.designs import Design
from crossflow.answers.explanation.moves import moves
from crossflow.answers.planning.asking import serve
from crossflow.answers.scenario import from_dict, requests_of
from crossflow.answers.steps import own_step
from crossflow.base.errors import CrossflowError, SpecError, StrategyError
from crossflow.edges.trace.requests import write_requests
from crossflow.engine.runs.towers import encoded
from crossflow.engine.runs.transformer import transformer_step
from crossflow.engine.service.encoders import Encoders, EncoderTimes
from crossflow.parallel.strategy.layout import Layout
from crossflow.parallel.strategy.plan import Plan
from crossflow.workload.huggingface import tower_of
from crossflow.workload.towers import towers

VIT = 630_764_800  # parameters of ViT-H without its classifier
MODEL = {"model": "llama3-8b", "task": "serving"}
STEADY = {**MODEL, "sequence": 2048, "output": 64, "global_batch": 16}
IMAGES = {"model": "vit-h", "count": 4, "tokens": 256}


def of(serving=None, strategy="tp2-dp4", workload=STEADY, **more):
    return from_dict(
        {"name": "service", "system": "dgx-h100", "workload": {**workload, "serving": serving or {}}, "strategy": strategy, **more}
    )


def asked(serving, *, arrivals=None, count=24, strategy="tp2-dp4", **more):
    requests = {"arrivals": arrivals or {"law": "poisson", "rate": "40 1/s"}, "count": count, "prompt": 2048, "output": 16}
    return of(serving, strategy, MODEL, requests=requests, **more)


def alone(images, tp):
    """A step of the tower for so many images, on so many devices, priced by itself."""
    given = {"system": {"template": "dgx-h100", "devices": tp}, "workload": {"model": "vit-h", "task": "forward", "global_batch": images},
        "strategy": f"tp{tp}-mb{images}", "software": "vllm"}  # fmt: skip
    return crossflow.evaluate(from_dict(given)).step_time[0]


# ------------------------------------------------------------------------------------------ on the devices that read


@pytest.mark.cases(1)
@pytest.mark.parametrize("images", [1, 4, 7])
def test_a_step_is_longer_by_that_of_the_tower_alone(images):
    job = own_step(of({"images": IMAGES})).job
    machine, layout = own_step(of({"images": IMAGES})).machine, Layout.of([Plan(tp=2)], np.ones(1), 8)
    plain = transformer_step(job, layout, machine)
    found = encoded(transformer_step, plain, job, layout, machine, images / job.tower.often)
    assert found.total[0] - plain.total[0] == pytest.approx(alone(images, 2), rel=1e-9)
    assert found.flops[0] > plain.flops[0]
    assert found.model_flops[0] == plain.model_flops[0]  # of the model of words


def test_a_step_with_a_part_of_an_image_stands_for_several_of_which_some_have_one():
    job = own_step(of({"images": IMAGES})).job
    machine, layout = own_step(of({"images": IMAGES})).machine, Layout.of([Plan(tp=2)], np.ones(1), 8)
    plain = transformer_step(job, layout, machine)
    quarter, one = (encoded(transformer_step, plain, job, layout, machine, n / job.tower.often) for n in (0.25, 1.0))
    assert quarter.total[0] - plain.total[0] == pytest.approx(0.25 * (one.total[0] - plain.total[0]), rel=1e-9)


def test_devices_hold_the_tower_divided_or_whole():
    weights = [
        crossflow.evaluate(of(serving)).memory["weights"][0] for serving in ({}, {"images": IMAGES}, {"images": {**IMAGES, "tp": 1}})
    ]
    assert weights[1] - weights[0] == pytest.approx(2.0 * VIT / 2, rel=0.01)
    assert weights[2] - weights[0] == pytest.approx(2.0 * VIT, rel=0.01)


def test_more_images_take_longer_and_none_are_the_limit_of_few():
    first = [crossflow.evaluate(of({"images": {**IMAGES, "count": n}})).serving["ttft_s"][0] for n in (1e-9, 1.0, 4.0, 8.0)]
    assert first == sorted(first)
    plain = crossflow.evaluate(of()).serving["ttft_s"][0]
    assert first[0] == pytest.approx(plain, rel=1e-6)
    assert first[2] > 1.01 * plain


@pytest.mark.parametrize(
    ("serving", "tried"),
    [
        ({"images": IMAGES}, {1}),
        ({"images": {**IMAGES, "tp": 1}}, {2}),
        ({"images": IMAGES, "prefill": {"strategy": "tp4", "workers": 1}}, {1}),
        ({"images": {**IMAGES, "tp": 2}, "prefill": {"strategy": "tp4", "workers": 1}}, {1, 4}),
        ({}, set()),
    ],
)
def test_how_devices_share_an_image_can_be_decided(serving, tried):
    found = moves(Design(settings={}, scenario=of(serving), quantities={}))
    assert {move.settings[path] for move in found for path in move.settings if path == "workload.serving.images.tp"} == tried


def test_more_encoders_are_compared_by_sweeps():
    few = {"images": {**IMAGES, "count": 8, "encode": {"strategy": "tp1", "workers": 1}}}
    scenario = asked(few, arrivals={"law": "poisson", "rate": "200 1/s"})
    found = crossflow.evaluate(scenario, {"workload.serving.images.encode.workers": [1, 2]})
    assert found.devices.tolist() == [9, 10]
    assert found.serving["ttft_s"][0] > 1.05 * found.serving["ttft_s"][1]


def test_workers_for_prompts_encode_them_and_replicas_do_not():
    apart = {"prefill": {"strategy": "tp2", "workers": 2}}
    plain, both = (crossflow.evaluate(of({**apart, **more})) for more in ({}, {"images": IMAGES}))
    assert both.serving["ttft_s"][0] > plain.serving["ttft_s"][0]
    assert both.memory["weights"][0] == plain.memory["weights"][0]


@pytest.mark.cases(1)
@pytest.mark.parametrize("apart", [{}, {"prefill": {"strategy": "tp2", "workers": 2}}])
def test_replays_encode_where_prompts_are_read(apart):
    plain, both = (serve(asked({**apart, **more})).to_dict() for more in ({}, {"images": IMAGES}))
    assert both["ttft_s"]["mean"] > plain["ttft_s"]["mean"]
    assert both["energy_j"] > plain["energy_j"]
    assert both["encoders"] is plain["encoders"] is None


def test_a_point_of_a_batch_is_as_the_point_by_itself():
    scenario = of({"images": IMAGES})
    counts = [0.5, 1.0, 4.0]
    many = crossflow.evaluate(scenario, {"workload.serving.images.count": counts})
    each = [crossflow.evaluate(of({"images": {**IMAGES, "count": n}})) for n in counts]
    np.testing.assert_allclose(many.serving["ttft_s"], [one.serving["ttft_s"][0] for one in each], rtol=1e-12)


# ------------------------------------------------------------------------------------------ towers of released models


CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
    },
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "out_hidden_size": 1024, "num_position_embeddings": 2304,
    },
}  # fmt: skip
TEXT = {key: value for key, value in CONFIG.items() if key != "vision_config"}

OF_WINDOWS = {"intermediate_size": 3420, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}  # config.json of Qwen2.5-VL


@pytest.fixture
def published(tmp_path):
    def of(config, **images):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        workload = {"model": str(path), "task": "serving", "sequence": 4096, "output": 64, "global_batch": 8, "serving": {"images": images}}
        return from_dict({"system": "dgx-h100", "workload": workload, "strategy": "tp2-dp4"})

    return of


def test_a_config_says_its_tower_but_for_the_size_of_an_image(published):
    images = published(CONFIG, tower={"size": 1000}).workload.serving.images
    assert images.each == (1000 // 32) ** 2 == 961
    tower = images.described
    assert (tower.layers, tower.hidden, tower.heads, tower.ffn, tower.image.tokens) == (24, 1024, 16, 4096, 4 * 961)
    assert tower.transformer().parameters == pytest.approx(24 * (4 * 1024**2 + 2 * 1024 * 4096), rel=0.02)


def test_a_tower_of_one_size_needs_nothing_more():
    """Gemma 3: 896 pixels in patches of 14 become 256 tokens (its config.json)."""
    tower = tower_of(str(Path(__file__).parent / "data" / "huggingface" / "gemma-3-27b.json"))
    assert (tower["size"], tower["patch"], tower["merge"]) == (896, 14, 4)


@pytest.mark.parametrize(
    ("name", "part", "size", "tokens", "expected"),
    [
        ("llama-4-scout", {"image_size": 336, "patch_size": 14, "num_attention_heads": 16, "intermediate_size": 5632,
            "pixel_shuffle_ratio": 0.5}, None, 144, {"merge": 2}),  # a tile of Llama 4
        ("qwen2-vl-7b", {"mlp_ratio": 4, "spatial_merge_size": 2}, 1008, 1296, {"ffn": 5120}),
        ("qwen2.5-vl-7b", {**OF_WINDOWS, "spatial_merge_size": 2}, 1008, 1296, {"window": 64, "pattern": ["local"] * 7 + ["global"]}),
        ("qwen2.5-vl-7b", {**OF_WINDOWS, "fullatt_block_indexes": None}, 1008, 5184, {"merge": 1}),
    ],
)  # fmt: skip
def test_a_config_says_how_patches_merge_and_what_they_see(published, tmp_path, name, part, size, tokens, expected):
    config = json.loads((Path(__file__).parent / "data" / "huggingface" / f"{name}.json").read_text())
    config["vision_config"] |= part
    images = published(config, tower={} if size is None else {"size": size}, count=0.5).workload.serving.images
    assert images.each == tokens
    found = tower_of(str(tmp_path / "config.json"))
    assert {key: found[key] for key in expected} == expected
    assert ("window" in found) == ("window" in expected)


def test_the_tower_of_glm_is_gated_and_as_wide_as_its_output():
    """24 layers of 4 x 1536 x 1536 and 3 x 1536 x 4096 parameters; `intermediate_size` is the projector's (transformers, Glm4vMoe)."""
    tower = tower_of(str(Path(__file__).parent / "data" / "huggingface" / "glm-4.5v.json"))
    assert (tower["gated"], tower["biases"], tower["ffn"]) == (True, False, 4096)


def test_heads_of_the_tower_of_kimi_k3_are_wider_than_its_layers(published):
    """12 heads of 128 elements on 1,024: they were taken as 1024 / 12, and refused."""
    part = {"vt_hidden_size": 1024, "vt_intermediate_size": 4096, "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27,
            "qkv_hidden_size": 1536, "patch_size": 14, "merge_kernel_size": [2, 2]}  # fmt: skip
    config = {**CONFIG, "vision_config": {**part, "model_type": "kimi_k3"}}
    tower = published(config, tower={"size": 1008}).workload.serving.images.described
    assert (tower.heads, tower.head_dim, tower.gated, tower.biases) == (12, 128, False, False)
    layers = 27 * (4 * 1024 * 1536 + 2 * 1024 * 4096)
    assert tower.transformer().parameters == pytest.approx(layers, rel=0.02)
    del part["qkv_hidden_size"]
    with pytest.raises(SpecError, match="hidden = 1024 is not a multiple of heads = 12; give others, or head_dim"):
        published({**CONFIG, "vision_config": {**part, "model_type": "kimi_k3"}}, tower={"size": 1008})


@pytest.mark.parametrize("mlp", [{"gated": True}, {"gated": False}, {"ffn": 4096}])
def test_of_a_tower_of_an_unknown_kind_its_mlp_must_be_given(published, mlp):
    novel = {**CONFIG, "vision_config": {**CONFIG["vision_config"], "model_type": "novel"}}
    with pytest.raises(SpecError, match=r"images\.tower\.gated: config\.json has a tower of a kind that is not known; say whether its MLP"):
        published(novel, tower={"size": 1024})
    assert published(novel, tower={"size": 1024, **mlp}).workload.serving.images.tower.gated == mlp.get("gated", False)


def test_a_ratio_that_is_no_whole_number_gives_the_tower_that_is_counted(published, tmp_path):
    """4.36 x 1280 = 5580.8: of so many layers the count differs by two matrices of 461 elements more than 4 x 1280 a row."""
    config = json.loads((Path(__file__).parent / "data" / "huggingface" / "qwen2-vl-7b.json").read_text())
    counted = []
    for ratio in (4, 4.36):
        config["vision_config"] |= {"mlp_ratio": ratio, "spatial_merge_size": 2, "patch_size": 14}
        counted.append(next(towers(config)).parameters)
        ffn = published(config, tower={"size": 1008}).workload.serving.images.described.ffn
    assert ffn == 5581
    assert counted[1] - counted[0] == config["vision_config"]["depth"] * (5581 - 5120) * (2 * 1280 + 1)


@pytest.mark.parametrize("odd", ["12", True, -3, 1.5, [], {}, float("inf")])
@pytest.mark.parametrize("name", ["gemma-3-27b", "glm-4.5v", "llama-4-scout", "qwen2-vl-7b", "qwen3-vl-8b"])
def test_odd_fields_of_a_tower_are_as_if_they_were_not_there(name, odd):
    config = json.loads((Path(__file__).parent / "data" / "huggingface" / f"{name}.json").read_text())
    part = config["vision_config"]
    for key in [key for key in part if key != "model_type"] + ["mlp_ratio"]:
        told = [*towers({**config, "vision_config": {**part, key: odd}}, ("text_config",) if "text_config" in config else ())]
        assert [one.name for one in told] == ["vision tower"]


@pytest.mark.parametrize("heads", [{}, {"heads": 16}])
def test_images_that_layers_attend_to_are_no_tokens_of_prompts(published, heads):
    config = json.loads((Path(__file__).parent / "data" / "huggingface" / "llama-3.2-11b-vision.json").read_text())
    with pytest.raises(SpecError, match="serving is modelled without layers with cross; predict this model with task: prefill"):
        published(config, tower={"gated": False, **heads})


def test_windows_shorten_encoding_by_the_pairs_that_they_leave():
    """Of a layer 4 n^2 d operations are of pairs of patches; 64 of 5,184 patches leave next to none of them."""
    tower = {"size": 1008, "patch": 14, "merge": 2, "layers": 8, "hidden": 1280, "heads": 16, "ffn": 5120}
    flops = []
    for windows in ({}, {"window": 64, "pattern": ["local", "global"]}, {"window": 64}):
        own = own_step(of({"images": {"tower": {**tower, **windows}}}, "tp8"))
        job, layout = own.job, Layout.of([Plan(tp=8)], np.ones(1), 8)
        plain = transformer_step(job, layout, own.machine)
        flops.append(encoded(transformer_step, plain, job, layout, own.machine, 1.0 / job.tower.often).flops[0] - plain.flops[0])
    assert flops[0] - flops[2] == pytest.approx(8 * 4 * 1280 * 5184 * (5184 - 64), rel=1e-3)
    assert flops[1] == pytest.approx(0.5 * (flops[0] + flops[2]), rel=1e-6)


def test_a_file_of_windows_may_be_asked_without_any(published):
    config = json.loads((Path(__file__).parent / "data" / "huggingface" / "qwen2.5-vl-7b.json").read_text())
    config["vision_config"] |= {
        "intermediate_size": 3420,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }
    assert published(config, tower={"size": 1008, "window": None}).workload.serving.images.described.window is None


def test_more_tokens_than_a_model_makes_of_an_image_are_told():
    told = "an image becomes 256 tokens of the prompt, and vit-h makes 197 of it"  # ViT-H/16 of 224 pixels, with its class token
    for images, expected in (({**IMAGES, "tokens": 196}, False), (IMAGES, True)):
        assert any(told in note for note in crossflow.predict(of({"images": images})).notes) == expected
        assert any(told in note for note in serve(asked({"images": images})).notes) == expected


def test_what_is_written_wins_over_what_the_file_says(published):
    images = published(CONFIG, tower={"size": 1024, "layers": 12}, tokens=256).workload.serving.images
    assert (images.described.layers, images.each) == (12, 256)


@pytest.mark.parametrize(
    ("config", "images", "sentence"),
    [
        (TEXT, {"tower": {"size": 1024}}, r"config\.json describes no model of images; name one"),
        (CONFIG, {"tower": {"patch": 16}}, "the key 'size' is missing"),
        (CONFIG, {"tower": {"size": 1024, "heads": 3}}, r"images\.tower: hidden = 1024 is not a multiple of heads = 3; give others"),
        (CONFIG, {"tower": {"size": 1024, "pattern": ["local"]}}, "local layers need a window, such as window: 64"),
        (CONFIG, {"tower": {"size": 16}}, "an image is smaller than what becomes one token"),
        (CONFIG, {"model": "vit-h"}, "a model says nothing of it; give it"),
    ],
)
def test_towers_that_cannot_be_are_told(published, config, images, sentence):
    with pytest.raises(SpecError, match=sentence):
        published(config, **images)


# ------------------------------------------------------------------------------------------ encoders of their own


def test_a_replay_has_so_many_encoders_at_most():
    scenario = asked({"images": {**IMAGES, "encode": {"strategy": "tp1", "workers": 10**9}}}, count=3)
    with pytest.raises(CrossflowError, match=r"images\.encode\.workers: a replay has at most 100,000 engines of a pool"):
        crossflow.serve(scenario)


def test_requests_wait_for_the_first_encoder_that_is_free():
    """Two encoders, 3 s for an image and 1 s on the way: requests at 0, 0, 1 and 10 s."""
    encoders = Encoders(EncoderTimes(count=2, images=1.0, times=(0.0, 3.0), sent=(0.0, 1.0)))
    assert [encoders.take(i, now) for i, now in enumerate((0.0, 0.0, 1.0, 10.0))] == [4.0, 4.0, 7.0, 14.0]
    assert (encoders.requests, encoders.waited) == ([0, 4], 2.0)


@pytest.mark.parametrize("mean", [0.25, 1.0, 1.5, 2.75])
def test_images_of_requests_have_their_mean(mean):
    known = EncoderTimes(count=1, images=mean, times=(), sent=())
    found = [known.of(i) for i in range(400)]
    assert sum(found) == 400 * mean
    assert set(found) <= {int(mean), int(mean) + 1}


def test_one_request_alone_waits_for_its_images_and_then_as_without_any():
    at_once = {"law": "deterministic", "rate": "0.01 1/s"}
    plain = serve(asked({}, arrivals=at_once, count=3)).to_dict()
    scenario = asked({"images": {**IMAGES, "encode": {"strategy": "tp1", "workers": 1}}}, arrivals=at_once, count=3)
    pool, apart = encoder_pool(scenario), serve(scenario).to_dict()
    assert pool.times.times[4] == pytest.approx(alone(4, 1), rel=1e-9)
    assert apart["ttft_s"]["mean"] - plain["ttft_s"]["mean"] == pytest.approx(pool.times.times[4] + pool.times.sent[4], rel=1e-9)
    assert apart["encoders"] == {"count": 1.0, "mean_wait_s": 0.0, "requests": 3.0,
        "utilisation": pytest.approx(3 * pool.times.times[4] / apart["span_s"])}  # fmt: skip


def test_more_encoders_never_answer_later_and_their_devices_count():
    first, scores = [], []
    for workers in (1, 2, 4):
        scenario = asked(
            {"images": {**IMAGES, "count": 8, "encode": {"strategy": "tp1", "workers": workers}}},
            arrivals={"law": "poisson", "rate": "200 1/s"},
        )
        first.append(serve(scenario).to_dict()["ttft_s"]["mean"])
        scores.append(crossflow.evaluate(scenario))
    assert first == sorted(first, reverse=True)
    assert first[0] > 1.05 * first[1]
    assert [score.devices[0] for score in scores] == [9, 10, 12]
    assert all(score.feasible[0] for score in scores)


def test_tokens_of_several_images_leave_an_encoder_as_those_of_one_with_as_many():
    """Three images of 256 tokens, or one of 768 for a device: as many bytes, and more than of one of 256."""
    few, large = (
        encoder_pool(asked({"images": {**IMAGES, "count": count, "tokens": each, "encode": {"strategy": "tp1", "workers": 1}}})).times.sent
        for count, each in ((3, 256), (1, 768))
    )
    assert few[3] == pytest.approx(large[1], rel=1e-12)
    assert 0.0 == few[0] < few[1] < few[2] < few[3]


def test_encoders_take_energy_and_rent():
    scenario = asked({"images": {**IMAGES, "encode": {"strategy": "tp1", "workers": 4}}})
    pool, figures = encoder_pool(scenario), serve(scenario).to_dict()
    requests = (0, 0, 0, 0, 24)
    least = 24 * pool.energies[4]
    assert least < pool.energy(requests, figures["span_s"]) < figures["energy_j"]
    assert pool.energy(requests, figures["span_s"]) - least == pytest.approx(
        pool.resting * (4 * figures["span_s"] - 24 * pool.times.times[4])
    )
    priced = {"system": {"template": "dgx-h100", "operation": {"price": "2 USD/h"}}}
    rents = [serve(asked({"images": {**IMAGES, "encode": {"workers": workers}}}, **priced)).to_dict()["cost"]["usd"] for workers in (2, 6)]
    assert rents[1] / rents[0] == pytest.approx((8 + 6) / (8 + 2), rel=0.02)  # the run is as long


@pytest.mark.cases(1)
@pytest.mark.parametrize("requests", [{}, {"users": {"number": 4, "think": "0.1 s"}}])
def test_power_over_time_is_the_energy_of_encoders_too(requests):
    given = {"count": 40, "prompt": 2048, "output": 16, **(requests or {"arrivals": {"law": "poisson", "rate": "40 1/s"}})}
    found = serve(of({"images": {**IMAGES, "count": 2.5, "encode": {"workers": 1}}}, workload=MODEL, requests=given))
    series = found.series
    assert (series["power_w"] * found.span / len(series["time_s"])).sum() == pytest.approx(found.energy, rel=1e-6)


def test_encoders_that_never_work_take_no_room():
    """Ten to the ninth encoders: three requests need three of them, and a fourth the first that is free again."""
    encoders = Encoders(EncoderTimes(count=10**9, images=1.0, times=(0.0, 3.0), sent=(0.0, 1.0)))
    assert [encoders.take(i, now) for i, now in enumerate((0.0, 0.0, 1.0, 3.5))] == [4.0, 4.0, 5.0, 7.5]
    assert len(encoders.free) == 3


def test_encoders_may_be_other_devices():
    images = {**IMAGES, "encode": {"workers": 2}}
    own, slower = (asked({"images": images}, system={"template": "dgx-h100", **pools}) for pools in ({}, {"pools": {"encode": "dgx-a100"}}))
    assert encoder_pool(slower).times.times[4] > 1.3 * encoder_pool(own).times.times[4]
    assert slower.fleet.endswith("2 devices of dgx-a100 for images")


def test_running_statistics_are_those_of_the_replay():
    scenario = asked({"images": {**IMAGES, "encode": {"workers": 1}}})
    trace = requests_of(scenario)
    whole, (_, tallied) = replayed_scenario(scenario, trace).found, tallied_scenario(scenario, trace)
    assert tallied.images == whole.images
    assert tallied.window[1] == pytest.approx(whole.window[1])
    assert serve(scenario, stream=True).energy == pytest.approx(serve(scenario).energy, rel=1e-9)


def test_a_trace_has_a_row_for_each_encoder_that_works(tmp_path):
    found = serve(asked({"images": {**IMAGES, "count": 1.5, "encode": {"workers": 3}}}, arrivals={"law": "poisson", "rate": "400 1/s"}))
    write_requests(found, path := tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    process = next(one["pid"] for one in events if one["ph"] == "M" and one["args"]["name"] == "encoders of images")
    assert process not in {one["pid"] for one in events if one["ph"] == "C"}
    slices = [one for one in events if one["ph"] == "X" and one["pid"] == process]
    assert {one["tid"] for one in slices} == {1, 2, 3}
    assert [one["args"]["images"] for one in sorted(slices, key=lambda one: one["args"]["request"])] == [1, 2] * 12
    busy = sum(one["dur"] for one in slices) * 1e-6
    assert busy == pytest.approx(found.encoders["utilisation"] * 3 * found.span, rel=1e-3)
    for row in (1, 2, 3):
        spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in slices if one["tid"] == row)
        assert all(end <= start + 0.01 for (_, end), (start, _) in itertools.pairwise(spans))


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        ({**IMAGES, "count": 9}, "count x tokens = 9 x 256 are more than the 2048 tokens of a prompt"),
        ({**IMAGES, "model": "llama3-8b"}, "expected a model that reads images, such as vit-l, got llama3-8b"),
        ({**IMAGES, "model": "vit-x"}, "vit-x"),
        ({**IMAGES, "tp": 3}, "3 devices work on one image"),
        ({**IMAGES, "encode": {"workers": 2}}, "a steady state knows no queue of images; give requests"),
        ({**IMAGES, "tp": 1, "encode": {"workers": 2}}, "the strategy of encode says how encoders divide"),
        ({**IMAGES, "encode": {"strategy": "dp2", "workers": 2}}, "divides the vision model by tp only"),
        ({**IMAGES, "encode": {"strategy": "tp3", "workers": 2}}, "serving.images.encode.strategy"),
        ({"count": 2}, "give the name of a model of images, such as vit-l, or what it is as tower"),
    ],
)
def test_images_that_cannot_be_are_told(images, sentence):
    with pytest.raises((SpecError, StrategyError, CrossflowError), match=sentence):
        crossflow.evaluate(of({"images": images}))


def test_only_services_have_images_and_a_pool_of_encoders_needs_some():
    with pytest.raises(SpecError, match=r"serving\.images: only task: serving has it"):
        of({"images": IMAGES}, workload={**STEADY, "task": "decode"})
    with pytest.raises(SpecError, match=r"system\.pools\.encode: no engines run on it"):
        of({"images": IMAGES}, system={"template": "dgx-h100", "pools": {"encode": "dgx-a100"}})


def test_a_shared_network_and_encoders_of_their_own_do_not_go_together():
    congestion = {"network": {"inter": {"congestion": {"jobs": []}}}}
    with pytest.raises(SpecError, match="what images from encoders of their own lose to others is not known"):
        asked({"images": {**IMAGES, "encode": {"workers": 2}}}, system={"template": "h100-ib-cluster", "nodes": 1, **congestion})


def test_fleets_count_encoders_and_compare_their_numbers():
    requests = {"arrivals": {"law": "poisson", "rate": "60 1/s"}, "count": 48, "prompt": 2560, "output": 16, "targets": {"ttft": "0.6 s"}}
    system = {"template": "dgx-h100", "devices": 16, "operation": {"price": "2 USD/h"}}

    def fleets(images, **space):
        scenario = of({"images": {**IMAGES, "count": 8, **images}}, "tp1-dp16", MODEL, system=system, requests=requests)
        return crossflow.plan(scenario, space={"strategy": ["tp1"], **space}).fleets

    (fixed,) = fleets({"encode": {"workers": 3}})
    assert (fixed.encoders, fixed.devices) == (3, fixed.writers + 3)
    assert fixed.usd_per_hour == pytest.approx(2 * fixed.devices)
    assert fixed.name.endswith(", encoders 3")
    again = serve(fixed.scenario).to_dict()
    assert again["attained"] == fixed.figures["attained"]
    assert again["encoders"]["count"] == fixed.to_dict()["encoders"] == 3
    many = fleets({"encode": {"workers": 1}}, **{"workload.serving.images.encode.workers": [1, 3]})
    assert sorted(one.encoders for one in many) == [1, 3]
    assert [one.usd_per_hour for one in many] == sorted(one.usd_per_hour for one in many)
    assert next(one for one in many if one.encoders == 3).usd_per_hour == fixed.usd_per_hour
