"""Pages as files of their own, and the command that serves or writes them."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from crossflow.edges.explore.page import assets, bundle, exported
from crossflow.edges.explore.server import App

APP = App(title="a page", page="scenario.html", start=lambda: {"first": 1}, calls={}, offline=lambda: {"axes": [], "text": "</script>"})
SCENARIO = "system: {template: v100}\nworkload: {model: gemm, m: 512, n: 512, k: 512}\n"


def command(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "crossflow", "explore", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def test_an_exported_page_names_no_other_file():
    text = exported(APP)
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert not re.findall(r"^import |^export ", text, re.MULTILINE)
    start = json.loads(text.partition('id="start">')[2].partition("</script>")[0])
    assert start["offline"] is True
    assert start["answers"]["text"] == "</script>"


def test_pages_load_nothing_from_elsewhere():
    for name, (_, content) in assets().items():
        if not name.startswith("vendor/"):
            addresses = set(re.findall(r"https?://[^\s\"'`)]+", content.decode()))
            assert addresses <= {"http://www.w3.org/2000/svg"}, name


def test_modules_are_bundled_in_the_order_of_their_imports():
    held = {
        "a.js": 'import { two } from "./b.js";\nimport { one } from "./c.js";\nuse(one, two);\n',
        "b.js": 'import { one } from "./c.js";\nexport const two = one + 1;\n',
        "c.js": "export const one = 1;\nexport function three() {}\n",
    }
    text = bundle(held, "a.js")
    assert text.index("return { one, three }") < text.index("return { two }") < text.index("use(one, two)")
    assert "import" not in text
    assert text.count("const one = 1;") == 1


@pytest.mark.slow
def test_the_command_prints_one_line_of_json_and_ends_with_ctrl_c(scenario):
    process = command(str(scenario), "--json", "--no-browser", "--set", "workload.m=1024")
    try:
        url = json.loads(process.stdout.readline())["url"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        text = urllib.request.urlopen(url).read().decode()
        assert '"workload.m"' in text
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, log) == (0, "Ctrl-C ends it\nended\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("missing.yaml",), "missing.yaml"),
        (("{scenario}", "--port", "99999"), "expected a port from 0 to 65535, got '99999'"),
        (("{scenario}", "--set", "workload.q=1"), "unknown key 'q'"),
        (("{scenario}", "--export", "{scenario}"), "--export writes a page: give it a name that ends in .html, not"),
    ],
)
def test_wrong_words_end_with_status_2(scenario, words, sentence, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("explore", *(word.format(scenario=scenario) for word in words), "--no-browser")
    assert scenario.read_text() == SCENARIO


@pytest.mark.slow
def test_a_page_is_written_as_one_file(scenario, tmp_path):
    target = tmp_path / "page.html"
    process = command(str(scenario), "--export", str(target))
    out, log = process.communicate(timeout=60)
    assert out == ""
    assert re.search(
        rf"^wrote {re.escape(str(target))} \(\d\.\d MB\): \d+ designs of system\.devices \(3\), system\.budgets\.\w+", log, re.MULTILINE
    )
    assert "uPlot" in target.read_text()
