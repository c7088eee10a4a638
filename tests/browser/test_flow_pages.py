"""Overview, runs, queue, pools and limits in a real browser, on a server with real runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.steps.ui_steps import LONG, MARKUP
from tests.support.browsing import PHONE, Site, chromium, reading, serious, site
from tests.support.cli_harness import locktender

from locktender.testing import eventually

pytestmark = pytest.mark.timeout(300)
PAGES = (
    "/",
    "/runs",
    "/runs?status=queued&group=gate",
    "/queue",
    "/pools",
    "/pools/ui%20db",
    "/limits",
)
PAYLOADS = (
    "<script>window.xss=1</script>",
    "<img src=x onerror=window.xss=1>",
    "<svg onload=window.xss=1>",
    "<svg><script>window.xss=1</script></svg>",
    '"><script>window.xss=1</script>',
    "'><script>window.xss=1</script>",
    '" onmouseover="window.xss=1',
    "' onfocus='window.xss=1' autofocus='",
    "javascript:window.xss=1",
    "</title><script>window.xss=1</script>",
    "</textarea><script>window.xss=1</script>",
    "</style><script>window.xss=1</script>",
    "--><script>window.xss=1</script>",
    "]]><script>window.xss=1</script>",
    "<iframe srcdoc='<script>parent.xss=1</script>'>",
    "<body onload=window.xss=1>",
    "<a href=javascript:window.xss=1>x</a>",
    "<details open ontoggle=window.xss=1>",
    "<input autofocus onfocus=window.xss=1>",
    "<video><source onerror=window.xss=1>",
    "<math><mtext><script>window.xss=1</script>",
    "<object data='javascript:window.xss=1'>",
    "<base href=//127.0.0.2/>",
    "<meta http-equiv=refresh content='0;url=/api/docs'>",
    "<form action=//127.0.0.2><button>x",
    "{{ 7 * 7 }}{% raw %}",
    "${alert(1)}`alert(1)`",
    "&lt;script&gt;window.xss=1&lt;/script&gt;",
    "<div hx-get=/health hx-trigger=load hx-on:click='window.xss=1'>",
    "<x data-chart='{' data-copy=1 data-live>\u202egnp.exe",
)

NAMES = tuple(each.replace("/", "|").replace("\u202e", "") for each in PAYLOADS)
"""The same as far as a tag may have it."""


class Filled(NamedTuple):
    """A server where two runs execute, one of them with the pool's only slot, and the rest is queued."""

    site: Site
    holder: str
    waiter: str
    queued: list[str]
    latch: Path
    logged: str
    """It has logged every payload."""
    long: str
    """Its flow and its key have long names."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def filled(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("ui")
    with site(folder, "--label", f"note={MARKUP}") as found:
        latch = folder / "latch"
        logged = found.submit(f"ui {MARKUP}", {"texts": PAYLOADS})
        long = found.submit(LONG, {"number": 1}, key="k" * 150)
        found.until(logged, "succeeded")
        found.until(long, "succeeded")
        failed = found.submit_all("ui fail", [{"args": {"text": each}} for each in PAYLOADS])
        found.submit("ui done", {"number": 1})
        for each in failed:
            found.until(each, "failed")
        found.call("PUT", "/pools/ui%20db", {"limit": 1})
        found.call("PUT", "/limits/max_concurrent_runs", {"value": 2})
        holder, waiter = (found.submit("ui hold", {"latch": str(latch)}) for _ in "ab")
        found.until(holder, "running")
        found.until(waiter, "running")
        queued = found.submit_all(
            "ui done",
            [
                {"args": {"number": at}, "key": each, "tags": {"note": each, "n": str(at)}, "priority": at % 3}
                for at, each in enumerate(NAMES)
            ],
        )  # fmt: skip
        eventually(lambda: len(found.call("GET", "/queue?limit=100")["queue"]) == len(queued))
        yield Filled(found, holder, waiter, queued, latch, logged, long)


def marked(page: Page) -> None:
    page.evaluate("window.mark = 1")


def same_page(page: Page) -> None:
    """It was not loaded anew."""
    assert page.evaluate("window.mark") == 1


def confirm(page: Page, button: str, **fields: str) -> None:
    """Fills the dialog in and sends it; it has the same as CLI and curl."""
    dialog = page.locator("#dialog")
    expect(dialog).to_be_visible()
    for name, value in fields.items():
        dialog.locator(f"[name={name}]").fill(value)
    expect(dialog.locator(".command code").first).to_contain_text("locktender ")
    expect(dialog.locator(".command code").last).to_contain_text("curl")
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#toasts .toast.good").last).to_be_visible()


def test_the_overview_shows_where_work_is_held(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/")

        expect(page).to_have_title("Overview · Locktender")
        expect(page.locator(".canal .chamber").first).to_contain_text("30 runs")
        expect(page.locator(".bottleneck")).to_contain_text("the run queue: 30 runs, 2 of 2 taken")
        expect(page.locator("table").first).to_contain_text("pool ui db")
        expect(page.locator("thead").first).to_contain_text("Passed a minute")
        expect(page.locator("td.num").nth(1)).to_have_text(re.compile(r"^\d"))
        expect(page.locator(".sluice").first).to_contain_text("a minute")
        shut = page.locator(".sluice.full")
        expect(shut).to_have_text([re.compile("the run queue"), re.compile("slots and workers")])
        expect(page.locator(".uplot canvas")).to_have_count(2)
        expect(page.get_by_text("Failed lately")).to_be_visible()


def test_the_overview_follows_without_being_loaded_anew(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/")
        marked(page)
        expect(page.locator("#pulse")).to_have_attribute("data-state", "live")

        filled.site.call("PUT", "/pools/ui%20small", {"limit": 8})
        run = filled.site.submit("ui never", {}, priority=100)
        filled.site.call("PUT", "/pools/ui%20small", {"limit": 2})
        filled.site.call("PUT", "/limits/max_concurrent_runs", {"value": 3})

        expect(page.locator(".alert", has_text="can never start")).to_be_visible()
        same_page(page)
        filled.site.call(
            "PUT", "/limits/max_concurrent_runs", {"value": 2}
        )  # nothing starts in its stead
        filled.site.call("POST", f"/runs/{run}/cancel")
        filled.site.until(run, "cancelled")
        expect(page.locator(".alert", has_text="can never start")).to_have_count(0)
        same_page(page)


def test_the_queue_says_who_is_next_and_why_it_waits(browser: Browser, filled: Filled):
    run = filled.site.submit("ui done", {"number": 0}, priority=-5)
    with reading(browser, filled.site.origin) as page:
        page.goto("/queue")
        first = page.locator("tr[data-row]").first
        expect(first.locator("td").first).to_have_text("1")
        expect(first).to_contain_text("the run queue: 2 of 2 runs execute")
        expect(first.locator(".holders a")).to_have_attribute("href", re.compile("^/runs/"))
        expect(first.locator(".step")).to_have_text("done")
        expect(page.locator("tr[data-row]").last).to_have_attribute("id", f"q-{run}")

        page.locator(f"#q-{run} .chip.edit").click()
        confirm(page, "Set the priority", priority="900")

        expect(page.locator("tr[data-row]").first).to_have_attribute("id", f"q-{run}")
        page.locator(f"#q-{run}").get_by_role("button", name="Cancel").click()
        confirm(page, "Cancel the run", reason="a test")
        expect(page.locator(f"#q-{run}")).to_have_count(0)
        assert filled.site.state(run) == "cancelled"


def test_names_are_shown_as_text(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/queue")
        expect(page.locator("tr[data-row]").first).to_be_visible()
        shown = page.locator(".tag", has_text="note").locator("b").all_inner_texts()
        texts = [each.partition("\u202e")[0] for each in PAYLOADS]
        assert set(NAMES) <= set(shown)
        page.goto("/runs?status=failed,timed_out")
        errors = page.locator(".error-text").all_inner_texts()
        for each in texts:
            assert any(each in error for error in errors), each
        page.goto("/runs?status=queued&group=gate")
        expect(page.locator("tr.group").first).to_contain_text("the run queue")
        for each in PAYLOADS[:3]:
            page.goto("/")
            page.locator("#search").fill(each)
            page.keyboard.press("Enter")
            expect(page.locator("h1").first).to_be_visible()
            assert page.locator("main script").count() == 0


def test_logs_values_flow_names_and_labels_are_shown_as_text(browser: Browser, filled: Filled):
    shown = [each.replace("\u202e", "") for each in PAYLOADS]
    with reading(browser, filled.site.origin) as page:
        page.goto(f"/runs/{filled.logged}?tab=logs")
        expect(page.locator("h1")).to_contain_text(MARKUP)
        expect(page.locator(".logs .text")).to_have_text(shown)
        page.goto(f"/runs/{filled.logged}?tab=values")
        expect(page.locator(".json").first).to_contain_text("<script>window.xss=1</script>")
        page.goto("/workers")
        expect(page.locator("main")).to_contain_text(MARKUP)
        page.goto("/runs?status=succeeded")
        expect(page.locator("td.flow", has_text=MARKUP)).to_have_count(1)
        assert page.locator("main img, main script").count() == 0


def test_runs_are_filtered_searched_and_changed_together(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/runs")
        page.get_by_role("link", name="Queued", exact=True).click()
        expect(page).to_have_url(re.compile(r"status=queued"))
        page.locator("[name=tags]").fill("n=7")
        page.keyboard.press("Enter")
        expect(page.locator("tr[data-row]")).to_have_count(1)
        expect(page).to_have_url(re.compile(r"tags=n(=|%3D)7"))
        expect(page.locator("tr[data-row]")).to_contain_text("queued")
        page.goto("/")
        page.keyboard.press("/")
        page.keyboard.type("n=8\n")
        expect(page).to_have_url(re.compile(r"/runs\?tags=n=8"))

        page.goto("/runs?status=queued&tags=n=9")
        page.get_by_role("button", name="Reprioritise all").click()
        expect(page.locator("#dialog code").last).to_contain_text("/api/v1/queue/priority")
        confirm(page, "Reprioritise 1 run", priority="77")
        run = filled.queued[9]
        eventually(lambda: filled.site.call("GET", f"/runs/{run}")["priority"] == 77)
        page.get_by_role("button", name="Cancel all").click()
        expect(page.locator("#dialog")).to_contain_text("Cancel 1 run?")
        confirm(page, "Cancel 1 run")
        filled.site.until(run, "cancelled")

        page.goto("/runs?status=cancelled&tags=n=9")
        page.get_by_role("button", name="Retry all").click()
        confirm(page, "Retry 1 run")
        filled.site.until(run, "queued")


def test_a_pool_is_set_paused_and_reset_with_who_when_and_why(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/pools")
        card = page.locator(".card.pool", has_text="ui db")
        expect(card).to_contain_text("1 of 1 in use")
        expect(card.locator(".bar .red")).to_have_count(1)
        expect(card).to_contain_text("1 waiting")
        card.locator("summary").click()
        expect(card.locator("tbody")).to_contain_text(filled.holder[:12])
        marked(page)

        card.get_by_role("button", name="Set", exact=True).click()
        confirm(page, "Set", limit="3", reason="more room")
        expect(card).to_contain_text("of 3 in use")
        expect(card.locator("details")).to_have_attribute("open", "")
        card.get_by_role("button", name="Pause").click()
        confirm(page, "Pause it", reason="maintenance")
        expect(card).to_contain_text("paused")
        card.get_by_role("button", name="Resume").click()
        confirm(page, "Resume it")
        expect(card.locator(".chip.odd")).to_have_count(0)
        same_page(page)

        page.goto("/pools/ui%20db")
        changes = page.locator(".section", has_text="Changes")
        expect(changes).to_contain_text("more room")
        expect(changes).to_contain_text("maintenance")
        page.get_by_role("button", name="Reset").click()
        confirm(page, "Reset it")
        filled.site.call("PUT", "/pools/ui%20db", {"limit": 1})


def test_an_older_dialog_does_not_overwrite_a_newer_change(browser: Browser, filled: Filled):
    filled.site.call("PUT", "/pools/ui%20two", {"limit": 2})
    with reading(browser, filled.site.origin, refused=412) as page:
        page.goto("/pools")
        card = page.locator(".card.pool", has_text="ui two")
        card.get_by_role("button", name="Set", exact=True).click()
        dialog = page.locator("#dialog")
        expect(dialog).to_be_visible()
        filled.site.call("PUT", "/pools/ui%20two", {"limit": 4})
        dialog.locator("[name=limit]").fill("9")
        with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
            dialog.get_by_role("button", name="Set", exact=True).click()

        assert answered.value.status == 412
        expect(dialog.locator(".toast.bad")).to_be_visible()
        assert filled.site.call("GET", "/pools/ui%20two")["limit"] == 4


def test_limits_are_set_and_their_changes_listed(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/limits")
        row = page.locator("tr[data-row]", has_text="max_active")
        row.get_by_role("button", name="Set", exact=True).click()
        confirm(page, "Set", value="9000", reason="fewer")
        expect(row).to_contain_text("9,000")
        page.get_by_role("button", name="Limit a tag").click()
        confirm(page, "Set", rule="team=*", limit="2")
        expect(page.locator("tr[data-row]", has_text="team=*")).to_contain_text("2 at once")
        expect(page.locator(".section", has_text="Changes of limits")).to_contain_text("fewer")


def test_settings_of_the_engine_are_set_by_a_form(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/limits")
        strict, boost = (
            page.locator("tr", has_text=each) for each in ("strict_pools", "age_boost")
        )
        strict.get_by_role("button", name="Set").click()
        expect(page.locator("#dialog code").last).to_contain_text('{"value": false}')
        page.locator("#dialog select").select_option("on")
        confirm(page, "Set", reason="typing errors")
        expect(strict.locator("td").nth(1)).to_have_text("on")
        boost.get_by_role("button", name="Set").click()
        expect(page.locator("#dialog code").first).to_have_text(
            f"locktender limits set age_boost 0 --url {filled.site.origin}"
        )
        confirm(page, "Set")
        for name in ("strict_pools", "age_boost"):
            filled.site.call("POST", f"/limits/{name}/reset")


def test_a_limit_is_paused_resumed_reset_and_counted(browser: Browser, filled: Filled):
    site = filled.site
    with reading(browser, site.origin) as page:
        page.goto("/limits")
        page.get_by_role("button", name="Limit a tag").click()
        confirm(page, "Set", rule="n=29", limit="2")
        row = page.locator("tr[data-row]", has_text="n=29")
        held = row.locator("[data-label='holds back']")
        expect(held).to_have_text("0 runs")
        row.get_by_role("button", name="Pause").click()
        confirm(page, "Pause it", reason="a test")
        expect(row).to_contain_text("paused")
        # The run waits at both limits, and counts at both.
        expect(held).to_have_text("1 run")
        queued = site.call("GET", "/queue?limit=100")["queue"]
        everywhere = page.locator("tr[data-row]", has_text="max_concurrent_runs")
        expect(everywhere.locator("[data-label='holds back']")).to_have_text(f"{len(queued)} runs")
        row.get_by_role("button", name="Resume").click()
        confirm(page, "Resume it")
        expect(row).not_to_contain_text("paused")
        expect(held).to_have_text("0 runs")
        row.get_by_role("button", name="Set", exact=True).click()
        confirm(page, "Set", limit="3", reason="more")
        expect(row).to_contain_text("3 at once")
        row.get_by_role("button", name="Reset").click()
        confirm(page, "Reset it")
        expect(row).to_have_count(0)
        changes = page.locator(".section", has_text="Changes of limits")
        expect(changes).to_contain_text("a test")
        expect(changes).to_contain_text("no login")


def test_all_runs_are_paused_and_go_on(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/limits")
        row = page.locator("tr[data-row]", has_text="max_concurrent_runs")
        row.get_by_role("button", name="Pause").click()
        confirm(page, "Pause it", reason="maintenance")
        expect(row).to_contain_text("paused")
        row.get_by_role("button", name="Resume").click()
        confirm(page, "Resume it")
        expect(row).not_to_contain_text("paused")


def test_a_pool_is_made_by_its_name(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/pools")
        page.get_by_role("button", name="Set a pool").click()
        confirm(page, "Set", name="ui made", limit="7", reason="new")
        page.locator("#toasts").get_by_role("link", name="Show").click()
        expect(page).to_have_url(re.compile("/pools/ui%20made$"))
        expect(page.locator("main")).to_contain_text("7")
    assert filled.site.call("GET", "/pools/ui%20made")["limit"] == 7


def test_commands_and_ids_are_copied(browser: Browser, filled: Filled):
    permissions = ["clipboard-read", "clipboard-write"]
    with reading(browser, filled.site.origin, permissions=permissions) as page:

        def copied() -> str:
            return page.evaluate("navigator.clipboard.readText()")

        page.goto(f"/runs/{filled.waiter}")
        for label, text in (
            ("Copy id", filled.waiter),
            ("CLI", f"locktender why {filled.waiter} --url {filled.site.origin}"),
            ("curl", f"curl {filled.site.origin}/api/v1/runs/{filled.waiter}"),
        ):
            button = page.locator(".under").get_by_role("button", name=label, exact=True)
            button.click()
            eventually(lambda text=text: copied() == text, timeout=60)
        page.get_by_role("button", name="Cancel", exact=True).first.click()
        dialog = page.locator("#dialog")
        expect(dialog).to_be_visible()
        dialog.locator("summary").click()
        commands = dialog.locator(".command")
        expect(commands).to_have_count(2)
        for command in commands.all():
            command.get_by_role("button").click()
            text = command.locator("code").text_content()
            eventually(lambda text=text: copied() == text, timeout=60)
        page.keyboard.press("Escape")


def test_a_form_without_the_token_of_the_page_is_refused(filled: Filled):
    run = filled.queued[0]
    form = {"content-type": "application/x-www-form-urlencoded"}
    for body, headers in (
        (b"reason=x", {}),
        (b"csrf=wrong", {}),
        (b"csrf=", {"origin": "http://evil.example"}),
    ):
        status, text = filled.site.ask(
            "POST", f"/queue/{run}/cancel", body, {**form, **headers}, below=""
        )
        assert status == 403, text
    assert filled.site.state(run) == "queued"


def test_pages_have_no_serious_fault_for_readers(browser: Browser, filled: Filled):
    for theme in ("dark", "light"):
        with reading(browser, filled.site.origin, color_scheme=theme) as page:
            for path in (
                ("/", "/queue", "/pools/ui%20db", "/limits") if theme == "dark" else PAGES[1:5:2]
            ):
                page.goto(path)
                expect(page.locator("h1").first).to_be_visible()
                assert serious(page) == [], (theme, path)


def test_pages_fit_a_phone(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin, viewport=PHONE) as page:
        for path in (*PAGES, f"/runs/{filled.long}"):
            page.goto(path)
            expect(page.locator("h1").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_tables_and_filters_fit_a_laptop(browser: Browser, filled: Filled):
    long = (f"/runs?q={'k' * 150}", f"/runs?flow={LONG}")
    with reading(browser, filled.site.origin) as page:
        for path in (*PAGES, *long, f"/runs/{filled.long}?tab=slots"):
            page.goto(path)
            expect(page.locator("h1").first).to_be_visible()
            for each in page.locator(".pool summary").all():
                each.click()
            over = "boxes => boxes.map(box => box.scrollWidth - box.clientWidth)"
            assert max([0, *page.locator(".scroll").evaluate_all(over)]) == 0, path
        page.goto("/runs")
        top = "parts => parts.map(part => part.getBoundingClientRect().top)"
        tops = page.locator(".filters label > :not(.sr)").evaluate_all(top)
        assert max(tops) - min(tops) < 20  # in one line, however long a flow's name is


def test_theme_keyboard_and_copying(browser: Browser, filled: Filled):
    with reading(browser, filled.site.origin) as page:
        page.goto("/queue")
        page.locator("main").click(position={"x": 5, "y": 5})
        page.keyboard.press("t")
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "light")
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.locator("tr[data-row]").nth(1)).to_have_attribute("data-current", "")
        page.keyboard.press("k")
        expect(page.locator("tr[data-row]").first).to_have_attribute("data-current", "")
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("p")
        expect(page).to_have_url(re.compile("/pools$"))


def test_the_queue_is_read_page_by_page(browser: Browser, filled: Filled):
    more = {"args": {"number": 2}, "tags": {"page": "2"}, "priority": -9}
    many = filled.site.submit_all("ui done", [more] * 40)
    eventually(lambda: len(filled.site.call("GET", "/queue?limit=100")["queue"]) >= 70)
    with reading(browser, filled.site.origin) as page:
        page.goto("/queue")
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("tr[data-row] td").first).to_have_text("51")
        seen = page.locator("tr[data-row]").evaluate_all("rows => rows.map(row => row.id.slice(2))")
        assert set(seen) <= set(many)
        page.get_by_role("link", name="First page").click()
        expect(page.locator("tr[data-row] td").first).to_have_text("1")
    filled.site.call("POST", "/runs/cancel", {"tags": {"page": "2"}})


def test_an_empty_overview_names_the_command_to_type_next(browser: Browser, tmp_path: Path):
    with site(tmp_path) as found, reading(browser, found.origin, viewport=PHONE) as page:
        page.goto("/")
        said = page.locator(".empty .command code").first.inner_text()
        program, verb, name, *rest = shlex.split(said)
        assert (program, verb) == ("locktender", "submit")
        assert rest[-2:] == ["--url", found.origin]
        names = [each["name"] for each in found.call("GET", "/flows")["flows"]]
        assert name in names
        page.goto("/inbox")
        here = page.locator(".side nav [aria-current]")
        expect(here).to_have_text("Inbox")
        expect(here).to_be_in_viewport(ratio=1)


def test_an_unknown_page_helps(browser: Browser, filled: Filled):
    status, text = filled.site.ask("GET", "/nowhere", None, {"accept": "text/html"}, below="")
    assert status == 404
    assert "There is nothing here" in text
    assert 'href="/queue"' in text
    status, text = filled.site.ask(
        "GET", f"/pools/{'x' * 10}", None, {"accept": "text/html"}, below=""
    )
    assert status == 404
    assert "There is no pool" in text
    status, _ = filled.site.ask("GET", "/nowhere", below="")
    assert status == 404


def test_what_pages_load_is_small_and_kept(filled: Filled):
    _, text = filled.site.ask("GET", "/", below="")
    names = set(re.findall(r'(?:src|href)="(/ui/[^"]+)"', text))
    assert len(names) >= 4
    for name in names:
        assert filled.site.ask("GET", name, below="")[0] == 200
    from locktender.server.ui.assets import assets
    from locktender.server.ui.pages import POLICY

    inline = re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", text, re.DOTALL)
    assert len(inline) == 3
    for each in inline:  # the policy names it, and allows no other
        assert base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() in POLICY
    assert "unsafe" not in POLICY

    # Browsers accept brotli by TLS only.
    assert sum(len(each.zipped) for each in assets().values()) <= 60_000


def test_a_tenant_sees_only_its_own(browser: Browser, tmp_path: Path):
    def token(name: str, *options: str) -> str:
        made = locktender("tokens", "create", name, *options, "--json", cwd=tmp_path)
        assert made.code == 0, made.err
        return json.loads(made.out)["token"]

    admin = {"authorization": f"Bearer {token('root', '--scope', 'operate')}"}
    with site(tmp_path, "--auth", "tokens") as found:
        latch = str(tmp_path / "latch")
        found.call("PUT", "/pools/ui%20db", {"limit": 1}, **admin)
        found.call("PUT", "/limits/max_concurrent_runs", {"value": 2}, **admin)
        runs = {
            tenant: [
                found.call(
                    "POST", "/runs",
                    {"flow": "ui hold", "args": {"latch": latch}, "tags": {"tenant": tenant}}, **admin,
                )["id"]
                for _ in range(2)
            ]
            for tenant in ("globex", "acme")
        }  # fmt: skip
        bound = token("acme", "--scope", "operate", "--tag", "tenant=acme")
        reader = token("reader", "--scope", "read")
        with reading(browser, found.origin) as page:
            page.goto("/queue")
            expect(page).to_have_url(re.compile(r"/login\?next=/queue"))
            assert serious(page) == []
            page.locator("#token").fill(bound)
            page.get_by_role("button", name="Log in").click()
            expect(page.locator("tr[data-row]")).to_have_count(2)
            for path in ("/queue", "/runs", "/", "/pools", "/pools/ui%20db", "/limits"):
                page.goto(path)
                expect(page.locator("h1").first).to_be_visible()
                text = page.content()
                assert all(each[:12] not in text for each in runs["globex"]), path
                assert "globex" not in text, path
            page.goto("/pools")
            expect(page.get_by_role("button", name="Set")).to_have_count(0)
            page.get_by_role("button", name="Log out").click()
            expect(page).to_have_url(re.compile("/login"))
            page.locator("#token").fill(reader)
            page.get_by_role("button", name="Log in").click()
            page.goto("/queue")
            expect(page.locator("tr[data-row]")).to_have_count(2)
            expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
