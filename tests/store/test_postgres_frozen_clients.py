"""A client that freezes mid-statement keeps its locks; how the others go on, and who ends it."""

# ruff: noqa: ASYNC110 — what is waited for is the server's
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from locktender.base.changes import Order, TaskRow
from locktender.base.clock import SECOND
from locktender.base.commits import NodeInput
from locktender.base.ids import task_id, token
from locktender.store.postgres import PostgresStore, stuck, worker_verbs
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import Accept, Elect, Leadership, Started
from locktender.testing.conformance.world import (
    LEASE,
    SceneLeader,
    join,
    new_run,
    submit,
    submitted,
)
from locktender.testing.postgres_server import connected, with_options

pytest_plugins = ["locktender.testing.postgres"]
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
EVENT = (
    b"\0\7"
    + b"".join(b"\0\0\0\x08" + n.to_bytes(8, "big") for n in (1, 1, 0, 0, 1))
    + b"\0\0\0\1x"
    + b"\0\0\0\2[]"
)


INSIDE = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Client' AND state = 'active'"
)
COPIED = "SELECT bytes_processed FROM pg_stat_progress_copy WHERE datname = current_database()"


@asynccontextmanager
async def copying(url: str, rows: Callable[[], AsyncIterator[bytes]]) -> AsyncGenerator[Any]:
    """A client inside of a copy that it began alone among submitters; the task that copies."""
    conn: asyncpg.Connection[Any] = await asyncpg.connect(url)
    store = PostgresStore(url)
    await conn.execute("BEGIN")
    await conn.execute("SELECT pg_advisory_xact_lock($1, $2)", *store.options.lock(1))
    await conn.execute("UPDATE locktender.meta SET value = value WHERE name = 'last_run'")
    task = asyncio.ensure_future(
        conn.copy_to_table(
            "event",
            schema_name="locktender",
            columns=["seq", "at", "term", "cycle", "run", "actor", "body"],
            source=rows(),
            format="binary",
        )
    )
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        conn.terminate()


async def standing_still() -> AsyncIterator[bytes]:
    yield HEADER
    await asyncio.Event().wait()


async def renewed(leader: SceneLeader) -> Leadership:
    return await leader.store.elect(Elect(leader.owner, LEASE, leader.term))


async def test_a_client_that_stands_still_inside_a_copy_is_ended(
    postgres_url: str,
    store: PostgresStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stuck, "STUCK_AFTER_US", 2 * SECOND)
    leader = await SceneLeader.stand(store)
    await submitted(store)
    began = time.monotonic()  # before it stands still, so that the bound holds on a busy machine
    async with copying(postgres_url, standing_still):
        # A new lane: it has to wait for the lock.
        waiting = asyncio.ensure_future(submitted(store, kind="hold"))
        async with asyncio.timeout(60):
            while not waiting.done():
                # The leader goes on leading: its lease is not renewed behind the submission that waits.
                assert (await renewed(leader)).term == leader.term
                await asyncio.sleep(0.1)
        assert time.monotonic() - began >= stuck.STUCK_AFTER_US / SECOND - 0.5
        assert (await waiting).outcome == "created"
    [said] = [each.getMessage() for each in caplog.records if "was frozen" in each.getMessage()]
    assert 'COPY "locktender"."event"' in said


async def test_a_client_that_reads_no_more_of_its_answer_is_ended(
    postgres_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that writes and answers: nothing of it is stored before the answer is sent."""
    monkeypatch.setattr(stuck, "STUCK_AFTER_US", 2 * SECOND)
    leader = await SceneLeader.stand(store)
    async with connected(postgres_url) as conn, connected(postgres_url) as other:
        statement = await conn.prepare(
            "WITH held AS (UPDATE \"locktender\".meta SET value = value WHERE name = 'last_run'"
            " RETURNING 1) SELECT repeat('x', 10000000), (SELECT count(*) FROM held)"
        )
        transport: Any = conn._transport
        transport.pause_reading()
        asked = asyncio.ensure_future(statement.fetch())
        async with asyncio.timeout(60):
            while not await other.fetch(f"{INSIDE} AND wait_event = 'ClientWrite'"):
                await asyncio.sleep(0.01)
            # It holds the number of the last run.
            waiting = asyncio.ensure_future(submitted(store))
            while not waiting.done():
                assert (await renewed(leader)).term == leader.term
                await asyncio.sleep(0.1)
        assert (await waiting).outcome == "created"
        transport.resume_reading()
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await asked


async def test_a_copy_that_only_takes_long_is_left_alone(
    postgres_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every look it has come further, if only by a row."""
    monkeypatch.setattr(stuck, "STUCK_AFTER_US", 0)
    monkeypatch.setattr(stuck, "BETWEEN_US", 1)  # twice at the same place, and it is ended
    rows: asyncio.Queue[bytes] = asyncio.Queue()

    async def going_on() -> AsyncIterator[bytes]:
        while True:
            yield await rows.get()

    await rows.put(HEADER)
    async with (
        copying(postgres_url, going_on) as task,
        connected(postgres_url) as conn,
        asyncio.timeout(60),
    ):
        while not await conn.fetch(
            f"{INSIDE} AND xact_start < clock_timestamp() - interval '2.1 s'"
        ):
            await asyncio.sleep(0.05)
        for _ in range(5):
            before = await conn.fetchval(COPIED)
            await store._query(stuck.end_stuck)
            await rows.put(EVENT)
            while await conn.fetchval(COPIED) == before:
                await asyncio.sleep(0.005)
        assert not task.done()
        # and one that comes no further is ended at the second look
        await store._query(stuck.end_stuck)
        await store._query(stuck.end_stuck)
        while await conn.fetch(INSIDE):
            await asyncio.sleep(0.01)


async def test_a_new_leader_ends_the_client_that_blocks_it(
    postgres_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck, "STUCK_AFTER_US", 3 * SECOND)
    async with copying(postgres_url, standing_still), connected(postgres_url) as conn:
        end = time.monotonic() + 60
        while not await conn.fetch(
            f"{INSIDE} AND xact_start < clock_timestamp() - interval '2.1 s'"
        ):
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        assert (await store.elect(Elect("second", LEASE))).term == 1
        end = time.monotonic() + 60
        while await conn.fetch(INSIDE):  # asked to end, its process is there for a moment longer
            assert time.monotonic() < end
            await asyncio.sleep(0.01)


# -- acceptances


async def offers(leader: SceneLeader, run: int, count: int, size: int) -> list[tuple[int, int]]:
    tasks = [
        TaskRow(
            id=task_id(run, n),
            node=0,
            idx=n,
            state="scheduled",
            worker="w1",
            token=token(leader.term, n + 1),
            input=b"%d " % n + b"x" * size,
        )
        for n in range(count)
    ]
    await leader.commit(
        tasks_new=tasks,
        node_inputs=[NodeInput(run, 0, b"shared")],
        orders=[Order("w1", task.id, task.token, "offer") for task in tasks],
    )
    return [(task.id, task.token) for task in tasks]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of arguments each composed statement answered."""
    answers: list[int] = []
    compose = PostgresSession.compose

    async def spy(self: PostgresSession, parts: Any) -> list[Any]:
        rows = await compose(self, parts)
        if parts.names[-1][0] == "accept_answer":
            answers.append(sum(len(row[5] or b"") + len(row[6] or b"") for row in rows))
        return rows

    monkeypatch.setattr(PostgresSession, "compose", spy)
    return answers


@pytest.mark.parametrize(("count", "size"), [(5, 10), (8, 200_000), (600, 1_000), (1, 60_000)])
async def test_an_acceptance_answers_little_while_it_holds_anything(
    store: PostgresStore, answers: list[int], count: int, size: int
) -> None:
    leader = await SceneLeader.stand(store)
    await join(store)
    run = await submitted(store)
    await leader.start(run.seq)
    pairs = await offers(leader, run.seq, count, size)

    started = await store.accept(Accept("w1", pairs))

    assert sorted((each.task, each.token) for each in started) == pairs
    for each in started:
        assert each.input == b"%d " % each.idx + b"x" * size
        assert each.shared == b"shared"
    assert len(answers) == -(-count // worker_verbs.ACCEPTED_AT_ONCE)
    assert max(answers) <= worker_verbs.ANSWERED_BYTES
    if count * size < worker_verbs.ANSWERED_BYTES:
        assert sum(answers) > count * size  # small ones need no second look

    def by_id(each: Started) -> int:
        return each.task

    again = await store.accept(Accept("w1", pairs))
    assert sorted(again, key=by_id) == sorted(started, key=by_id)
    assert await store.stale_writes() == 0


# -- leading


async def test_a_lease_is_renewed_beside_commits_that_wait(
    postgres_url: str, store: PostgresStore
) -> None:
    leader = await SceneLeader.stand(store)
    await leader.commit(events=[])
    done = asyncio.Event()

    async def busy(tx: PostgresSession) -> int:
        await done.wait()
        return tx.conn.get_server_pid()

    committing = asyncio.ensure_future(store._lead(busy))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert (await renewed(leader)).term == leader.term
    done.set()
    async with connected(postgres_url) as conn:
        known = await conn.fetchrow(
            "SELECT l.backend, a.pid FROM locktender.leader l"
            " LEFT JOIN pg_stat_activity a ON a.pid = l.backend AND a.backend_start = l.backend_since"
        )
    # Whoever takes over ends the connection that commits go by, not the one that renewed.
    assert known is not None
    assert list(known) == [await committing] * 2


async def test_no_transaction_waits_for_its_client_without_end(postgres_url: str) -> None:
    """Behind a pooler every statement is a transaction."""
    store = PostgresStore(with_options(postgres_url, pooled="true"))
    await store.open()

    async def idle_for(read: Callable[[Callable[[PostgresSession], Awaitable[Any]]], Any]) -> str:
        text = "SELECT current_setting('idle_in_transaction_session_timeout')"
        [[found]] = await read(lambda tx: tx.fetch(text))
        return found

    assert await idle_for(store._read) == await idle_for(store._lead) == "2s"
    await submit(store, new_run())
    await store.close()
