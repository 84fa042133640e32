"""The page of a study in a browser: brushes, the table, a design, the address, the page as one file."""

import csv
import io
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from crossflow.answers.search.pareto import non_dominated
from crossflow.answers.study.run import run_study
from crossflow.base.units import show
from crossflow.edges.explore.page import exported
from crossflow.edges.explore.server import ExploreServer
from crossflow.edges.explore.study import study_app

STUDY = """
name: power-or-speed
scenario:
  system: {template: pathfinder, devices: 512}
  workload: {model: lstm-16k}
  strategy: CR-8-d64
space:
  system.budgets.power: {from: 100 W, to: 500 W}
  system.technology.logic: [N7, N5]
objectives: [step_time_s, power_w]
searches:
  drawn: {searcher: random, evaluations: 60}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("study")
    (place / "study.yaml").write_text(STUDY)
    run_study(place / "study.yaml", out=place / "out")
    shutil.copy(place / "study.yaml", place / "out")
    return place / "out"


@pytest.fixture(scope="module")
def address(folder):
    with ExploreServer(study_app(folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


@pytest.fixture
def visit(browser):
    """Opens an address; the test fails where the page logs an error or asks anybody but its own server."""
    pages, troubles = [], []

    def opened(url, **options):
        page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        pages.append(page)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("request", lambda asked: None if asked.url.startswith((url[:20], "data:", "blob:")) else troubles.append(asked.url))
        page.goto(url)
        drawn(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert troubles == []


def until(page, expression):
    """Wait for an expression to be true; the page's policy does not allow it to be evaluated by the page itself."""
    for _ in range(1200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def drawn(page, more=0):
    """Wait until the page has drawn itself, once more than it had."""
    until(page, f"performance.getEntriesByName('redraw').length > {more}")


def after(page, action):
    before = page.evaluate("performance.getEntriesByName('redraw').length")
    action()
    drawn(page, before)


def status(page):
    return page.locator(".status").inner_text()


def brush(page, across=0.6):
    """Draw a rectangle over the left part of the scatter plot."""
    box = page.locator(".scatter canvas").bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 15)
    page.mouse.down()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + box["height"] - 50, steps=3)
    page.mouse.up()
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 400))")  # the address is written when a drag rests
    until(page, "document.querySelector('.status').textContent.includes('selected')")


def test_a_brush_in_one_view_selects_in_all_and_is_in_the_address(visit, address):
    page = visit(address)
    assert status(page).startswith("60 points · ")
    brush(page)
    selected = int(status(page).split(" selected")[0].split("· ")[-1])
    assert 0 < selected < 60
    assert round(float(page.locator(".space").evaluate("e => e.offsetHeight")) / 24) == selected  # rows of the table
    until(page, "location.hash.includes('brush')")
    assert status(visit(page.url)) == status(page)
    after(page, lambda: page.get_by_role("button", name="Clear selection").click())
    assert "selected" not in status(page)


def test_the_table_is_sorted_filtered_and_walked_by_keys(visit, address, folder):
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    page = visit(address)
    after(page, lambda: page.locator(".head button", has_text="step time").click())
    fastest = min(rows, key=lambda row: row["step_time_s"])["id"]
    assert page.locator(".tbody .trow").first.locator(".cell").first.inner_text().startswith(str(fastest))
    after(page, lambda: page.get_by_label("filter technology.logic").fill("n5"))
    assert f"{sum(row['system.technology.logic'] == 'N5' for row in rows)} selected" in status(page)
    page.get_by_label("filter step time").fill("< fast")
    assert page.get_by_label("filter step time").get_attribute("aria-invalid") == "true"
    page.locator(".tframe").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator(".design h1").inner_text().startswith("Design ")
    page.keyboard.press("Escape")
    assert page.locator(".design").is_hidden()


def test_a_design_shows_its_step_its_files_and_opens_as_sliders(visit, address, folder):
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    page = visit(address)
    page.locator(".tbody .trow").nth(4).click()
    page.wait_for_selector(".design .buttons")
    panel = page.locator(".design")
    assert panel.locator(".part").count() >= 2
    panel.locator("summary").first.click()
    fifth = sorted(rows, key=lambda row: (not row["feasible"], row["step_time_s"]))[4]
    assert "logic: " + fifth["system.technology.logic"] in panel.locator("pre").first.inner_text()
    with page.context.expect_page() as opened:
        panel.get_by_role("button", name="Open as sliders").click()
    opened.value.wait_for_url("http://127.0.0.1:*/**")
    assert opened.value.url.split("/")[2] != address.split("/")[2]
    opened.value.close()


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("text", "low", "high"), [("150 .. 300 W", 150, 300), ("< 0.2 kW", 0, 200), (">= 250", 250, 1e9), ("200 W .. 0.4 kW", 200, 400)]
)
def test_filters_take_units_and_ranges(visit, address, folder, text, low, high):
    powers = [json.loads(line)["system.budgets.power"] for line in (folder / "points.jsonl").read_text().splitlines()]
    page = visit(address)
    after(page, lambda: page.get_by_label("filter budgets.power").fill(text))
    assert f" {sum(low <= power <= high for power in powers)} selected" in status(page)


def test_the_front_of_all_objectives_is_that_of_the_searches(visit, address, folder):
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    losses = np.array([[row["step_time_s"], row["power_w"]] for row in rows if row["feasible"]]).T
    page = visit(address)
    after(page, lambda: page.get_by_role("button", name="front of 2 objectives").click())
    assert f" {int(non_dominated(losses).sum())} selected" in status(page)


def test_convergence_ends_at_the_best_design(visit, address, folder):
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    best = min((row for row in rows if row["feasible"]), key=lambda row: row["step_time_s"])
    page = visit(address)
    page.locator(".side .chip").click()
    assert page.locator(".design h1").inner_text() == f"Design {best['id']}, the best"
    assert show(best["step_time_s"], "s") in status(page)


def test_slash_searches_columns(visit, address):
    page = visit(address)
    page.keyboard.press("/")
    after(page, lambda: page.keyboard.type("power"))
    assert [text.split(" [")[0] for text in page.locator(".head .cell").all_inner_texts()] == ["id", "power", "budgets.power"]


def test_the_page_as_a_file_selects_without_a_server(visit, folder, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(exported(study_app(folder)))
    page = visit(Path(path).as_uri())
    brush(page)
    page.locator(".tbody .trow").first.click()
    assert "This page is a file" in page.locator(".design").inner_text()
    assert page.locator(".design .buttons").count() == 0
    assert "This page is a file" in page.locator(".notice").inner_text()


@pytest.mark.parametrize("offline", [False, True])
def test_the_table_and_the_plots_are_saved_as_they_are_shown(visit, saved, address, folder, tmp_path, offline):
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    if offline:
        (tmp_path / "page.html").write_text(exported(study_app(folder)))
    page = visit((tmp_path / "page.html").as_uri() if offline else address)
    after(page, lambda: page.get_by_label("filter technology.logic").fill("n5"))
    after(page, lambda: page.locator(".head button", has_text="step time").click())
    name, content = saved(page, page.get_by_role("button", name="Save table as CSV"))
    shown = list(csv.DictReader(io.StringIO(content.decode())))
    wanted = sorted((row for row in rows if row["system.technology.logic"] == "N5"), key=lambda row: (row["step_time_s"], row["id"]))
    assert name == "power-or-speed-table.csv"
    assert list(shown[0]) == ["id", "step_time_s", "power_w", "bound_by", "system.budgets.power [W]", "system.technology.logic"]
    assert [int(row["id"]) for row in shown] == [row["id"] for row in wanted]
    assert [float(row["system.budgets.power [W]"]) for row in shown] == [row["system.budgets.power"] for row in wanted]
    _, content = saved(page, page.get_by_role("button", name="Save all columns as CSV"))
    assert len(content.splitlines()) == len(wanted) + 1
    assert b"violation" in content.splitlines()[0]
    for plot in ("scatter", "parallel", "convergence"):
        name, content = saved(page, page.get_by_label(f"save as power-or-speed-{plot}.png"))
        assert name == f"power-or-speed-{plot}.png"
        assert content.startswith(b"\x89PNG")
        assert len(content) > 5000  # more than an empty picture has


def test_dark_and_narrow_pages_fit(visit, address):
    page = visit(address, color_scheme="dark")
    page.set_viewport_size({"width": 800, "height": 900})
    until(page, "document.documentElement.scrollWidth <= 800")
    until(page, "document.querySelector('.scatter canvas').getBoundingClientRect().right <= 800")


# ------------------------------------------------------------------------------------------ answers first

SWEEP = """
name: nodes-and-power
scenario:
  system: {template: pathfinder, devices: 8}
  workload: {model: lstm-16k}
  strategy: d8
sweep:
  system.budgets.power: [20 W, 100 W, 200 W, 400 W]
  system.technology.logic: [N12, N7, N5]
columns: [step_time_s]
plots: []
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    place = tmp_path_factory.mktemp("sweep")
    (place / "study.yaml").write_text(SWEEP)
    run_study(place / "study.yaml", out=place / "out")
    points = place / "out" / "points.jsonl"
    rows = [json.loads(line) for line in points.read_text().splitlines()]
    for row in rows:  # some of the fastest do not fit, as in studies with constraints
        row["feasible"] = row["system.budgets.power"] != "400 W"
    points.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    with ExploreServer(study_app(place / "out")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url, rows
        server.shutdown()


def test_the_page_begins_with_the_best_designs_that_fit(visit, swept):
    url, rows = swept
    page = visit(url)
    assert page.locator("main > section").first.get_attribute("aria-label") == "best designs"
    best = sorted(rows, key=lambda row: (not row["feasible"], row["step_time_s"]))
    listed = page.locator(".best tbody tr")
    assert listed.count() == 10
    texts = [listed.nth(k).locator("td").all_inner_texts() for k in range(10)]
    assert [text[1:3] for text in texts] == [[row["system.budgets.power"], row["system.technology.logic"]] for row in best[:10]]
    assert [text[3] for text in texts] == [show(row["step_time_s"], "s") for row in best[:10]]
    assert [text[-1] for text in texts] == ["yes" if row["feasible"] else "no" for row in best[:10]]
    assert texts[0][0] == "★ 1"
    assert "★" not in page.locator(".best tr.misfit").first.inner_text()
    first = page.locator(".tbody .trow").first
    assert first.locator(".cell").first.inner_text().startswith(str(best[0]["id"]))
    classes = [row.get_attribute("class") for row in page.locator(".tbody .trow").all()]
    assert classes.index("trow misfit") == sum(row["feasible"] for row in rows)
    listed.nth(3).click()
    assert page.locator(".design h1").inner_text() == f"Design {best[3]['id']}"


@pytest.mark.parametrize("descending", [False, True])
def test_points_that_do_not_fit_come_last_however_the_table_is_sorted(visit, swept, descending):
    url, rows = swept
    page = visit(url)
    for _ in range(1 + descending):
        after(page, lambda: page.locator(".head button", has_text="step time").click())
    ids = [int(page.locator(".tbody .trow").nth(k).locator(".cell").first.inner_text().split()[0]) for k in range(len(rows))]
    sign = -1 if descending else 1
    assert ids == [row["id"] for row in sorted(rows, key=lambda row: (not row["feasible"], sign * row["step_time_s"], row["id"]))]


def test_what_matters_most_is_the_median_effect_of_each_setting(visit, swept):
    url, rows = swept
    page = visit(url)
    until(page, "document.querySelectorAll('.matter').length === 2")
    fits = [row for row in rows if row["feasible"]]

    def effect(path, other):
        groups = {value: [row["step_time_s"] for row in fits if row[other] == value] for value in {row[other] for row in fits}}
        return float(np.median([max(times) / min(times) for times in groups.values()]))

    power, logic = "system.budgets.power", "system.technology.logic"
    wanted = sorted([(effect(power, logic), "budgets.power"), (effect(logic, power), "logic")], reverse=True)
    for k, (factor, name) in enumerate(wanted):
        cells = page.locator(".matter").nth(k)
        assert cells.locator(".name").inner_text().replace("\u200b", "") == name
        said = cells.locator("b").inner_text()
        told = float(said.removeprefix("× ")) if said.startswith("×") else 1 + float(said.removesuffix(" %")) / 100
        assert told == pytest.approx(factor, rel=6e-3)
    assert page.locator('select[aria-label="x"]').input_value() == (power if wanted[0][1] == "budgets.power" else logic)


def test_a_filter_that_matches_nothing_says_so_and_marks_no_best(visit, swept):
    url, _ = swept
    page = visit(url)
    after(page, lambda: page.get_by_label("filter technology.logic").fill("N99"))
    assert "nothing matches" in status(page)
    assert "best" not in status(page)
    assert page.locator(".nothing:visible").count() == 2  # in the place of the best designs, and of the rows
    assert page.locator(".best").count() == 0
    page.locator(".nothing button").first.click()
    until(page, "document.querySelectorAll('.best tbody tr').length === 10")
    assert "best step time" in status(page)


def test_the_best_of_a_selection_is_marked(visit, swept):
    url, rows = swept
    page = visit(url)
    after(page, lambda: page.get_by_label("filter technology.logic").fill("N12"))
    best = min(row["step_time_s"] for row in rows if row["feasible"] and row["system.technology.logic"] == "N12")
    assert f"best step time {show(best, 's')}" in status(page)


def test_designs_of_a_search_are_ranked_by_another_figure(visit, address, folder):
    rows = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    page = visit(address)
    after(page, lambda: page.get_by_label("by", exact=True).select_option("power_w"))
    least = min(row["power_w"] for row in rows if row["feasible"])
    assert f"best power {show(least, 'W')}" in status(page)
    assert show(least, "W") in page.locator(".best tbody tr").first.inner_text()


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_their_windows(visit, swept, width):
    page = visit(swept[0])
    page.set_viewport_size({"width": width, "height": 900})
    until(page, f"document.documentElement.scrollWidth <= {width}")


TIED = """
name: plans
scenario:
  system: {template: h100-ib-cluster, nodes: 2}
  workload: {model: llama3-8b, global_batch: 32}
  strategy: dp16-z3
sweep:
  strategy: [dp16-z3, dp16-z2, tp2-dp8-z1-sp, tp4-dp4-z1-sp, tp8-dp2-z1-sp]
plots: []
"""


def test_what_measured_runs_do_not_tell_from_the_first_is_marked(visit, tmp_path):
    (tmp_path / "plans.yaml").write_text(TIED)
    result = run_study(tmp_path / "plans.yaml", out=tmp_path / "out")
    app = study_app(tmp_path / "out")
    reach = app.start()["tie"]
    assert f"less than {100 * reach:.0f} % slower than the fastest" in "".join(result.notes)
    rows = [json.loads(line) for line in (tmp_path / "out" / "points.jsonl").read_text().splitlines()]
    times = sorted(row["step_time_s"] for row in rows if row["feasible"])
    (tmp_path / "page.html").write_text(exported(app))
    page = visit((tmp_path / "page.html").as_uri())
    marks = page.locator(".best tbody tr td:first-child").all_inner_texts()
    wanted = [k for k, time in enumerate(times) if k > 0 and time <= times[0] * (1 + reach)]
    assert wanted
    assert [k for k, mark in enumerate(marks) if mark.startswith("=")] == wanted
    assert "not to be told from it by measured runs" in page.inner_text(".bestcard")
