"""The page of a scenario in a browser: every control answers, and the address keeps what was done."""

import csv
import io
import json
import re
import subprocess
import sys
from urllib.parse import quote, unquote
from xml.etree import ElementTree

import pytest

from crossflow.base.units import show

SCENARIO = """\
name: chip
system: {template: reference-training, devices: 64}
workload: {model: llama3-8b, global_batch: 64}
strategy: tp8-dp8
"""
TOO_LARGE = """\
system: {template: h100-ib-cluster, nodes: 4}
workload: {model: llama3-70b, global_batch: 64}
strategy: tp8-dp4
"""
# Parts of a step and links of a chip that take the time of a resource, whose colour they have.
ALIKE = {
    "memory-bound compute": "main memory", "memory": "main memory", "exposed communication": "network", "inter link": "network",
    "intra link": "network", "launches, other": "launch",
}  # fmt: skip
POWER = 'input[type=range][data-path="system.budgets.power"]'


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenarios")
    (folder / "chip.yaml").write_text(SCENARIO)
    (folder / "large.yaml").write_text(TOO_LARGE)
    return folder


@pytest.fixture(scope="module")
def url(served, files):
    return served(files / "chip.yaml")


def time_of(page):
    return page.inner_text("#step-time")


def until(page, condition):
    """Wait for something in the page and return it; Playwright's own way needs eval, which the page's policy forbids."""
    for _ in range(1200):
        if found := page.evaluate(condition):
            return found
        page.wait_for_timeout(50)
    pytest.fail(f"never: {condition}")


def settled(page):
    page.wait_for_timeout(80)
    until(page, "!document.body.classList.contains('busy')")


def state_of(page):
    page.wait_for_timeout(250)
    return json.loads(unquote(page.url.partition("#")[2]))


def test_a_slider_changes_the_step_and_the_address_restores_it(opened, url):
    page = opened(url)
    before = time_of(page)
    page.focus(POWER)
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    settled(page)
    after = time_of(page)
    assert after != before
    assert "against start" in page.inner_text("#delta")
    assert state_of(page)["s"]["system.budgets.power"] > 700
    again = opened(page.url)
    until(again, f"document.getElementById('step-time').textContent === {after!r}")
    page.click("text=Reset all")
    until(page, f"document.getElementById('step-time').textContent === {before!r}")


def test_numbers_of_the_design_before_are_grey_until_the_answer_comes(opened, url):
    page = opened(url)
    settled(page)
    asked, free = [], []
    page.route("**/api/evaluate", lambda route: route.continue_() if free else asked.append(route))
    page.focus(POWER)
    page.keyboard.press("ArrowRight")
    until(page, "document.body.classList.contains('behind')")
    until(page, "getComputedStyle(document.querySelector('.headline')).opacity === '0.5'")
    free.append(True)
    for route in asked:
        route.continue_()
    until(page, "!document.body.classList.contains('behind')")
    until(page, "getComputedStyle(document.querySelector('.headline')).opacity === '1'")


def test_a_design_that_never_ends_is_compared_with_nothing(opened, served, files):
    state = quote(json.dumps({"s": {"system.power.tdp": 60.0}}))  # less than the device draws at rest
    page = opened(f"{served(files / 'large.yaml')}#{state}")
    until(page, "document.getElementById('step-time').textContent === 'never ends'")
    assert page.inner_text("#delta") == "no comparison: this design never ends"
    assert page.get_attribute("#delta", "class") == "delta soft"
    figures = "[...document.querySelectorAll('.figures .figure')].map((figure) => [...figure.children].map((part) => part.textContent))"
    unknown = until(page, f"(unknown => unknown.length && unknown)({figures}.filter(([, number]) => number === '-'))")
    assert not any(change for _, _, change in unknown)


def test_shares_give_to_one_another_and_locked_ones_stay(opened, url):
    page = opened(url)
    stack = "system.budgets.power_shares"
    lock = page.locator(".control", has=page.locator(f'input[data-path="{stack}.memory"]')).locator(".lock")
    lock.click()
    page.focus(f'input[data-path="{stack}.compute"]')
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    settled(page)
    held = {path: value for path, value in state_of(page)["s"].items() if path.startswith(stack)}
    assert f"{stack}.compute" in held
    assert f"{stack}.memory" not in held
    assert len(held) > 2
    assert "add up to" not in page.inner_text(".tiles")


def test_search_names_and_a_number_with_its_unit(opened, url):
    page = opened(url)
    page.keyboard.press("/")
    page.keyboard.type("chip area")
    field = page.locator(".control:visible input.value").first
    field.fill("900 mm2")
    field.press("Enter")
    settled(page)
    assert state_of(page)["s"]["system.budgets.chip_area"] == pytest.approx(9e-4)
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    page.select_option('select[data-path="system.technology.memory"]', "HBM4")
    until(page, "decodeURIComponent(location.hash).includes('HBM4')")
    until(page, "document.querySelector('.panel').textContent.includes('memory HBM4')")


def test_the_strategy_is_chosen_from_a_list_or_by_crossflow(opened, url):
    page = opened(url)
    page.click(".strategy")
    page.fill(".choose input", "tp4 dp16")
    page.wait_for_selector(".strategies [role=option]")
    first = page.locator(".strategies [role=option] span").first.inner_text()
    page.locator(".strategies [role=option]").first.click()
    settled(page)
    assert page.inner_text(".strategy") == first
    page.click("button.auto")
    until(page, "document.querySelector('.strategy').textContent !== " + repr(first))
    assert state_of(page)["s"]["strategy"] == "auto"


def test_pins_stand_side_by_side_with_the_reason(opened, url):
    page = opened(f"{url}#{quote(json.dumps({'s': {'system.budgets.power': 900}}))}")
    settled(page)
    page.click("text=Pin")
    page.select_option('select[data-path="system.technology.logic"]', "N3")
    settled(page)
    until(page, "[...document.querySelectorAll('.fall-name')].some((name) => name.textContent.includes('logic'))")
    names = page.locator(".fall-name").all_inner_texts()
    assert names[0] == "A"
    assert names[-1] == "now"
    assert any("logic" in name for name in names)
    assert page.locator("th", has_text="system.technology.logic").count() == 1


def test_a_comparison_waits_for_no_explanation_of_the_design_before(opened, url):
    page = opened(f"{url}#{quote(json.dumps({'s': {'system.budgets.power': 900}}))}")
    with page.expect_request("**/api/explain"):
        page.wait_for_selector("text=Pin")
    page.click("text=Pin")
    overtaken = page.expect_event("requestfailed", lambda request: request.url.endswith("/api/explain"))  # others may be too
    with overtaken, page.expect_response("**/api/compare"):
        page.select_option('select[data-path="system.technology.logic"]', "N3")
    until(page, "[...document.querySelectorAll('.fall-name')].some((name) => name.textContent.includes('logic'))")


def test_a_curve_is_enlarged_and_the_timeline_and_the_explanation_come(opened, url):
    page = opened(url)
    page.locator(".curve").first.click()
    page.wait_for_selector(".uplot canvas")
    page.wait_for_selector(".strip")
    until(page, "document.querySelector('canvas.strip').height > 20")
    page.wait_for_selector(".explained li", timeout=240_000)


def test_a_cure_is_a_button_that_makes_it_fit(opened, served, files):
    page = opened(served(files / "large.yaml"), 800, "dark")
    page.wait_for_selector(".cure")
    page.locator(".cure").first.click()
    until(page, "document.querySelector('.tiles').innerText.includes('to spare')")


def test_before_anything_moves_there_is_one_bar_and_a_sentence_that_says_what_to_do(opened, url):
    page = opened(url)
    until(page, "document.querySelectorAll('.bar-row').length === 2")  # what is done, and what binds
    assert page.inner_text("#delta").startswith("Start here: ")
    assert re.match(r"[●◕◔○] (measured|interpolated|extrapolated|unknown)\s*: ", page.inner_text(".trust"))
    page.focus(POWER)
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelectorAll('.bar-row').length === 4")
    assert re.match("[▲▼]\xa0[+−].* against start", page.inner_text("#delta"))


def test_a_lever_is_applied_and_brings_what_it_says(opened, url):
    page = opened(url)
    page.wait_for_selector(".lever")
    first = page.locator(".lever").first
    gain = first.locator("b").inner_text()
    first.get_by_role("button").click()
    until(page, f"document.getElementById('delta').textContent.startsWith({gain!r})")


def test_constants_are_folded_away_and_found_by_the_search(opened, served, files):
    page = opened(served(files / "large.yaml"))
    fold = page.locator("details.fold")
    assert "found by the search" in fold.locator("summary").first.inner_text()
    assert fold.get_attribute("open") is None
    assert not page.locator('input[data-path="techlib.compute.volta-tensor-core.nominal_power"]').is_visible()
    page.keyboard.press("/")
    page.keyboard.type("volta nominal power")
    page.wait_for_selector('input[data-path="techlib.compute.volta-tensor-core.nominal_power"]:visible')


def test_a_search_that_finds_nothing_says_so_and_offers_the_nearest_names(opened, url):
    page = opened(url)
    page.keyboard.press("/")
    page.keyboard.type("hbm bandwith")
    assert "No control is called “hbm bandwith”." in page.inner_text(".none")
    near = page.locator(".none button", has_text="bandwidth").first
    near.click()
    assert page.locator(".control:visible").count() >= 1
    assert page.locator(".none").is_hidden()


def test_after_an_error_nothing_stale_is_green_and_a_button_repairs_it(opened, served, files, problems):
    page = opened(served(files / "large.yaml"))
    before = time_of(page)
    page.select_option('select[data-path="system.template"]', "v100-ib-cluster")
    page.wait_for_selector("body.stale")
    assert page.evaluate(
        "[...document.querySelectorAll('.tiles > *')].every((card) => card.inert && getComputedStyle(card).filter === 'grayscale(1)')"
    )
    assert page.inner_text(".what").startswith("last valid design: transformer on 32 devices of h100-ib-cluster, tp8-dp4")
    assert "last one that is: transformer on 32 devices of h100-ib-cluster" in page.inner_text(".old")
    assert time_of(page) == before
    page.click("text=use fp16")
    page.wait_for_selector("body:not(.stale)")
    assert "v100-ib-cluster" in page.inner_text(".what")
    assert page.locator(".notice[role=alert]").is_hidden()
    assert all("422" in problem for problem in problems)
    problems.clear()


@pytest.mark.thorough
def test_a_strategy_that_gives_way_is_told_until_it_is_repaired(opened, url):
    page = opened(f"{url}#{quote(json.dumps({'s': {'system.devices': 32}}))}")
    page.wait_for_selector(".notice.plain[role=alert] .cure")
    assert "does not divide this workload over 32 devices" in page.inner_text(".notice[role=alert]")
    page.click("text=use tp8-dp4, the nearest strategy that divides it")
    page.wait_for_selector(".notice[role=alert]", state="hidden")
    assert state_of(page)["s"] == {"system.devices": 32, "strategy": "tp8-dp4"}


def test_a_half_what_if_is_told_beside_the_control(opened, served, files):
    page = opened(served(files / "large.yaml"))
    control = page.locator(".control", has=page.locator('select[data-path="system.technology.logic"]'))
    assert control.locator(".half").is_hidden()
    page.select_option('select[data-path="system.technology.logic"]', "N2")
    settled(page)
    assert "changes only energy and, at the power limit, the clock here" in control.locator(".half").inner_text()


def test_pinning_what_has_not_moved_makes_no_second_column(opened, url):
    page = opened(url)
    page.click("text=Pin")
    assert "nothing has moved" in page.inner_text(".said")
    page.focus(POWER)
    page.keyboard.press("ArrowRight")
    settled(page)
    page.click("text=Pin")
    page.wait_for_selector("th >> text=as it is now")
    assert page.locator("thead th > :first-child").all_inner_texts()[-2:] == ["start", "A"]
    page.click("text=Pin")
    assert "this is design A" in page.inner_text(".said")


CUT = """() => [...document.querySelectorAll('.page *, header *')].filter((element) => {
  const style = getComputedStyle(element);
  return element.checkVisibility() && style.overflowX === 'hidden' && element.scrollWidth > element.clientWidth + 1 && element.innerText;
}).map((element) => `${element.className}: ${element.innerText}`)"""
SMALL = """() => [...document.querySelectorAll('body *')].filter((element) => element.checkVisibility()
  && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && parseFloat(getComputedStyle(element).fontSize) < 11)
  .map((element) => `${element.className} ${element.textContent}`)"""


@pytest.mark.cases(1)
@pytest.mark.parametrize("file", ["chip.yaml", "large.yaml"])
def test_no_label_is_cut_and_none_is_small(opened, served, files, file):
    page = opened(served(files / file))
    page.wait_for_selector(".levels td")
    page.wait_for_selector(".lever")
    assert page.evaluate(f"({CUT})()") == []
    assert page.evaluate(f"({SMALL})()") == []


def test_colours_of_parts_mean_one_thing_each(opened, url):
    page = opened(url)
    page.wait_for_selector(".map-text", state="attached")
    until(page, "document.querySelector('canvas.strip').height > 20")
    keys = """() => [...document.querySelectorAll('.legend .entry')].map((entry) => [getComputedStyle(entry.firstChild).backgroundColor,
      getComputedStyle(entry.firstChild).backgroundImage, entry.textContent.replace(/ [\\d.]+ .*| binds$/, '')])"""
    meanings = {}
    for colour, image, text in page.evaluate(f"({keys})()"):
        if not image.startswith("url"):
            meanings.setdefault(colour, set()).add(ALIKE.get(text, text))
    assert len(meanings) > 12
    assert [found for found in meanings.values() if len(found) > 1] == []
    hatched = [text for _, image, text in page.evaluate(f"({keys})()") if image.startswith("repeating")]
    assert {text.split(",")[0] for text in hatched} >= {"launches", "launch"}


def test_what_cannot_be_is_told_and_undone(opened, url, problems):
    page = opened(f"{url}#{quote(json.dumps({'s': {'system.nothing': 1}}))}")
    page.wait_for_selector(".notice[role=alert]:visible")
    assert "nothing" in page.inner_text(".notice[role=alert]")
    page.click(".notice button")
    page.wait_for_selector(".notice[role=alert]", state="hidden")
    assert all("422" in problem for problem in problems)  # which browsers write to their console by themselves
    problems.clear()


@pytest.fixture(scope="module")
def exported(files):
    """Address of the page of the chip, written to a file by the command."""
    target = files / "page.html"
    subprocess.run([sys.executable, "-m", "crossflow", "explore", str(files / "chip.yaml"), "--export", str(target)], check=True)
    return target.as_uri()


def test_the_exported_page_works_from_the_disk(opened, exported, saved):
    page = opened(exported)
    assert re.match(r"\d", time_of(page))
    before = time_of(page)
    page.locator("input[type=range]:not([disabled])").first.focus()  # the number of devices
    page.keyboard.press("Home")
    until(page, f"document.getElementById('step-time').textContent !== {before!r}")
    assert "computed beforehand" in page.inner_text(".notice.plain")
    assert len(figures(page, saved)) == 2  # the start, and the design as it is


def test_the_exported_page_has_the_timeline_of_its_scenario(opened, exported):
    page = opened(exported)
    until(page, "document.querySelector('canvas.strip').height > 20")
    card = page.locator(".card", has=page.locator("canvas.strip"))
    assert "forward" in card.inner_text()
    assert "as exported" not in card.inner_text()
    page.locator("input[type=range]:not([disabled])").first.focus()
    page.keyboard.press("Home")
    until(page, "document.querySelector('.main').innerText.includes('of the scenario as exported, not of the settings now')")
    page.locator(".reset:visible").first.click()
    until(page, "!document.querySelector('.main').innerText.includes('as exported, not of')")


AUTO = """\
name: auto
system: {template: h100-ib-cluster, nodes: 2}
workload: {model: llama3-8b, global_batch: 32}
strategy: auto
"""


def test_an_automatic_strategy_is_pressed_and_followed(opened, served, files):
    (files / "auto.yaml").write_text(AUTO)
    page = opened(served(files / "auto.yaml"))
    first = page.inner_text(".strategy")
    assert page.get_attribute("button.auto", "aria-pressed") == "true"
    assert page.locator(".strategy-control .reset").is_hidden()
    until(page, f"document.querySelector('.remarks').innerText.includes('strategy {first}: the fastest of ')")
    page.focus('input[type=range][data-path="system.nodes"]')
    page.keyboard.press("ArrowRight")
    until(page, f"document.querySelector('.strategy').textContent !== {first!r}")
    assert page.get_attribute("button.auto", "aria-pressed") == "true"
    assert state_of(page)["s"] == {"system.nodes": 4}
    page.click("button.auto")  # from now on the strategy stays
    held = page.inner_text(".strategy")
    settled(page)
    assert state_of(page)["s"]["strategy"] == held
    page.click("button.auto")
    settled(page)
    assert "strategy" not in state_of(page)["s"]
    page.click("text=Reset all")
    until(page, f"document.querySelector('.strategy').textContent === {first!r}")


@pytest.mark.thorough
def test_nodes_strategies_and_the_network_move_on_an_exported_page(opened, files):
    (files / "auto.yaml").write_text(AUTO)
    target = files / "auto.html"
    subprocess.run([sys.executable, "-m", "crossflow", "explore", str(files / "auto.yaml"), "--export", str(target)], check=True)
    page = opened(target.as_uri())
    moved = [row.get_attribute("data-path") for row in page.locator("input[type=range]:not([disabled])").all()]
    assert moved == ["system.nodes", "system.network.inter.bandwidth"]
    before, first = time_of(page), page.inner_text(".strategy")
    page.focus('input[data-path="system.nodes"][type=range]')
    page.keyboard.press("ArrowRight")
    until(page, f"document.getElementById('step-time').textContent !== {before!r}")
    assert "on 32 x" in page.inner_text(".what")
    assert page.inner_text(".strategy") != first
    page.click(".strategy")
    options = page.locator(".strategies [role=option]")
    assert options.count() == 6
    assert "6 of 6 that this page holds" in page.inner_text(".choose")
    wanted, told = options.nth(2).locator("span").all_inner_texts()
    options.nth(2).click()
    until(page, f"document.querySelector('.strategy').textContent === {wanted!r}")
    assert time_of(page) == told
    assert page.get_attribute("button.auto", "aria-pressed") == "false"
    page.focus('input[data-path="system.nodes"][type=range]')
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('.said')?.textContent.includes('none of the strategies that this page holds here')")


def test_a_design_that_a_file_does_not_hold_is_told_and_undone(opened, files):
    (files / "auto.yaml").write_text(AUTO)
    target = files / "types.html"
    command = [sys.executable, "-m", "crossflow", "explore", str(files / "auto.yaml"), "--export", str(target)]
    subprocess.run([*command, "--with", "workload.dtype=mxfp8:bf16:fp8,strategy=2"], check=True)
    page = opened(target.as_uri())
    chooser = page.locator('select[data-path="workload.dtype"]')
    assert chooser.locator("option").all_inner_texts() == ["mxfp8", "bf16", "fp8"]
    before = time_of(page)
    chooser.select_option("fp8")
    until(page, f"document.getElementById('step-time').textContent !== {before!r}")
    chooser.select_option("mxfp8")
    page.wait_for_selector(".notice[role=alert]:visible")
    assert "mxfp8" in page.inner_text(".notice[role=alert]")
    page.click(".notice[role=alert] button")
    page.wait_for_selector(".notice[role=alert]", state="hidden")
    assert chooser.input_value() == "fp8"


def figures(page, saved):
    """Rows of the figures of a page."""
    name, content = saved(page, page.locator("header button", has_text="CSV"))
    assert name == "chip-figures.csv"
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_figures_curves_and_plots_are_saved_as_they_are_shown(opened, saved, url):
    page = opened(f"{url}#{quote(json.dumps({'s': {'system.budgets.power': 900}}))}")
    settled(page)
    start, now = figures(page, saved)
    assert [start["design"], now["design"]] == ["start", "now"]
    assert now["system.budgets.power"] == "900 W"
    assert show(float(now["step_time_s"]), "s") == time_of(page)
    assert float(now["power_w"]) > float(start["power_w"])
    page.wait_for_timeout(300)  # until all numbers are ranked anew
    settled(page)
    until(page, "document.querySelectorAll('.curve').length === 16")
    name, content = saved(page, page.locator(".profile-head button", has_text="CSV"))
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert name == "chip-profile.csv"
    assert len({row["path"] for row in rows}) == 16
    assert {"value", "unit", "step_time_s", "feasible", "bound_by"} < set(rows[0])
    for part, word in (("where-the-step-goes", "launches, other"), ("memory", "of the fullest device"), ("profile", "nominal frequency")):
        name, content = saved(page, page.get_by_label(f"save as chip-{part}.svg"))
        texts = [found.text for found in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text")]
        assert any(text.startswith(word) for text in texts)
        assert "SVG" not in texts
    page.locator(".curve").first.click()
    page.wait_for_selector(".uplot canvas")
    assert saved(page, page.locator(".large .tool"))[1].startswith(b"\x89PNG")
    until(page, "document.querySelector('canvas.strip').height > 20")
    assert saved(page, page.get_by_label("save as chip-timeline.png"))[1].startswith(b"\x89PNG")


def test_a_narrow_window_has_no_sideways_scroll(opened, url):
    for width in (1280, 800, 480):
        page = opened(url, width)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), width
