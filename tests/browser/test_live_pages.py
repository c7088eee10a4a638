"""Pages stay true while they are open: in many tabs, over a restart, while something is typed or marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, Route, expect
from tests.support.browsing import PATIENCE_MS, Site, chromium, free_port, reading, site
from tests.support.cli_harness import locktender

pytestmark = pytest.mark.timeout(300)
TABS = 8
"""More than a browser has connections to one server by HTTP/1.1."""
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

DRAWN = """async charts => {
  const root = document.documentElement, found = [];
  const wanted = getComputedStyle(root).getPropertyValue("--warn").trim().slice(1).match(/../g);
  for (const values of charts) {
    const box = document.createElement("div"), times = values.map((_, at) => 1000 + 60 * at);
    const series = [{ label: "wait", values, colour: "--warn" }];
    box.dataset.chart = JSON.stringify({ times, unit: "s", series });
    document.querySelector("main").append(box);
    document.dispatchEvent(new CustomEvent("htmx:afterSettle"));
    await new Promise(requestAnimationFrame);
    const { width, height } = box.querySelector("canvas");
    const { data } = box.querySelector("canvas").getContext("2d").getImageData(0, 0, width, height);
    const near = (at) => wanted.every((each, part) => Math.abs(parseInt(each, 16) - data[at + part]) < 12);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200 && near(at)) count += 1;
    found.push(count);
  }
  return found;
}"""
"""How many pixels of each chart have the colour of its series."""


class Held(NamedTuple):
    """A server where one run holds the only slot of the pool `ui db`."""

    site: Site
    holder: str


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def held(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    del browser  # skips where there is none
    folder = tmp_path_factory.mktemp("live")
    with site(folder) as found:
        found.call("PUT", "/pools/ui%20db", {"limit": 1})
        holder = found.submit("ui hold", {"latch": str(folder / "latch")})
        found.until(holder, "running")
        yield Held(found, holder)


@contextmanager
def tabs(browser: Browser, origin: str, script: str = "") -> Iterator[BrowserContext]:
    """Pages of one browser: they share its connections and its locks."""
    context = browser.new_context(base_url=origin)
    context.set_default_timeout(PATIENCE_MS)
    if script:
        context.add_init_script(script)
    yield context
    context.close()


def follows(request: Request) -> bool:
    return request.url.endswith("/ui/live")


def followers(context: BrowserContext) -> list[Page]:
    """Those who have asked for the stream, in order."""
    found: list[Page] = []

    def asked(request: Request) -> None:
        if follows(request):
            found.append(request.frame.page)

    context.on("request", asked)
    return found


def opened(context: BrowserContext, path: str) -> Page:
    page = context.new_page()
    page.goto(path)
    expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
    page.evaluate("window.mark = 1")
    return page


def shows(page: Page, run: str) -> None:
    """The run's row has come without a reload."""
    expect(page.locator(f"#r-{run}")).to_be_visible()
    assert page.evaluate("window.mark") == 1


def ask_limit(page: Page, limit: str) -> Locator:
    """Fills the dialog of the only pool in; what is found sends it."""
    page.locator(".card.pool").get_by_role("button", name="Set", exact=True).click()
    page.locator("#dialog [name=limit]").fill(limit)
    return page.locator("#dialog").get_by_role("button", name="Set", exact=True)


def silent(page: Page, made_at: int = 0) -> None:
    """The stream of this page says nothing but its number, 0, and its clock is the test's."""

    def answer(route: Route) -> None:
        said = "retry: 100000000\nevent: ready\ndata: 0\n\n"
        route.fulfill(content_type="text/event-stream", body=said)

    page.route("**/ui/live", answer)
    # A page that was made at another number would ask once more by itself.
    page.add_init_script(
        f"""addEventListener("DOMContentLoaded", () => {{
          document.getElementById("main").dataset.seen = "{made_at}";
        }})"""
    )
    page.clock.install()


def test_eight_tabs_of_a_browser_are_all_live(browser: Browser, held: Held):
    with tabs(browser, held.site.origin) as context:
        asked = followers(context)
        pages = [opened(context, "/runs") for _ in range(TABS)]
        assert asked == pages[:1]  # one connection for all of them

        run = held.site.submit("ui done", {"number": 1})
        for page in pages:
            shows(page, run)

        with context.expect_event("request", follows):
            pages.pop(0).close()
        run = held.site.submit("ui done", {"number": 2})
        for page in pages:
            shows(page, run)
        assert len(asked) == 2


def test_a_hidden_tab_leaves_the_stream_to_a_visible_one(browser: Browser, held: Held):
    with tabs(browser, held.site.origin) as context:
        asked = followers(context)
        first, second = (opened(context, "/runs") for _ in "ab")
        with context.expect_event("request", follows):
            first.evaluate(HIDE, True)
        assert asked == [first, second]

        run = held.site.submit("ui done", {"number": 3})
        shows(second, run)
        assert first.locator(f"#r-{run}").count() == 0
        first.evaluate(HIDE, False)
        shows(first, run)


def test_hidden_tabs_close_their_stream_where_there_are_no_locks(browser: Browser, held: Held):
    """By plain http from another host a browser has none."""
    with tabs(browser, held.site.origin, "delete Navigator.prototype.locks") as context:
        asked = followers(context)
        pages: list[Page] = []
        for _ in range(TABS):
            pages.append(opened(context, "/runs"))
            pages[-1].evaluate(HIDE, True)
        assert asked == pages

        run = held.site.submit("ui done", {"number": 4})
        held.site.until(run, "succeeded")
        for page in pages[:2]:
            page.evaluate(HIDE, False)
            shows(page, run)


def test_a_page_from_before_a_change_asks_again_at_once(browser: Browser, held: Held):
    """Nobody notified it: the change came between its making and its first word of the stream."""
    with reading(browser, held.site.origin) as page:
        silent(page, made_at=1)
        with page.expect_request(lambda request: "hx-request" in request.headers):
            page.goto("/runs")


def test_a_page_asks_by_the_clock_only_while_it_must(browser: Browser, held: Held):
    ended = held.site.submit("ui done", {"number": 5})
    held.site.until(ended, "succeeded")
    for path in (f"/runs/{ended}", f"/runs/{ended}?tab=logs"):
        with reading(browser, held.site.origin) as page:
            silent(page)
            asked: list[Request] = []
            page.on("request", lambda request, asked=asked: asked.append(request))
            page.goto(path)
            expect(page.locator("#pulse")).to_have_attribute("data-state", "lost")
            page.clock.run_for(120_000)
            assert not any("hx-request" in each.headers for each in asked), path
    for path in ("/pools", "/pools/ui%20db", f"/runs/{held.holder}"):
        with reading(browser, held.site.origin) as page:
            silent(page)
            page.goto(path)
            expect(page.locator("#pulse")).to_have_attribute("data-state", "lost")
            with page.expect_response(lambda answer: "hx-request" in answer.request.headers):
                page.clock.run_for(6_000)


def test_a_run_that_has_ended_is_not_read_again_for_other_runs(browser: Browser, held: Held):
    ended = held.site.submit("ui done", {"number": 6})
    held.site.until(ended, "succeeded")
    with reading(browser, held.site.origin) as page:
        page.goto(f"/runs/{ended}")
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        with page.expect_response(lambda answer: "hx-request" in answer.request.headers) as answer:
            held.site.submit("ui done", {"number": 7})
        assert answer.value.status == 204


def test_a_typed_filter_survives_what_happens(browser: Browser, held: Held):
    with reading(browser, held.site.origin) as page:
        page.goto("/runs")
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        page.locator("[name=tags]").fill("tenant=ac")
        page.locator(".filters [name=q]").focus()
        page.evaluate("window.mark = 1")

        shows(page, held.site.submit("ui done", {"number": 8}))
        page.locator(".filters [name=q]").blur()
        shows(page, held.site.submit("ui done", {"number": 9}))

        expect(page.locator("[name=tags]")).to_have_value("tenant=ac")


def test_the_error_of_a_proxy_does_not_take_the_place_of_a_page(browser: Browser, held: Held):
    context = browser.new_context(base_url=held.site.origin)
    page = opened(context, "/runs")

    def refuse(route: Route) -> None:
        route.fulfill(status=502, content_type="text/html", body="<h1>502 Bad Gateway</h1>")

    page.route("**/runs", refuse)
    with page.expect_response(lambda answer: answer.status == 502):
        missed = held.site.submit("ui done", {"number": 20})
    expect(page.locator("#live")).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("Bad Gateway")

    page.unroute("**/runs")
    shows(page, held.site.submit("ui done", {"number": 21}))
    shows(page, missed)
    context.close()


def test_the_marked_row_stays_the_same_run(browser: Browser, held: Held):
    run = held.site.submit("ui done", {"number": 10})
    held.site.until(run, "succeeded")
    with reading(browser, held.site.origin) as page:
        page.goto("/runs")
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        page.evaluate("window.mark = 1")
        page.keyboard.press("j")
        marked = page.locator("tr[data-current]")
        expect(marked).to_have_attribute("id", f"r-{run}")

        shows(page, held.site.submit("ui done", {"number": 11}))

        expect(page.locator("tr[data-row]").nth(1)).to_have_attribute("id", f"r-{run}")
        expect(marked).to_have_attribute("id", f"r-{run}")
        expect(marked).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(f"/runs/{run}$"))


def test_the_keys_move_over_rows_that_look_alike(browser: Browser, held: Held):
    with reading(browser, held.site.origin) as page:
        silent(page)  # a refresh would replace the rows below
        page.goto("/runs")
        page.locator("tbody").evaluate(
            "body => { body.innerHTML = '<tr data-row><td>same</td></tr>'.repeat(3); }"
        )
        for place in (0, 1, 2, 2):
            page.keyboard.press("j")
            expect(page.locator("tr[data-row]").nth(place)).to_have_attribute("data-current", "")
        page.keyboard.press("k")
        expect(page.locator("tr[data-current]")).to_have_count(1)
        expect(page.locator("tr[data-row]").nth(1)).to_have_attribute("data-current", "")


def test_an_opened_list_stays_with_its_pool(browser: Browser, held: Held):
    with reading(browser, held.site.origin) as page:
        page.goto("/pools")
        card = page.locator(".card.pool", has_text="ui db")
        card.locator("summary").click()
        expect(card.locator("details")).to_have_attribute("open", "")

        held.site.call("PUT", "/pools/a%20%22first%22", {"limit": 1})

        expect(page.locator(".card.pool").first).to_contain_text('a "first"')
        expect(card.locator("details")).to_have_attribute("open", "")


def test_a_lease_near_its_end_gets_its_colour_by_the_clock(browser: Browser, held: Held):
    with reading(browser, held.site.origin) as page:
        page.goto("/pools/ui%20db")
        found = page.locator("[data-label='lease ends'] time").evaluate(
            """time => [60, 3, -3, 60].map(seconds => {
              time.dateTime = new Date(Date.now() + 1000 * seconds).toISOString();
              locktender.tick();
              return time.parentElement.className;
            })"""
        )
        assert found == ["", "lease-near", "lease-over", ""]


def test_a_value_without_neighbours_is_drawn(browser: Browser, held: Held):
    with reading(browser, held.site.origin) as page:
        page.goto("/")
        nothing, one, three = page.evaluate(
            DRAWN, [[None, None, None], [None, 5, None], [7, None, 5, None, 6]]
        )
        assert nothing == 0
        assert one > 4
        assert three > 2 * one


def test_a_page_outlives_a_restart_and_says_when_nobody_answers(browser: Browser, tmp_path: Path):
    port = free_port()
    with tabs(browser, f"http://127.0.0.1:{port}") as context:
        with site(tmp_path, port=port) as found:
            found.call("PUT", "/pools/ui%20db", {"limit": 1})
            page = opened(context, "/pools")
            other = opened(context, "/pools")
        card = page.locator(".card.pool", has_text="ui db")
        for each in (page, other):
            expect(each.locator("#pulse")).to_have_attribute("data-state", "lost")
        card.get_by_role("button", name="Set", exact=True).click()
        note = page.locator("#toasts .toast.bad")
        expect(note).to_have_text("The server does not answer. Try again in a moment.")

        with site(tmp_path, port=port):
            for each in (page, other):
                expect(each.locator("#pulse")).to_have_attribute("data-state", "live")
            ask_limit(page, "5").click()
            expect(page.locator("#dialog")).to_be_hidden()
            for each in (page, other):
                expect(each.locator(".card.pool")).to_contain_text("of 5 in use")
                assert each.evaluate("window.mark") == 1
            send = ask_limit(page, "6")
        send.click()
        expect(page.locator("#dialog .toast.bad")).to_contain_text(
            "It is not known whether the change was made"
        )


def test_a_page_with_a_revoked_token_comes_back_after_the_login(browser: Browser, tmp_path: Path):
    def token(name: str) -> str:
        made = locktender("tokens", "create", name, "--scope", "read", "--json", cwd=tmp_path)
        assert made.code == 0, made.err
        return made.data["token"]

    first, second = token("first"), token("second")
    with site(tmp_path, "--auth", "tokens") as found, tabs(browser, found.origin) as context:
        page = context.new_page()
        page.goto("/pools?seen=here")  # it asks by the clock
        page.locator("#token").fill(first)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")

        assert locktender("tokens", "revoke", "first", cwd=tmp_path).code == 0

        expect(page.locator("#token")).to_be_visible()
        page.locator("#token").fill(second)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(re.compile(r"/pools\?seen=here$"))
        expect(page.locator("h1")).to_have_text("Pools")
