"""What the scripts of pages compute, in Chromium: the tests that `tests/test_scripts.py` asks in Node."""

import json

from tests.javascript.node import ASSETS, HERE, start

ADDRESS = "http://127.0.0.1:9/"  # where nobody listens: what is asked for is given here


def test_scripts_compute_what_they_say_in_a_browser(browser):
    data = json.dumps(start()).replace("<", "\\u003c")
    held = {"": ("text/html", f'<!doctype html><script type="application/json" id="start">{data}</script>')}
    held |= {path.name: ("text/javascript", path.read_text(encoding="utf-8")) for path in [*ASSETS.glob("*.js"), HERE / "tests.mjs"]}

    def give(route):
        kind, body = held[route.request.url.removeprefix(ADDRESS)]
        route.fulfill(content_type=f"{kind}; charset=utf-8", body=body)

    page = browser.new_page()
    page.route(f"{ADDRESS}**", give)
    page.goto(ADDRESS)
    failures = page.evaluate("async () => (await import('/tests.mjs')).failures((name) => import(`/${name}`))")
    page.close()
    assert failures == {}
