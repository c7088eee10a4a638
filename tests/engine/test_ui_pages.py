"""Pages say what is so: asked for by plain HTTP, of a server with a leader and a worker."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import flow, step, wait_event
from locktender.client.client_async import AsyncClient
from locktender.kernel.reasons import GateOpening, Holder, Reason
from locktender.observe.answer import Why
from locktender.server.ui import run as run_page
from locktender.server.ui import runs as runs_page
from locktender.server.ui.live import LiveFeed
from locktender.server.ui.pages import View
from locktender.server.ui.reading import SharedReadings


@step
async def noted(text: str) -> str:
    if text.startswith("fail"):
        raise ValueError(text)
    while text.startswith("/") and not await asyncio.to_thread(Path(text).exists):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return text


@flow(name="says note")
def note(text: str = "") -> str:
    return noted(text)


@flow(name="says wait")
def waits() -> Any:
    return wait_event("approved", timeout="2d")


class Pages(NamedTuple):
    port: int
    client: AsyncClient

    async def get(self, path: str) -> Answer:
        return await fetch(self.port, path)

    async def text(self, path: str) -> str:
        """Without tags, spaces as one."""
        page = (await self.get(path)).text
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())

    async def ended(self, text: str = "", **options: Any) -> str:
        run = await self.client.submit(note, text, **options)
        await run.wait("60s")
        return run.id


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[Pages]:
    async with (
        process(tmp_path / "a.db", lead=True, work=True) as (core, _),
        served(core, api=True) as port,
    ):
        yield Pages(port, AsyncClient(core))


def rows(answer: Answer) -> list[str]:
    """The runs of a list."""
    return re.findall(r'<tr data-row id="r-(\w+)"', answer.text)


async def test_the_card_of_a_run_says_about_and_counts_further_holders(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
):
    run = await pages.client.submit(waits)
    reason = Reason(
        "runs",
        "the run queue: 9 of 9 runs execute",
        9,
        9,
        ahead=6,
        ahead_is="about",
        holders=(Holder("a" * 26), Holder("b" * 26)),
        more_holders=7,
    )
    why = Why("run", run.id, "x", "queued", 1, 2, (reason,), position=7, position_is="about")

    async def told(*_: object) -> Why:
        return why

    monkeypatch.setattr(run_page, "_why", told)
    page = (await pages.get(f"/runs/{run.id}")).text
    assert '<span class="chip">position about 7 in the queue</span>' in page
    assert "9 of 9 runs execute; about 6 ahead</span>" in page
    assert "<li>and 7 more</li>" in page


async def test_what_lets_a_run_start_has_links_to_those_that_hold_it(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
):
    run = await pages.client.submit(waits)
    held = Reason("pool:db", "pool db", 1, 1, holders=(Holder("c" * 26, task=167772169),))
    opening = GateOpening("pool:db", "any of tasks 167772169, 1 <b> to end", about=True)
    why = Why("run", run.id, "x", "queued", 1, 2, (held,), lets_start=(opening,))

    async def told(*_: object) -> Why:
        return why

    monkeypatch.setattr(run_page, "_why", told)
    page = (await pages.get(f"/runs/{run.id}")).text
    link = f'<a class="id" href="/runs/{"c" * 26}/tasks/167772169">167772169</a>'
    assert f"To start it needs about any of tasks {link}, 1 &lt;b&gt; to end." in page


async def test_a_run_that_was_retried_says_when_it_was_queued_again(pages: Pages):
    run = await pages.client.runs.get(await pages.ended("fail"))
    assert "Submitted" in await pages.text(f"/runs/{run.id}")
    await run.retry()
    await run.wait("60s")
    said = await pages.text(f"/runs/{run.id}")
    assert "Queued again" in said
    assert "Submitted" not in said


async def test_a_worker_that_drains_is_alive(pages: Pages):
    (worker,) = await pages.client.workers.list()
    await pages.client.workers.drain(worker.id)
    said = await pages.text("/workers")
    assert "Alive 1 Tasks in flight" in said
    assert "Free permits 0" in said
    assert "Draining 1" in said


async def test_the_overview_shows_runs_that_wait_for_events(pages: Pages):
    runs = [await pages.client.submit(waits) for _ in range(2)]

    async def wait() -> bool:
        # A run gives its place back with a later commit than the one that opens its wait.
        states = [await run.status() for run in runs]
        return states == ["waiting"] * 2 and len(await pages.client.events.waiting()) == 2

    await until(wait, "the waits")
    page = await pages.text("/")
    assert "2 runs wait for an event or a time; nothing is held back at a gate" in page
    assert "None. 2 runs wait for an event or a time." in page
    assert 'href="/inbox"' in (await pages.get("/")).text
    grouped = await pages.text("/runs?group=gate")
    assert "an event or a time 2 runs on this page" in grouped
    assert "Nothing blocks them" not in grouped
    for run in runs:
        await run.cancel()


async def test_failed_lately_is_ordered_by_the_end(pages: Pages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("locktender.server.ui.overview.MAX_FAILED", 2)
    ended = [await pages.ended(f"fail {number}") for number in range(3)]
    again = await pages.client.runs.get(ended[0])
    await again.retry()
    await again.wait("60s")
    page = (await pages.get("/")).text.split("Failed lately")[1]
    assert re.findall(r'class="id" href="/runs/(\w+)"', page) == [ended[0], ended[2]]


async def test_a_gate_has_the_same_rate_in_the_picture_and_the_table(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    async def passed(self: SharedReadings, now: int) -> dict[str, float]:
        return {"runs:max_concurrent_runs": 1.0, "pool:db": 6.2, "worker": 2.0, "tag:tenant=a": 9.0}

    monkeypatch.setattr(SharedReadings, "passed", passed)
    for _ in range(3):
        await pages.ended()
    await pages.client.limits.set_max_concurrent_runs(1)
    holds, queued = [await pages.client.submit(note, f"{tmp_path}/latch") for _ in range(2)]

    async def runs() -> bool:
        return await holds.status() == "running"

    await until(runs, "the first run")
    page = (await pages.get("/")).text
    drawn = re.search(r">the run queue</text>.*?([\d.]+) a minute<", page)
    table = page.split("Gates that hold something back")[1]
    shown = re.search(
        r'<td class="num nowrap">1 run</td><td class="num nowrap">([\d.]+)</td>', table
    )
    assert drawn is not None
    assert shown is not None
    assert drawn[1] == shown[1] == "4"
    assert re.search(r">slots and workers</text>.*?8 a minute<", page)
    (tmp_path / "latch").touch()
    await queued.result("60s")


async def test_a_tag_with_a_comma_is_a_link_that_works(pages: Pages):
    tagged = await pages.ended(tags={"x": "a,b"})
    await pages.ended(tags={"x": "a"})
    link = re.search(r'<a class="tag" href="([^"]*)">', (await pages.get(f"/runs/{tagged}")).text)
    assert link is not None
    found = await pages.get(html.unescape(link[1]))
    assert (found.status, rows(found)) == (200, [tagged])
    # The form says it as the link does.
    field = re.search(r'name="tags"[^>]* value="([^"]*)"', found.text)
    assert field is not None
    again = await pages.get(f"/runs?tags={quote(html.unescape(field[1]))}")
    assert rows(again) == [tagged]


async def test_filters_apply_to_what_a_search_finds(pages: Pages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs_page, "PAGE", 2)
    bad = [await pages.ended("fail", key="k", tags={"n": "1"}) for _ in range(3)]
    good = [await pages.ended("done", key="k", tags={"n": "2"}) for _ in range(3)]
    assert rows(await pages.get("/runs?q=k&status=succeeded")) == good[:0:-1]
    assert rows(await pages.get("/runs?q=k&tags=n=1")) == bad[:0:-1]
    assert rows(await pages.get("/runs?q=k&flow=other")) == []
    assert rows(await pages.get(f"/runs?q={bad[0]}&status=succeeded")) == []
    assert rows(await pages.get(f"/runs?q={bad[0]}&status=failed")) == [bad[0]]
    first = await pages.get("/runs?q=k&status=failed")
    following = re.search(r'href="([^"]*)" rel="next"', first.text)
    assert following is not None
    assert rows(await pages.get(html.unescape(following[1]))) == [bad[0]]


@pytest.mark.parametrize("query", ["tags=tenant", "status=faild"])
async def test_a_mistyped_filter_is_shown_with_the_form(pages: Pages, query: str):
    found = await pages.get(f"/runs?{query}")
    assert found.status == 422
    assert 'role="alert"' in found.text
    assert 'name="tags"' in found.text
    assert query.split("=")[1] in found.text
    assert "data-live " not in found.text


async def test_a_page_says_at_which_change_it_was_read(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
):
    """Before it reads anything: what comes while it is made is not in it."""
    number: int | None = None
    client = View.client.fget
    assert client is not None

    def read(view: View) -> AsyncClient:
        nonlocal number
        number = None if number is None else number + 1
        return client(view)

    monkeypatch.setattr(View, "client", property(read))
    monkeypatch.setattr(LiveFeed, "mark", property(lambda _feed: number))
    assert 'data-seen=""' in (await pages.get("/runs")).text  # nobody follows the history
    number = 41
    assert 'data-seen="41"' in (await pages.get("/runs")).text
    assert number > 41
