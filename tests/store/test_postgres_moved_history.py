"""A history restored from another server, whose transaction numbers were higher: new events come after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from locktender.base.events import EventRow
from locktender.store.postgres import PostgresStore
from locktender.store.protocol import EventFilter, Gather
from locktender.testing.conformance.world import (
    SceneLeader,
    changes_of,
    new_run,
    set_rule,
    submit,
    submitted,
)
from locktender.testing.postgres_server import connected, execute

pytest_plugins = ["locktender.testing.postgres"]
ABROAD = 5_000_000
"""The transaction that wrote last, on that server."""
RESTORED = (
    "INSERT INTO locktender.event (seq, at, term, cycle, actor, run, body) SELECT"
    f" ({ABROAD - 10} + n)::bigint << 20, 1, 0, 0, 'client', 0, '[]' FROM generate_series(1, 10) n"
)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def told(store: PostgresStore) -> list[EventRow]:
    return await store.events(EventFilter())


async def test_events_go_on_behind_those_of_another_server(postgres_url: str) -> None:
    await execute(postgres_url, RESTORED)
    async with opened(postgres_url) as store:
        assert len(await told(store)) == 10
        leader = await SceneLeader.stand(store)
        cursor = (await store.load()).cursor
        run = await submitted(store)
        rows = await told(store)
        assert [row.seq for row in rows] == sorted(row.seq for row in rows)
        assert rows[10].seq >> 20 >= ABROAD
        assert len(rows) == 12
        gathered = await store.gather(Gather(cursor, leader.actor))
        assert [event.run for event in gathered.events] == [run.seq]
        await leader.start(run.seq)
        assert len(await changes_of(store, run.seq)) == 2


async def test_a_new_leader_raises_the_offset_too(postgres_url: str) -> None:
    """It was restored under the feet of a process that had opened it."""
    async with opened(postgres_url) as store:
        await execute(postgres_url, RESTORED)
        await SceneLeader.stand(store)
        run = await submitted(store)
        rows = await told(store)
        assert len(rows) == 12
        assert rows[-1].run == run.seq


async def test_the_offset_is_raised_once(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await execute(postgres_url, RESTORED)
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    said = [each for each in caplog.records if "another server" in each.getMessage()]
    assert len(said) == 1
    await asyncio.gather(*(submitted(store) for store in stores))
    for store in stores:
        await store.close()
    async with opened(postgres_url) as store:
        assert len(await told(store)) == 14
    assert len(said) == 1


async def locked(url: str) -> bool:
    """Whether somebody waits for a table."""
    async with connected(url) as conn:
        return bool(await conn.fetch("SELECT 1 FROM pg_locks WHERE NOT granted AND relation > 0"))


async def test_raising_the_offset_waits_for_writers(postgres_url: str) -> None:
    """A transaction in flight numbers its events by the new offset, or is over before it is in force."""
    await execute(postgres_url, RESTORED)
    async with connected(postgres_url) as conn:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute(
            "INSERT INTO locktender.event (seq, at, term, cycle, actor, run, body)"
            " SELECT locktender.event_base(), 1, 0, 0, 'client', 0, '[]'"
        )
        store = PostgresStore(postgres_url)
        opening = asyncio.ensure_future(store.open())
        end = time.monotonic() + 60
        while not await locked(postgres_url):
            assert time.monotonic() < end
        assert not opening.done()
        await transaction.commit()
        await opening
        assert len(await told(store)) == 11
        await store.close()


async def test_limits_of_a_lost_part_of_the_history_do_not_hold(
    postgres_url: str,
) -> None:
    """A dump is restored under the feet of a process that knows limits of more changes than it has."""
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        await SceneLeader.stand(store)
        await set_rule(other, "active", "", {"limit": 7})
        await submitted(store)  # it knows the limits, and their version
        # Between the dump and now there were 101 changes. The server was restarted since.
        back = (
            "UPDATE locktender.leader SET limits_version = limits_version - 101, history = 'other'"
        )
        await execute(postgres_url, back)
        await SceneLeader.stand(other)
        await set_rule(other, "active", "", {"limit": 1})
        assert (await store.limits())[0].max_active == 1
        [answer] = await submit(store, new_run())
        assert answer.outcome == "rejected"
