"""Who types `crossflow sweep` is told two ways to sweep, of which the one without a file works when it is pasted."""

import re

import pytest

import crossflow
from crossflow.__main__ import main


@pytest.mark.parametrize("word", ["sweep", "grid", "scan"])
def test_a_sweep_is_told_what_does_it(word, capsys):
    with pytest.raises(SystemExit) as ended:
        main([word, "--model", "llama3-8b"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"unknown command '{word}': a sweep is a study" in told
    pasted = re.search(r'python -c "(.*)"', told)[1]
    exec(pasted, {"crossflow": crossflow})
    assert capsys.readouterr().out.startswith("system.nodes,strategy,")
