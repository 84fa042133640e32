"""What the scripts of pages compute, in Node; `tests/browser/test_scripts_in_a_page.py` asks the same in Chromium."""

import pytest

from tests.javascript.node import NODE, asked, copied


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_scripts_compute_what_they_say(tmp_path):
    assert asked(copied(tmp_path)) == {}
