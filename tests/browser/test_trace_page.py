"""The page of a traced step in a browser: ranks, kinds of kernels, and changes that are replayed."""

from pathlib import Path

import pytest

from crossflow.base.units import show
from crossflow.edges.explore.page import exported
from crossflow.edges.explore.traces import traces_app
from crossflow.evidence.replay.report import report_of

TRACE = Path(__file__).parents[1] / "data" / "traces" / "train_rank3_step_kineto.json.gz"


@pytest.fixture(scope="module")
def url(served):
    return served(TRACE)


def until(page, condition):
    for _ in range(1200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never: {condition}")


def test_a_trace_shows_where_its_time_goes_and_replays_changes(opened, url):
    report = report_of([TRACE])
    page = opened(url)
    before = page.inner_text("#step-time")
    assert before == show(report.step_time, "s")
    assert page.locator(".rank").count() == 1
    kinds = page.locator("section", has_text="Kinds of kernels").locator("tbody tr")
    assert kinds.count() == len(report.model.kinds) > 3
    until(page, "document.querySelectorAll('.trace code').length >= 5")
    until(page, "document.querySelector('canvas.strip').height > 20")
    until(page, f"document.body.textContent.includes({report.advice.sentence!r})")
    assert page.locator("section", has_text="Why the step is slow").locator("tbody tr").count() == len(report.advice.findings) > 3
    page.fill(".whatif input", "compute*0.5")
    page.keyboard.press("Enter")
    wanted = show(report_of([TRACE], what_if="compute*0.5").step_time, "s")
    until(page, f"document.getElementById('step-time').textContent === {wanted!r}")
    assert '--what-if "compute*0.5"' in page.inner_text("section:has-text('Commands')")
    page.wait_for_timeout(250)
    again = opened(page.url)
    until(again, f"document.getElementById('step-time').textContent === {wanted!r}")
    page.click("text=As measured")
    until(page, f"document.getElementById('step-time').textContent === {before!r}")


def test_changes_without_meaning_are_told(opened, url, problems):
    page = opened(url)
    page.fill(".whatif input", "computer*0.5")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.whatif-told').textContent.includes(\"did you mean 'compute'\")")
    assert all("422" in problem for problem in problems)
    problems.clear()


def test_the_page_of_a_trace_as_a_file(opened, tmp_path):
    (tmp_path / "trace.html").write_text(exported(traces_app([TRACE])))
    page = opened((tmp_path / "trace.html").as_uri())
    assert page.locator(".trace code").count() >= 5
    assert page.locator(".whatif input").is_disabled()
    until(page, "document.querySelector('canvas.strip').height > 20")


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_traces_fit_their_windows(opened, url, width):
    page = opened(url, width)
    until(page, "document.querySelectorAll('.trace code').length >= 5")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
