"""A browser for pages: tests here are skipped where Playwright or Chromium is missing (CROSSFLOW_CHROMIUM names another browser)."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHROMIUM = (
    os.environ.get("CROSSFLOW_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def problems():
    """What a page writes to its console as error or warning; a test that expects one takes it out."""
    return []


@pytest.fixture
def opened(browser, problems):
    """Open an address in a window of its own; at the end nothing may have gone wrong and nothing foreign been asked for."""
    contexts, asked = [], []

    def open_page(url, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(240_000)  # machines that do much else beside
        page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert not [url for url in asked if not url.startswith(("http://127.0.0.1:", "file://", "data:", "blob:"))]


@pytest.fixture
def saved():
    """Click on a button that saves a file, and give the file's name and content."""

    def click(page, button):
        with page.expect_download() as found:
            button.click()
        return found.value.suggested_filename, Path(found.value.path()).read_bytes()

    return click


@pytest.fixture(scope="module")
def served():
    """Serve a file or folder by the command, once for all tests of a module, and give the address of its page."""
    running = []

    @functools.cache
    def serve(source):
        command = [sys.executable, "-m", "crossflow", "explore", str(source), "--json", "--no-browser"]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return json.loads(running[-1].stdout.readline())["url"]

    yield serve
    for process in running:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
