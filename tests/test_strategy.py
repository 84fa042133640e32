"""Strategies: the paper's notation, named degrees, and what is wrong with them."""

import itertools

import pytest

from crossflow.errors import StrategyError
from crossflow.strategy.mesh import parse_strategy

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
    assert str(parse_strategy(text)) == text


def test_every_combination_round_trips_and_counts_its_devices():
    for kp1, kp2, dp, lp in itertools.product((1, 2, 5), repeat=4):
        strategy = parse_strategy(f"RC-{kp1}-{kp2}-d{dp}-p{lp}")
        assert str(strategy) == f"RC-{kp1}-{kp2}-d{dp}-p{lp}"
        assert strategy.devices == kp1 * kp2 * dp * lp
        assert parse_strategy(f"CR-{kp1}-d{dp}-p{lp}").devices == kp1 * dp * lp


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
    assert str(parse_strategy(degrees)) == text
    assert parse_strategy(degrees).devices == parse_strategy(text).devices


def test_roles_of_the_axes():
    rc, cr = parse_strategy("RC-16-4-d8-p2"), parse_strategy("CR-8-d64")
    assert [rc.degree(role) for role in ("rows", "columns", "inner", "batch", "layers")] == [16, 4, 1, 8, 2]
    assert [cr.degree(role) for role in ("rows", "columns", "inner", "batch", "layers")] == [1, 1, 8, 64, 1]
    assert rc.degree("rows", "batch") == 128


def test_axes_of_one_device_have_no_name():
    assert parse_strategy("RC-1-4-d1").names("rows", "columns", "batch") == ("kp2",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x8",
        "rc-2-2",
        "RC-2",
        "RC-2-2-2",
        "CR-2-2",
        "d",
        "d8-",
        "-d8",
        "-p2",
        "p2-d8",
        "d8p2",
        "d-8",
        "RC--2",
        "d1.5",
        "d\uff11",
    ],
)
def test_other_notation_is_refused(text, exactly):
    sentence = f"strategy '{text}' is not of the form RC-KP1-KP2-dDP-pLP, CR-KP1-dDP-pLP, or a part of these such as d512"
    with pytest.raises(StrategyError, match=exactly(sentence)):
        parse_strategy(text)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("d0", "strategy 'd0': every degree must be at least 1"),
        ("RC-0-2", "strategy 'RC-0-2': every degree must be at least 1"),
        ({"dp": 0}, "strategy '{'dp': 0}': every degree must be at least 1"),
        (
            {"kernal": "CR"},
            "strategy: unknown degree 'kernal'; did you mean 'kernel'?; known: kernel, kp1, kp2, dp, pp, lp",
        ),
        ({"dp": "8"}, "strategy: dp must be a positive whole number, got '8'"),
        ({"dp": 2.0}, "strategy: dp must be a positive whole number, got 2.0"),
        ({"dp": True}, "strategy: dp must be a positive whole number, got True"),
        ({"pp": 2, "lp": 2}, "strategy: pp and lp name the same degree; give one of them"),
        ({"kernel": "RR", "kp1": 2}, "strategy: kernel must be RC or CR, got 'RR'"),
        ({"kernel": "CR", "kp1": 2, "kp2": 2}, "strategy: CR cuts one dimension, kp1; kp2 = 2 has no meaning with it"),
    ],
)
def test_wrong_degrees_are_told_exactly(given, sentence, exactly):
    with pytest.raises(StrategyError, match=exactly(sentence)):
        parse_strategy(given)
