"""On PostgreSQL a notification brings offers to a worker that listens: no row does. Lost ones are sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from locktender import AsyncClient, AsyncRun, connect_async, flow, step
from locktender.engine import Engine
from locktender.observe.checker import check
from locktender.store.open import settings_for, store_for
from locktender.store.postgres import commits
from locktender.store.postgres.store import PostgresStore
from locktender.testing import load_history
from locktender.testing.postgres_server import connected, with_options

pytest_plugins = ["locktender.testing.postgres"]
SECONDS = 60
NEVER = "1h"
"""No offer is taken back by these tests' leaders: what arrives was sent."""


@step
async def echo(value: int) -> int:
    return value


@flow
def echoes(count: int) -> list[int]:
    return echo.map(list(range(count)))


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Notifications with offers go into this list and nowhere else, until a test removes the patch."""
    kept: list[list[str]] = []
    told = commits.notices

    def losing(*given: object) -> list[str]:
        found = told(*given)  # pyright: ignore[reportArgumentType]
        kept.append(found)
        return ["commit"]

    monkeypatch.setattr(commits, "notices", losing)
    return kept


@asynccontextmanager
async def fleet(
    url: str, tmp_path: Path, worker_url: str = ""
) -> AsyncIterator[tuple[AsyncClient, Engine, Engine]]:
    """A client, a leader that works not, and a worker that leads not."""
    settings = settings_for(url, {"work_dir": str(tmp_path), "offer_ttl": NEVER})
    lead, work = store_for(settings), PostgresStore(worker_url or url)
    await lead.open()
    await work.open()
    leader, worker = Engine(lead, settings, work=False), Engine(work, settings, lead=False)
    await leader.start()
    await worker.start()
    try:
        async with connect_async(url) as client:
            yield client, leader, worker
    finally:
        await worker.stop(0)
        await leader.stop(0)
        await work.close()
        await lead.close()
    assert check(await asyncio.to_thread(load_history, url)) == []


async def offers_stored(url: str) -> int:
    async with connected(url) as conn:
        return await conn.fetchval("SELECT count(*) FROM locktender.orders WHERE kind = 'offer'")


async def times_offered(run: AsyncRun[list[int]]) -> int:
    return sum(each.after == "scheduled" for each in await run.events())


async def made(lost: list[list[str]]) -> None:
    """Returns when a commit has made offers, whose notifications are lost."""
    async with asyncio.timeout(SECONDS):
        while not any("=" in each for notice in lost for each in notice):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_lost_notification_is_sent_again(
    postgres_url: str, tmp_path: Path, lost: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    async with fleet(postgres_url, tmp_path) as (client, _, _):
        run = await client.submit(echoes, 60)
        await made(lost)
        assert await offers_stored(postgres_url) == 0
        monkeypatch.undo()

        assert await run.result(SECONDS) == list(range(60))
        assert await times_offered(run) == 60


async def test_the_next_leader_sends_what_its_predecessor_offered(
    postgres_url: str, tmp_path: Path, lost: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    async with fleet(postgres_url, tmp_path) as (client, leader, _):
        run = await client.submit(echoes, 60)
        await made(lost)
        await leader.stop(0)
        monkeypatch.undo()
        settings = settings_for(postgres_url, {"work_dir": str(tmp_path), "offer_ttl": NEVER})
        store = store_for(settings)
        await store.open()
        successor = Engine(store, settings, work=False)
        await successor.start()

        assert await run.result(SECONDS) == list(range(60))
        assert await times_offered(run) == 60
        await successor.stop(0)
        await store.close()


async def test_a_worker_that_does_not_listen_reads_its_offers(
    postgres_url: str, tmp_path: Path, lost: list[list[str]]
):
    unheard = with_options(postgres_url, listen="off")
    async with fleet(postgres_url, tmp_path, unheard) as (client, *_):
        run = await client.submit(echoes, 60)

        assert await run.result(SECONDS) == list(range(60))
    assert not any("=" in each for notice in lost for each in notice)


async def test_a_worker_whose_listener_cannot_connect_polls(postgres_url: str, tmp_path: Path):
    unreachable = with_options(postgres_url, listen="127.0.0.1:9")
    async with fleet(postgres_url, tmp_path, unreachable) as (client, *_):
        run = await client.submit(echoes, 3)

        assert await run.result(SECONDS) == [0, 1, 2]
