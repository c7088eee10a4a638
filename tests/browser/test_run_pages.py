"""The pages of a run, workers, schedules and the inbox, in a real browser with real runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.steps.page_steps import MARKUP, NAME
from tests.support.cli_harness import locktender
from tests.support.run_pages import PATIENCE_MS, PageServer, chromium, opened, page_server, serious

from locktender.testing import eventually

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with page_server(tmp_path_factory.mktemp("pages")) as server:
        server.ask("/pools/page%20db", {"limit": 1}, "PUT")
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


def unloaded(page: Page) -> None:
    """The page is still the one that was marked: nothing was reloaded."""
    assert page.evaluate("window.marked") is True


def confirm(page: Page, button: str) -> None:
    dialog = page.locator("#dialog")
    expect(dialog.locator("summary")).to_have_text("The same as CLI or curl")
    expect(dialog.locator(".command code").first).to_contain_text("locktender ")
    expect(dialog.locator(".command code").last).to_contain_text("curl ")
    dialog.get_by_role("button", name=button).click()
    expect(dialog).to_be_hidden()


def test_a_run_that_waits_names_its_holder_and_goes_on_live(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    first, latch = tmp_path / "first", tmp_path / "second"
    latch.touch()
    holder = server.submit("pages diamond", {"text": "a", "latch": str(first)})
    server.until(holder, "running")
    run = server.submit(
        "pages diamond", {"text": MARKUP, "latch": str(latch)}, tags={"tenant": NAME}
    )
    with opened(context, f"{server.origin}/runs/{run}") as page:
        why = page.locator(".why")
        expect(why).to_contain_text("pool page db: 1 of 1 in use")
        expect(why.locator(f'a[href^="/runs/{holder}"]').first).to_be_visible()
        words = page.locator(".why details pre")
        expect(words).to_contain_text("1 × cleaned waiting")
        expect(page.locator('.node[data-step="cleaned"]')).to_have_class(re.compile("n-requested"))
        expect(page.locator(".tag b").first).to_have_text(NAME)
        expect(page.locator("#timeline")).to_have_attribute("data-ready", re.compile("."))
        expect(page.locator("#timeline-legend")).to_contain_text("pool page db")
        page.evaluate("window.marked = true")

        first.touch()

        expect(page.locator("h1 + .state")).to_have_text("succeeded")
        expect(page.locator(".node.n-completed")).to_have_count(4)
        unloaded(page)
        page.goto(f"{server.origin}/pools/page%20db")
        expect(page.locator(".history .uplot canvas")).to_have_count(2)
    drawn = {each["name"]: each["us"] for each in server.ask(f"/runs/{run}/timeline")["whats"]}
    lost = server.ask(f"/runs/{run}/blame")["blame"]["lost_us"]
    assert drawn["pool:page db"] == lost["pool:page db"] > 0


def test_the_timeline_moves_by_keyboard_and_has_a_table(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    latch = tmp_path / "latch"
    latch.touch()
    run = server.submit("pages diamond", {"text": "a", "latch": str(latch)})
    server.until(run, "succeeded")
    with opened(context, f"{server.origin}/runs/{run}") as page:
        scripts = page.evaluate("[...document.scripts].map((each) => each.src.split('/').pop())")
        own = [each.partition(".")[0] for each in scripts if each.startswith(("app.", "timeline."))]
        assert own == ["app", "timeline"]
        canvas = page.locator("#timeline canvas")
        canvas.focus()
        for key in ("ArrowDown", "ArrowDown", "+", "ArrowRight", "-", "0"):
            page.keyboard.press(key)
        expect(page.locator("#timeline-said")).to_contain_text("extracted: running")
        tip = page.locator(".tip")
        expect(tip).to_be_visible()
        expect(tip.get_by_role("link", name="extracted")).to_be_visible()
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 60, box["y"] + 55)
        expect(tip).to_be_visible()
        page.get_by_role("button", name="Zoom in").click()
        page.get_by_role("button", name="Whole run").click()
        page.get_by_text("The timeline as a table").click()
        rows = page.locator("#timeline-table tbody tr")
        expect(rows).to_have_count(5)
        expect(rows.last).to_contain_text("published")
        page.locator('.node[data-step="published"]').focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("pages diamond")
        expect(page.locator("tbody tr[data-row]")).to_have_count(1)
        expect(page.locator("tbody tr[data-row]")).to_contain_text("published")


def test_a_failed_run_shows_its_traceback_and_is_retried(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    mended = tmp_path / "mended"
    run = server.submit("pages broken", {"text": MARKUP, "mended": str(mended)})
    server.until(run, "failed")
    with opened(context, f"{server.origin}/runs/{run}") as page:
        expect(page.locator(".failure .words")).to_contain_text(f"ValueError: broken: {MARKUP}")
        expect(page.locator(".trace")).to_contain_text("Traceback (most recent call last)")
        expect(page.locator(".node")).to_have_attribute("data-step", NAME)
        page.get_by_role("link", name="Logs").click()
        expect(page.locator(".logs .text").first).to_have_text(f"broken {MARKUP}")
        expect(page.locator(".logs tr")).to_have_count(2)
        page.get_by_role("link", name="Tasks").click()
        expect(page.locator("td.name a")).to_have_text(NAME)
        page.locator("td.name a").click()
        expect(page.locator("h1")).to_have_text(NAME)
        expect(page.locator(".json").first).to_contain_text("onerror")
        page.go_back()
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")
        page.evaluate("window.marked = true")
        mended.touch()
        page.get_by_role("button", name="Retry").click()
        confirm(page, "Queue it again")
        expect(page.locator("#toasts .toast")).to_contain_text("queued again")
        expect(page.locator("h1 + .state")).to_have_text("succeeded")
        expect(page.locator(".run-head")).to_contain_text("run again once")
        page.get_by_role("button", name="Run again from …").click()
        page.locator("#dialog select").select_option(NAME)
        confirm(page, "Queue it again")
        expect(page.locator(".run-head")).to_contain_text("run again twice")
        expect(page.locator("h1 + .state")).to_have_text("succeeded")
        unloaded(page)


def test_open_pages_of_a_failed_run_follow_its_retry(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    mended = tmp_path / "mended"
    run = server.submit("pages broken", {"text": "a", "mended": str(mended)})
    server.until(run, "failed")
    task = server.ask(f"/runs/{run}/tasks")["tasks"][0]["id"]
    with (
        opened(context, f"{server.origin}/runs/{run}") as page,
        opened(context, f"{server.origin}/runs/{run}/tasks/{task}") as part,
    ):
        for each in (page, part):
            each.evaluate("window.marked = true")
            expect(each.locator("h1 + .state")).to_have_text("failed")
            expect(each.locator("#pulse")).to_have_attribute("data-state", "live")
        expect(page.locator("#timeline")).to_have_attribute("data-ready", "1")

        mended.touch()
        server.ask(f"/runs/{run}/retry", {})

        expect(page.locator("h1 + .state")).to_have_text("succeeded")
        expect(page.locator(".node.n-completed")).to_have_count(1)
        expect(page.locator("#timeline")).not_to_have_attribute("data-ready", "1")
        expect(part.locator("h1 + .state")).to_have_text("completed")
        for each in (page, part):
            unloaded(each)


def test_a_run_is_paused_resumed_and_cancelled(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    run = server.submit("pages chatty", {"first": MARKUP, "latch": str(tmp_path / "never")})
    with opened(context, f"{server.origin}/runs/{run}?tab=logs") as page:
        page.evaluate("window.marked = true")
        expect(page.locator(".logs .text").first).to_have_text(f"first line {MARKUP}")
        page.get_by_role("button", name="Pause").click()
        confirm(page, "Pause the run")
        expect(page.locator(".run-head .chip.odd")).to_have_text("paused")
        page.get_by_role("button", name="Resume").click()
        confirm(page, "Resume the run")
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        page.locator("#dialog input[name=reason]").fill(MARKUP)
        confirm(page, "Cancel the run")
        expect(page.locator("h1 + .state")).to_have_text("cancelled")
        unloaded(page)


def test_log_lines_come_while_the_step_runs(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    latch = tmp_path / "latch"
    run = server.submit("pages chatty", {"first": "one", "latch": str(latch)})
    with opened(context, f"{server.origin}/runs/{run}?tab=logs") as page:
        page.evaluate("window.marked = true")
        expect(page.locator(".logs .text")).to_have_text(["first line one"])
        latch.touch()
        expect(page.locator(".logs .text")).to_have_text(["first line one", "second line"])
        unloaded(page)


def test_many_items_are_folded_paged_and_downloaded(server: PageServer, context: BrowserContext):
    run = server.submit("pages many", {"items": 700})
    server.until(run, "succeeded")
    with opened(context, f"{server.origin}/runs/{run}") as page:
        expect(page.locator(".node")).to_contain_text("700 of 700")
        page.get_by_text("The timeline as a table").click()
        expect(page.locator("#timeline-table")).to_contain_text("700 items")
        page.goto(f"{server.origin}/runs/{run}?tab=tasks")
        expect(page.locator("tbody tr")).to_have_count(50)
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("td.name a").first).to_have_text("doubled[50]")
        page.get_by_role("link", name="failed").click()
        expect(page.locator(".empty")).to_contain_text("No such task")
        page.goto(f"{server.origin}/runs/{run}?tab=values")
        expect(page.locator(".json").first).to_contain_text('"items": 700')
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").last.click()
        text = Path(download.value.path()).read_text()
        assert text.startswith("[0,2,4")
        page.goto(f"{server.origin}/runs/{run}?tab=time")
        expect(page.locator(".blame tfoot")).to_contain_text("100 %")
        page.goto(f"{server.origin}/runs/{run}?tab=slots")
        expect(page.locator("tbody")).to_contain_text("run succeeded")


def test_a_worker_is_drained_and_gets_tasks_again(server: PageServer, context: BrowserContext):
    with opened(context, f"{server.origin}/workers") as page:
        page.evaluate("window.marked = true")
        expect(page.locator(".worker")).to_contain_text("process")
        page.get_by_role("button", name="Drain").click()
        confirm(page, "Drain the worker")
        expect(page.locator(".worker .note")).to_contain_text("an operator drains it")
        page.get_by_role("button", name="Give it tasks again").click()
        confirm(page, "Give it tasks")
        expect(page.locator(".worker .chip").first).to_have_text("alive")
        unloaded(page)


def test_a_schedule_is_paused_resumed_and_run_now(server: PageServer, context: BrowserContext):
    with opened(context, f"{server.origin}/schedules") as page:
        page.evaluate("window.marked = true")
        expect(page.locator(".empty code").last).to_contain_text("locktender schedules set")
        server.ask(
            "/schedules/nightly",
            {
                "flow": "pages many",
                "args": {"items": 3},
                "cron": "0 3 * * 1-5",
                "tz": "Europe/Berlin",
            },
            "PUT",
        )
        page.reload()
        card = page.locator(".schedule")
        expect(card.locator("ol.ticks").first.locator("li")).to_have_count(5)
        page.get_by_role("button", name="Pause").click()
        confirm(page, "Pause the schedule")
        page.reload()
        expect(card.locator(".chip.odd")).to_have_text("paused")
        page.get_by_role("button", name="Resume").click()
        confirm(page, "Resume the schedule")
        page.reload()
        expect(card.get_by_role("button", name="Pause")).to_be_visible()
        page.get_by_role("button", name="Run now").click()
        confirm(page, "Run now")
        page.locator("#toasts").get_by_role("link", name="Show").click()
        expect(page.locator("h1")).to_have_text("pages many")
        expect(page.locator(".tag").first).to_contain_text("nightly")


def test_an_approval_is_answered_by_a_form_of_its_schema(
    server: PageServer, context: BrowserContext
):
    run = server.submit("pages approval", {"item": MARKUP}, key="for-acme", tags={"tenant": "acme"})
    server.until(run, "waiting")
    with opened(context, f"{server.origin}/inbox") as page:
        page.evaluate("window.marked = true")
        row = page.locator("tbody tr")
        expect(row).to_contain_text("page approved")
        expect(row).to_contain_text(f"item={json.dumps(MARKUP)}")
        expect(row).to_contain_text("key for-acme")
        expect(row.locator(".tag")).to_have_text("tenantacme")
        page.get_by_role("button", name="Answer").click()
        dialog = page.locator("#dialog")
        expect(dialog.locator("label")).to_have_count(3)
        dialog.locator('input[name="payload.by"]').fill(MARKUP)
        dialog.locator('input[name="payload.amount"]').fill("12")
        dialog.locator('select[name="payload.ok"]').select_option("yes")
        expect(dialog.locator(".command")).to_have_count(2)
        confirm(page, "Send")
        expect(page.locator(".empty")).to_contain_text("Nothing waits for an answer")
        unloaded(page)
        server.until(run, "succeeded")
        page.goto(f"{server.origin}/runs/{run}?tab=values")
        expect(page.locator(".json").last).to_contain_text(MARKUP.replace('"', '\\"'))
        expect(page.locator(".json").last).to_contain_text('"amount": 12')


def test_a_reading_token_sees_its_own_runs_and_no_buttons(browser: Browser, tmp_path: Path):
    def token(name: str, *options: str) -> str:
        made = locktender("tokens", "create", name, *options, "--json", cwd=tmp_path)
        assert made.code == 0, made.err
        return made.data["token"]

    admin = token("root", "--scope", "operate")
    reader = token("ann", "--scope", "read", "--tag", "tenant=acme")
    latch = tmp_path / "latch"
    with page_server(tmp_path, "--auth", "tokens", token=admin) as server:
        server.ask("/pools/page%20db", {"limit": 1}, "PUT")
        args = {"text": "a", "latch": str(latch)}
        other = server.submit("pages diamond", args, tags={"tenant": "globex"})
        eventually(lambda: server.ask(f"/runs/{other}/why")["why"].get("running"))
        own = server.submit("pages diamond", args, tags={"tenant": "acme"})
        context = browser.new_context(extra_http_headers={"authorization": f"Bearer {reader}"})
        with opened(context, f"{server.origin}/runs/{own}") as page:
            expect(page.locator(".why")).to_contain_text("pool page db: 1 of 1 in use")
            assert other not in page.content()
            expect(page.locator(".run-head .button")).to_have_count(0)
            expect(page.locator("#timeline")).to_have_attribute("data-ready", re.compile("."))
            for path in ("/schedules", "/inbox"):
                page.goto(server.origin + path)
                expect(page.locator("main .button")).to_have_count(0)
        for path, status in (
            (f"/runs/{other}", 404),
            ("/workers", 403),
            (f"/runs/{own}/cancel", 403),
        ):
            assert context.request.get(server.origin + path).status == status, path
        context.close()
        latch.touch()
        server.until(own, "succeeded")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_pages_are_accessible_and_fit(
    server: PageServer, browser: Browser, tmp_path: Path, theme: str, width: int
):
    mended = tmp_path / "mended"
    failed = server.submit("pages broken", {"text": MARKUP, "mended": str(mended)})
    server.until(failed, "failed")
    waiting = server.submit("pages approval", {"item": "pen"}, tags={"long": "x" * 60})
    server.until(waiting, "waiting")
    scheme = "dark" if theme == "dark" else "light"
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    paths = [f"/runs/{failed}{tab}" for tab in ("", "?tab=tasks", "?tab=time", "?tab=slots")]
    paths += [f"/runs/{waiting}", "/workers", "/schedules", "/inbox"]
    with opened(context) as page:
        for path in paths:
            page.goto(server.origin + path)
            if path.startswith("/runs/") and "?" not in path:
                expect(page.locator("#timeline")).to_have_attribute("data-ready", re.compile("."))
            found = serious(page)
            assert found == [], "\n".join([path, *found])
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    context.close()
    server.ask(f"/runs/{waiting}/cancel", {})


CHOOSES_AT_ONCE = """
new MutationObserver(() => {
  const select = document.querySelector("#dialog select");
  if (!select || select.value) return;
  select.selectedIndex = 1;
  select.dispatchEvent(new Event("input", {bubbles: true}));
}).observe(document, {childList: true, subtree: true});
"""


def test_commands_follow_a_choice_made_at_once(
    server: PageServer, context: BrowserContext, tmp_path: Path
):
    mended = tmp_path / "mended"
    mended.touch()
    run = server.submit("pages broken", {"text": "fine", "mended": str(mended)})
    server.until(run, "succeeded")
    with opened(context, f"{server.origin}/runs/{run}") as page:
        page.evaluate(CHOOSES_AT_ONCE)
        page.get_by_role("button", name="Run again from …").click()
        expect(page.locator("#dialog .command code").first).to_contain_text("locktender ")
