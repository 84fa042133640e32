"""Names that look like markup, in Chromium: they are text on every page, and a page as a file runs no script but its own."""

import subprocess
import sys

import pytest
import yaml

from tests.test_security import NAMES

HOSTILE = "".join(NAMES)
SCENARIO = {"name": HOSTILE, "system": "v100", "workload": {"model": "gemm", "m": 64, "n": 64, "k": 64, "dtype": "fp16"}}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "s.yaml").write_text(yaml.safe_dump(SCENARIO))
    words = [sys.executable, "-m", "crossflow", "explore", "s.yaml", "--export", "page.html", "--with", "system.devices"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder / "page.html"


def test_a_page_as_a_file_shows_names_and_runs_its_own_scripts_alone(opened, page_file, problems):
    page = opened(page_file.as_uri())
    page.wait_for_selector("#step-time")
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, [onload], [onerror], [onmouseover]').length") == 0
    assert problems == []
    script = "const one = document.createElement('script'); one.textContent = 'window.hit = 1'; document.body.append(one)"
    assert page.evaluate(f"() => {{ {script}; return window.hit ?? null; }}") is None
    asked = "() => fetch('https://example.com/').then(() => 'sent', () => 'refused')"
    assert page.evaluate(asked) == "refused"
    assert all("Content Security Policy" in one for one in problems)
    assert len(problems) >= 2
    problems.clear()
