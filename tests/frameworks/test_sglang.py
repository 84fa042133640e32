"""Exported scripts in SGLang's own argument parser; it needs `pip install --no-deps sglang` with torch, and no GPU."""

import argparse
import warnings

import pytest
from engine_exports import exports
from test_engine_options import check_sglang, words

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.server_args import ServerArgs
except ImportError as error:
    pytest.skip(f"SGLang's arguments cannot be read here: {error}", allow_module_level=True)


@pytest.fixture(scope="module")
def parser():
    made = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(made)
    return made


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_sglang_takes_what_is_written(parser):
    for scenario, text in exports("sglang"):
        found = parser.parse_args(words(text, "sglang.launch_server")[0])
        check_sglang(found)
        assert found.tp_size * found.pp_size * (1 if found.enable_dp_attention else found.dp_size) == scenario.devices


def test_the_table_has_the_options_of_the_package(parser):
    import yaml
    from test_engine_options import OPTIONS

    for option, row in OPTIONS["sglang"]["options"].items():
        action = parser._option_string_actions[option]
        assert (action.nargs == 0) == (row["type"] == "switch"), option
        assert set(row.get("choices", ())) <= set(map(str, action.choices or ())), option
        assert yaml.safe_load(str(action.default)) == row["default"] if "default" in row and row["default"] != "null" else True, option
