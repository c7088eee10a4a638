"""Lists of a tenant whose entries stand behind many of others: whole, in pages of a bounded cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from tests.support.server_harness import Answer, fetch, process, served, until

from locktender import Submission, connect_async, flow, step, wait_event
from locktender.client import parts
from locktender.client.client_async import AsyncClient
from locktender.server.api import history, queue, runs, schedules
from locktender.server.options import HttpOptions

pytest_plugins = ["locktender.testing.postgres"]
OTHERS, OWN = 40, 3
EXAMINED = 12
"""Rows that one request examines: far fewer than there are of others."""


@step
async def noted(n: int) -> int:
    return n


@flow(name="lists note")
def noting(n: int = 1) -> int:
    return noted(n)


@flow(name="lists wait")
def waiting() -> Any:
    return wait_event("approved", timeout="2d")


async def submit(client: AsyncClient, flow: str, tenant: str, count: int) -> list[str]:
    several = [Submission(tags={"tenant": tenant}) for _ in range(count)]
    return [run.id for run in await client.submit_many(flow, several)]


class Lists(NamedTuple):
    port: int
    token: str
    own: list[str]
    client: AsyncClient

    async def get(self, path: str) -> Answer:
        return await fetch(
            self.port, f"/api/v1{path}", "GET", None, {"authorization": f"Bearer {self.token}"}
        )

    async def pages(self, path: str, field: str) -> list[list[Any]]:
        """Following `next` until there is none."""
        found: list[list[Any]] = []
        cursor = ""
        while True:
            answer = await self.get(f"{path}{cursor}")
            assert answer.status == 200, answer.text
            found.append(answer.data[field])
            if answer.data["next"] is None:
                return found
            assert len(found) < 100
            cursor = f"&cursor={answer.data['next']}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
async def lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Lists]:
    for name, value in (("PART", 6), ("FIRST_PART", 2)):
        monkeypatch.setattr(parts, name, value)
    for module in (history, queue, runs, schedules):
        monkeypatch.setattr(module, "MAX_EXAMINED", EXAMINED)
    is_postgres = request.param == "postgres"
    url = (
        request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "locktender.db")
    )
    async with (
        process(url, lead=True, work=True) as (core, _),
        served(core, api=True, options=HttpOptions("tokens")) as port,
    ):
        client = AsyncClient(core)
        made = await client.tokens.create("acme", ["read"], tags={"tenant": "acme"})

        async def announced() -> bool:
            return {"lists wait", "lists note"} <= {each.name for each in await core.store.flows()}

        await until(announced, "the flows")
        await submit(client, "lists wait", "globex", OTHERS)
        own = await submit(client, "lists wait", "acme", OWN)

        async def wait() -> bool:
            return len(await client.events.waiting()) == OTHERS + OWN

        await until(wait, "the waits")
        yield Lists(port, made.token, own, client)


async def test_runs_and_waits_behind_those_of_others_are_all_listed(lists: Lists):
    own = set(lists.own)
    await submit(lists.client, "lists wait", "globex", OTHERS)
    for query, most in (("/runs?limit=2", 8), ("/runs?limit=50&status=waiting,running,queued", 8)):
        pages = await lists.pages(query, "runs")
        assert {each["id"] for page in pages for each in page} == own
        assert sum(len(page) for page in pages) == OWN
        assert pages[0] == [], "others stand before them, and one request examines so many"
        assert len(pages) <= most, "each page examines so many"
    pages = await lists.pages("/waits?limit=2", "waits")
    assert [each["run"] for page in pages for each in page] == lists.own
    counted = await lists.get("/runs/count")
    assert counted.data == {"count": OWN}


async def test_runs_and_events_behind_others_are_all_listed(lists: Lists):
    client = lists.client
    await client.limits.pause()
    ids: list[str] = []
    for tenant, count in (("globex", OTHERS), ("acme", OWN), ("globex", OTHERS)):
        found = await submit(client, "lists note", tenant, count)
        ids += found if tenant == "acme" else []
    pages = await lists.pages("/queue?limit=2", "queue")
    entries = [each for page in pages for each in page]
    assert [each["run"]["id"] for each in entries] == ids
    assert [each["position"] for each in entries] == [OTHERS + n for n in (1, 2, 3)]
    assert pages[0] == []
    pages = await lists.pages("/events/latest?limit=5", "events")
    events = [each for page in reversed(pages) for each in page]
    row = await client.runs.list(tags={"tenant": "acme"})
    assert {each["run"] for each in events} == {each.number for each in row}
    assert [each["seq"] for each in events] == sorted(each["seq"] for each in events)


async def test_the_client_of_a_server_follows_the_pages(lists: Lists):
    await lists.client.limits.pause()
    for tenant in ("globex", "acme"):
        await submit(lists.client, "lists note", tenant, OTHERS)
    async with connect_async(f"http://127.0.0.1:{lists.port}", token=lists.token) as client:
        assert len(await client.runs.list(limit=1_000)) == OWN + OTHERS
        queued = await client.queue.list()
        assert [each.position for each in queued] == [*range(OTHERS + 1, 2 * OTHERS + 1)]
        assert [each.run for each in await client.events.waiting()] == lists.own
        assert len(await client.queue.list(7)) == 7
        events = await client.events.latest(20)
        assert len(events) == 20
        assert events[-1].run > events[0].run or events[-1].seq > events[0].seq
        assert (await client.runs.find(lists.own[0])).id == lists.own[0]


async def test_a_beginning_that_too_many_ids_have_is_refused(lists: Lists):
    answer = await lists.get(f"/runs?beginning={lists.own[0][:4]}")
    assert (answer.status, answer.data["field"]) == (422, "beginning")
    assert answer.data["hint"] == "Give more characters of the id."
    answer = await lists.get(f"/runs?beginning={lists.own[0][:25]}")
    assert [each["id"] for each in answer.data["runs"]] == [lists.own[0]]


async def test_what_is_no_cursor_is_refused(lists: Lists):
    for path in ("/runs", "/queue", "/waits", "/events/latest"):
        for cursor in ("x", "", "1.", "-1", "1.2.3", "9" * 30, "1e3", "²"):
            answer = await lists.get(f"{path}?cursor={quote(cursor)}")
            assert (answer.status, answer.data["field"]) == (422, "cursor"), (path, cursor)
