"""Strategies: the paper's notation, named degrees, and what is wrong with them."""

import itertools

import pytest

from crossflow import from_dict
from crossflow.base.errors import CrossflowError, StrategyError
from crossflow.parallel.strategy.graphs import graph_mesh

NOTATIONS = [
    "d1",
    "d512",
    "p4",
    "d8-p2",
    "CR-8",
    "CR-8-d64",
    "CR-8-p2",
    "CR-8-d64-p2",
    "RC-16-4",
    "RC-16-4-d8",
    "RC-1-4-p2",
    "RC-16-4-d8-p2",
]


@pytest.mark.parametrize("text", NOTATIONS)
def test_notation_round_trip(text):
    assert str(graph_mesh(text)) == text


def test_every_combination_round_trips_and_counts_its_devices():
    for kp1, kp2, dp, lp in itertools.product((1, 2, 5), repeat=4):
        strategy = graph_mesh(f"RC-{kp1}-{kp2}-d{dp}-p{lp}")
        assert str(strategy) == f"RC-{kp1}-{kp2}-d{dp}-p{lp}"
        assert strategy.devices == kp1 * kp2 * dp * lp
        assert graph_mesh(f"CR-{kp1}-d{dp}-p{lp}").devices == kp1 * dp * lp


@pytest.mark.parametrize(
    ("degrees", "text"),
    [
        ({"dp": 512}, "d512"),
        ({"kernel": "RC", "kp1": 16, "kp2": 4, "dp": 8, "pp": 2}, "RC-16-4-d8-p2"),
        ({"kernel": "CR", "kp1": 8, "dp": 64, "lp": 2}, "CR-8-d64-p2"),
        ({"kp2": 4}, "RC-1-4"),
        ({"kernel": "CR", "kp1": 8, "kp2": 1}, "CR-8"),
        ({}, "d1"),
    ],
)
def test_named_degrees_are_the_notation(degrees, text):
    assert str(graph_mesh(degrees)) == text
    assert graph_mesh(degrees).devices == graph_mesh(text).devices


def test_roles_of_the_axes():
    rc, cr = graph_mesh("RC-16-4-d8-p2"), graph_mesh("CR-8-d64")
    assert [rc.degree(role) for role in ("rows", "columns", "inner", "batch", "layers")] == [16, 4, 1, 8, 2]
    assert [cr.degree(role) for role in ("rows", "columns", "inner", "batch", "layers")] == [1, 1, 8, 64, 1]
    assert rc.degree("rows", "batch") == 128


def test_axes_of_one_device_have_no_name():
    assert graph_mesh("RC-1-4-d1").names("rows", "columns", "batch") == ("kp2",)


OTHERS = {
    "": "", " ": "", "x8": "x8", "rc-2-2": "rc", "RC-2": "RC", "RC-2-2-2": "2", "CR-2-2": "2", "d": "d", "d8-": "", "-d8": "", "-p2": "",
    "d8p2": "d8p2", "d-8": "d", "RC--2": "RC", "d1.5": "d1.5", "d\uff11": "d\uff11",
}  # fmt: skip


@pytest.mark.parametrize(("text", "part"), OTHERS.items())
def test_other_notation_is_refused(text, part, exactly):
    forms = "RC-KP1-KP2-dDP-pLP, CR-KP1-dDP-pLP, a part of these such as d512, or degrees such as tp8-dp4-pp2"
    sentence = f"strategy '{text}': '{part}' is not understood; write {forms}"
    with pytest.raises(StrategyError, match=exactly(sentence)):
        graph_mesh(text)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("d0", "strategy: dp must be a positive whole number, got 0"),
        ("RC-0-2", "strategy: kp1 must be a positive whole number, got 0"),
        ({"dp": 0}, "strategy: dp must be a positive whole number, got 0"),
        (
            {"kernal": "CR"},
            "strategy: unknown key 'kernal'; did you mean 'kernel'?; known: cp, dp, kernel, kp1, kp2, lp, placement, pp, tp",
        ),
        ({"dp": "8"}, "strategy: dp must be a positive whole number, got '8'"),
        ({"dp": 2.0}, "strategy: dp must be a positive whole number, got 2.0; write 2"),
        ({"dp": True}, "strategy: dp must be a positive whole number, got True"),
        ({"pp": 2, "lp": 2}, "strategy: pp and lp name the same degree; give one of them"),
        ({"kernel": "RR", "kp1": 2}, "strategy: kernel must be one of RC, CR, got 'RR'"),
        ({"kernel": "CR", "kp1": 2, "kp2": 2}, "strategy: CR cuts one dimension, kp1; kp2 = 2 has no meaning with it"),
    ],
)
def test_wrong_degrees_are_told_exactly(given, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(sentence)):
        graph_mesh(given)


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ({}, "strategy d1 needs one device, but the system has 8; dp8 beside it takes all of them"),
        ("legal", "'legal' stands for all that fit; it belongs in the space of a study, a scenario has one strategy"),
        ({"denze": "ddp"}, "unknown key 'denze'; did you mean 'dense'?; known: dp, ep, kernel, kp1, kp2, placement, tp, zero"),
    ],
)
def test_a_strategy_of_a_scenario_that_says_nothing_it_can_use(strategy, sentence):
    for model in ("lstm-16k", "dlrm-a") if "denze" not in strategy else ("dlrm-a",):
        with pytest.raises(CrossflowError) as caught:
            from_dict({"system": {"template": "dgx-h100", "nodes": 1}, "workload": {"model": model}, "strategy": strategy})
        assert str(caught.value).removeprefix("scenario: ").removeprefix("strategy: ") == sentence
