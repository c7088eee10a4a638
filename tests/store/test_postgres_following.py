"""A follower of the history on PostgreSQL misses nothing, reads nothing twice, and waits for nobody."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from locktender.base.errors import HistoryReplaced
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.event_order import NO_END, Position
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import BEGINNING, Cursor, EventFilter, Follow, Gather
from locktender.testing.conformance.world import SceneLeader, submitted
from locktender.testing.postgres_server import connected, copy_of, execute

pytest_plugins = ["locktender.testing.postgres"]

WRITE = (
    "INSERT INTO locktender.event (seq, at, term, cycle, actor, run, body)"
    " SELECT locktender.event_base() + n, 1, 0, 0, $1, $2::bigint + n, '[]'"
    " FROM generate_series(0, $3::int - 1) n"
)


class Writer:
    """One connection: it begins, writes events, maybe begins a savepoint, and commits or rolls back."""

    def __init__(self, conn: asyncpg.Connection[Any], choose: random.Random) -> None:
        self._conn = conn
        self._choose = choose
        self._written: list[int] | None = None

    async def step(self, next_run: int, committed: set[int]) -> int:
        """The next number of a run that nobody used."""
        choose = self._choose
        if self._written is None:
            await self._conn.execute("BEGIN")
            if choose.random() < 0.5:
                await self._conn.execute("SELECT pg_current_xact_id()")
            self._written = []
        elif not self._written and choose.random() < 0.7:
            count = choose.choice([1, 1, 2, 7])
            if choose.random() < 0.3:
                await self._conn.execute("SAVEPOINT inner_one")
            await self._conn.execute(WRITE, choose.choice(["client", "me"]), next_run, count)
            self._written = list(range(next_run, next_run + count))
            return next_run + count
        else:
            commits = choose.random() < 0.8
            await self._conn.execute("COMMIT" if commits else "ROLLBACK")
            if commits:
                committed.update(self._written)
            self._written = None
        return next_run

    async def commit(self, committed: set[int]) -> None:
        if self._written is not None:
            await self._conn.execute("COMMIT")
            committed.update(self._written)


@pytest.mark.parametrize("seed", range(6))
async def test_interleaved_transactions_are_each_read_once(
    postgres_url: str, store: PostgresStore, seed: int
) -> None:
    choose = random.Random(seed)
    committed: set[int] = set()
    limits = [1, 3, 10, 5_000]
    cursors: list[Cursor] = [BEGINNING] * len(limits)
    seen: list[list[int]] = [[] for _ in limits]
    settled: list[int] = []

    async def poll(follower: int) -> int:
        page = await store.follow(Follow(cursors[follower], limit=limits[follower]))
        cursors[follower] = page.cursor
        seen[follower] += [event.run for event in page.events]
        assert [e.seq for e in page.events] == sorted(e.seq for e in page.events)
        return len(page.events)

    async with AsyncExitStack() as stack:
        writers = [
            Writer(await stack.enter_async_context(connected(postgres_url)), choose)
            for _ in range(6)
        ]
        run = 1
        for _ in range(150):
            run = await choose.choice(writers).step(run, committed)
            if choose.random() < 0.5:
                await poll(choose.randrange(len(limits)))
            if choose.random() < 0.05:
                rows = await store.events(EventFilter(settled=True))
                runs = [row.run for row in rows]
                # A settled event stays where it is: what comes later comes behind it.
                assert runs[: len(settled)] == settled
                settled = runs
            if choose.random() < 0.1:
                # What was committed is there at once, whoever is still in the middle of something.
                while await poll(len(limits) - 1):
                    pass
                assert set(seen[-1]) == committed
        for writer in writers:
            await writer.commit(committed)
    for follower in range(len(limits)):
        while await poll(follower):
            pass
    assert len(committed) > 30
    for found in seen:
        assert sorted(found) == sorted(committed)


async def test_a_leader_leaves_its_own_events_out_in_every_page(
    postgres_url: str, store: PostgresStore
) -> None:
    async with connected(postgres_url) as slow, connected(postgres_url) as quick:
        await slow.execute("BEGIN")
        await slow.execute("SELECT pg_current_xact_id()")
        cursor = (await store.load()).cursor
        for n in range(4):
            await quick.execute(WRITE, "client" if n % 2 else "me", 10 * n, 3)
        found: list[int] = []
        for _ in range(4):
            gathered = await store.gather(Gather(cursor, "me", limit=2))
            cursor = gathered.cursor
            found += [event.run for event in gathered.events]
            if len(found) == 2:  # in the middle of the first reading
                await slow.execute(WRITE, "client", 500, 1)
                await slow.execute("COMMIT")
        assert found == [10, 11, 12, 30, 31, 32, 500]


async def test_one_run_is_followed(store: PostgresStore) -> None:
    leader = await SceneLeader.stand(store)
    run, other = await submitted(store), await submitted(store)
    page = await store.follow(Follow(run=run.seq))
    assert [event.run for event in page.events] == [run.seq]
    await leader.start(other.seq, run.seq)
    page = await store.follow(Follow(page.cursor, run=run.seq))
    assert [(event.run, event.actor) for event in page.events] == [(run.seq, leader.actor)]
    assert (await store.follow(Follow(page.cursor, run=run.seq))).events == []


# -- transactions of others


async def test_another_databases_transaction_delays_no_reader(
    postgres_server: str, postgres_template: str, store: PostgresStore
) -> None:
    with copy_of(postgres_server, postgres_template) as elsewhere:
        async with connected(elsewhere) as foreign:
            await foreign.execute("BEGIN")
            await foreign.execute("CREATE TABLE public.theirs (n integer)")
            leader = await SceneLeader.stand(store)
            cursor = (await store.load()).cursor
            for _ in range(3):
                run = await submitted(store)
                gathered = await store.gather(Gather(cursor, leader.actor))
                assert [event.run for event in gathered.events] == [run.seq]
                assert [row.seq for row in gathered.queued] == [run.seq]
                cursor = gathered.cursor
                await leader.start(run.seq)
                assert len(await store.events(EventFilter(run=run.seq))) == 2
            assert (await store.gather(Gather(cursor, leader.actor))).events == []


async def test_a_long_foreign_transaction_makes_no_reading_longer(
    postgres_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand events later the follower still asks for two short ranges of numbers."""
    async with connected(postgres_url) as foreign, connected(postgres_url) as writer:
        await foreign.execute("BEGIN")
        xid = int(await foreign.fetchval("SELECT pg_current_xact_id()::text"))
        await store.follow(Follow())
        await writer.execute(WRITE, "client", 1, 1_000)
        page = await store.follow(Follow())
        asked: list[tuple[str, tuple[Any, ...]]] = []
        fetch = PostgresSession.fetch

        async def spy(self: PostgresSession, text: str, *params: Any) -> list[Any]:
            asked.append((text, params))
            return await fetch(self, text, *params)

        monkeypatch.setattr(PostgresSession, "fetch", spy)
        assert (await store.follow(Follow(page.cursor))).events == []
        [(text, params)] = asked
        assert params[0] == [xid << 20]
        assert params[1] > (xid + 1) << 20
        plan = await store._query(lambda tx: fetch(tx, f"EXPLAIN (ANALYZE) {text}", *params))
        scans = [row[0] for row in plan if " on event " in row[0] or " on event_1 " in row[0]]
        scans = [scan for scan in scans if "Heap" in scan or "Bitmap" not in scan]
        assert len(scans) == 2
        assert all("Index Scan" in scan or "Bitmap Heap" in scan for scan in scans)
        assert all("rows=0.00 " in scan or "rows=0 " in scan for scan in scans)


# -- cursors


def test_a_cursor_names_ranges_of_numbers() -> None:
    position = Position("1.5 base/5/16 3", "10:13:10,12")
    assert position.params() == ([13 << 20, 15 << 20], 16 << 20, 0, NO_END, [])
    assert Position().params() == ([], 0, 0, NO_END, [])
    text = position.next("s 3", "11:20:11", [], 1)
    assert Position.of(text) == Position("s 3", "11:20:11")


async def test_a_cursor_of_another_history_is_refused(
    postgres_server: str, postgres_template: str, store: PostgresStore
) -> None:
    with copy_of(postgres_server, postgres_template) as url:
        other = PostgresStore(url)
        await other.open()
        cursor = (await other.load()).cursor
        await other.close()
    with pytest.raises(HistoryReplaced):
        await store.follow(Follow(cursor))
    with pytest.raises(HistoryReplaced):
        await store.gather(Gather(cursor, "me"))
    ahead = Position.of((await store.load()).cursor)
    later = Position(ahead.server, "900000000:900000000:")
    with pytest.raises(HistoryReplaced):
        await store.follow(Follow(later.next(ahead.server, later.seen, [], 1)))


async def test_a_history_that_was_restored_in_place_is_another_one(
    postgres_url: str, store: PostgresStore
) -> None:
    cursor = (await store.load()).cursor
    assert (await store.follow(Follow(cursor))).events == []
    await execute(postgres_url, "TRUNCATE locktender.event")
    with pytest.raises(HistoryReplaced):
        await store.follow(Follow(cursor))
    assert (await store.follow(Follow())).events == []
