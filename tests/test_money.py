"""Money as people write it: each text is answered by one that is read."""

import re
import shlex

import pytest

from crossflow import CrossflowError, compare
from crossflow.__main__ import main
from crossflow.base.units import parse

WRITTEN = {
    "$2/hour": 2.0, "2 $/h": 2.0, "2$": 2.0, "USD 2.5": 2.5, "US$3.1/hr": 3.1, "2.2 dollars an hour": 2.2, "$1,500/hour": 1500.0,
    "$2/GPU-hour": 2.0, "$2 per gpu per hour": 2.0, "$48/day": 2.0, "2": 2.0,
}  # fmt: skip


@pytest.mark.parametrize(("text", "dollars"), WRITTEN.items())
def test_rent_in_other_words_is_answered_by_a_text_that_means_it(text, dollars):
    with pytest.raises(ValueError, match=r"; write '") as error:
        parse(text, "USD/s")
    assert parse(re.search(r"write '(.*)'", str(error.value))[1], "USD/s") * 3600.0 == pytest.approx(dollars)


@pytest.mark.parametrize(
    ("text", "unit", "sentence"),
    [
        ("€2/hour", "USD/s", "prices are in USD: convert it"), ("2 EUR/h", "USD/s", "prices are in USD: convert it"),
        ("/hour", "USD/s", "a shell takes $ and the digit after it away: write '2 USD/hour'"),
        ("$0.08/kWh", "USD/J", "write '0.08 USD/kWh'"), ("0.08", "USD/J", "got the bare number 0.08; write the unit"),
        ("5 W", "USD/s", "'W' is not a unit of USD/s"), ("$80", "B", "expected a quantity in B, got '$80'"),
    ],
)  # fmt: skip
def test_money_that_is_none_of_a_unit_is_told_so(text, unit, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse(text, unit)


def test_prices_and_budgets_of_a_comparison_name_their_cure_once():
    with pytest.raises(CrossflowError) as error:
        compare("llama3-8b", "dgx-a100,dgx-h100", budget="$2/hour", prices={"a100": 2, "h100": 3})
    assert str(error.value) == "budget $2/hour: expected a quantity in USD/hour, got '$2/hour'; write '2 USD/hour'"


def test_the_price_of_another_tool_is_answered_by_one_that_works(capsys):
    words = ["predict", "--model", "llama3-8b", "--on", "dgx-h100", "--strategy", "dp8-z3"]
    with pytest.raises(SystemExit):
        main([*words, "--price", "$2/h"])
    cure = re.search(r"; write (.*) \(see", capsys.readouterr().err)[1]
    assert cure == "--set 'system.operation.price=2 USD/hour'"
    assert main([*words, *shlex.split(cure), "--quiet"]) == 0
