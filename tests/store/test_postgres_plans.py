"""What hot statements cost as the tables grow: by index, and without touching one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from locktender.base.changes import End, Order, TaskRow
from locktender.base.commits import NodeInput, RunEnd, RunEvents, RunMark, RunStart, TaskEnd
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.base.model import Request
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.connection import connect
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import (
    BEGINNING,
    Accept,
    EventFilter,
    Finish,
    Gather,
    Heads,
    ReassignLanes,
    RemoveUnused,
    RunFilter,
    Withdraw,
)
from locktender.testing.conformance.committing import saved
from locktender.testing.conformance.world import (
    SceneLeader,
    expire_passed,
    join,
    new_run,
    submit,
    submitted,
)
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]

STOCK = """
INSERT INTO locktender.lane (digest, signature)
SELECT sha256(n::text::bytea), n::text FROM generate_series(1, 2000) n;
INSERT INTO locktender.run (seq, id, state, kind, flow, graph, tags, priority, lane, rank1, rank2,
    queued_at, params, consts)
SELECT n, 'old' || n, CASE WHEN n % 2 = 0 THEN 'queued' ELSE 'succeeded' END, 'flow', 'f', 'g', '{}', 0,
    n % 1000 + 1, 0, n, n, '{}', '[]' FROM generate_series(1, 30000) n;
INSERT INTO locktender.queue SELECT lane, rank1, rank2, seq FROM locktender.run WHERE state = 'queued';
INSERT INTO locktender.active_key SELECT 'key' || n, n FROM generate_series(1, 5000) n;
INSERT INTO locktender.task (id, node, idx, attempt, tries, abandons, offers, token, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at, state)
SELECT (n / 10) << 20 | n % 10, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 'completed'
FROM generate_series(10::bigint, 60000) n;
INSERT INTO locktender.orders SELECT n, 'offer', 'w' || n % 50, 1, '' FROM generate_series(1, 5000) n;
INSERT INTO locktender.event SELECT n, 1, 0, 0, n % 30000, 'client', '[]' FROM generate_series(1, 60000) n;
UPDATE locktender.meta SET value = 30000 WHERE name = 'last_run';
ANALYZE
"""
SMALL = """
INSERT INTO locktender.task (id, node, idx, attempt, tries, abandons, offers, token, requested_at,
    scheduled_at, started_at, ended_at, not_before, eligible_at, state, worker)
SELECT 500 << 20 | n, 0, 0, 1, 1, 0, 1, n, 1, 1, 1, 1, 0, 0, 'completed', 'w' || n % 2
FROM generate_series(1::bigint, {}) n;
ANALYZE locktender.task
"""
"""Tasks that have ended, which the planner knows of."""
READ = re.compile(
    r"(Seq|Index|Index Only) Scan.* on (run|task|queue|event|orders|active_key|lane)\b"
)
SCANNED = re.compile(r"Seq Scan on (run|task|queue|event|orders|active_key|lane)\b")
QUEUED = re.compile(r"Index Cond.*state = (ANY \('\{.*)?'?queued")
"""All queued runs: there may be a million."""


@pytest.fixture
async def stocked(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with connected(postgres_url) as conn:
        await conn.execute(STOCK)
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


async def everything(store: PostgresStore) -> None:
    """Every hot verb once."""
    leader = await SceneLeader.stand(store)
    await join(store, "w1")
    runs = await submit(store, *(new_run(key=f"k{n}") for n in range(20)))
    plain = await submitted(store)
    await leader.start(plain.seq, *(run.seq for run in runs))
    pairs = await leader.offer(plain.seq, "w1", 20)
    await store.orders("w1")
    await store.accept(Accept("w1", pairs[:10]))
    await store.finish(Finish("w1", [End(*pair, "completed", b"1") for pair in pairs[:9]]))
    withdraw = Withdraw(leader.term, 1, leader.actor, pairs[10:12], "requested", "late")
    await store.withdraw(withdraw)
    rows = await store.tasks(plain.seq)
    new = TaskRow(task_id(plain.seq, 99), 0, -1, "requested")
    await leader.commit(
        tasks_new=[new],
        tasks_saved=[saved(row, state="requested", token=0) for row in rows[12:]],
        tasks_ended=[TaskEnd(*pairs[9], b"1", 1)],
        runs_marked=[RunMark(plain.seq, "cancelling", "cancelled", None)],
        node_inputs=[NodeInput(plain.seq, 0, b"{}")],
        orders=[Order("w1", new.id, 5, "stop")],
        events=[RunEvents(plain.seq, [Change("run", 0, "running", "cancelling")])],
    )
    other = await submitted(store)
    await leader.commit(runs_started=[RunStart(other.seq, 1)], requests_done=[1])
    await leader.commit(runs_ended=[RunEnd(other.seq, "succeeded", b"1", None, 1)])
    await leader.commit(runs_ended=[RunEnd(runs[0].seq, "succeeded", b"1", None, 1)])
    await leader.commit(reprioritised=[(30_000, 5)])
    await store.ask([Request("cancel", "x")])
    await store.gather(Gather(BEGINNING, leader.actor, limit=100))
    await store.heads(Heads(list(range(1, 100)), each=2))
    await store.arrivals([2, 4, 6])
    await store.overdue(100)
    await store.reassign_lanes(ReassignLanes(leader.term, 29_000, batch=100))
    await store.remove_unused(RemoveUnused(leader.term, batch=100))
    await expire_passed(store, leader.term, leader.actor, 9)
    await store.retry([runs[0].id])
    await store.run(plain.id)
    await store.runs(RunFilter(limit=10))
    await store.runs(RunFilter(states=["succeeded", "failed"], limit=10))
    await store.runs(RunFilter(id_prefix="old1", limit=10))
    await store.events(EventFilter(run=plain.seq))
    await store.events(EventFilter(after=59_000, limit=10))
    await store.queue(10)
    await store.beside(29_000, 10)
    await store.beside(runs[1].seq, 10)
    await store.events(EventFilter(limit=10, newest=True))
    await store.load()
    await store.leave("w1")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Every statement that is sent, with the parameters of the first time."""
    seen: dict[str, tuple[Any, ...]] = {}
    fetch = PostgresSession.fetch

    async def spy(self: PostgresSession, text: str, *params: Any) -> list[Any]:
        seen.setdefault(text, params)
        return await fetch(self, text, *params)

    monkeypatch.setattr(PostgresSession, "fetch", spy)
    return seen


async def test_no_hot_statement_reads_a_whole_table(
    seen: dict[str, tuple[Any, ...]], stocked: PostgresStore, postgres_url: str
) -> None:
    """As planned for a batch by a connection without our settings: behind a pooler."""
    await everything(stocked)
    assert len(seen) > 40
    faults: list[str] = []
    async with connected(postgres_url) as conn:
        for text, params in seen.items():
            plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN {text}", *params))
            if SCANNED.search(plan):
                faults.append(f"{text}\n{plan}")
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize("tasks", [0, 30, 200])
async def test_plans_made_on_small_tables_stay_right(
    seen: dict[str, tuple[Any, ...]], postgres_url: str, tasks: int
) -> None:
    """A plan is made once and kept: what is cheapest on a small table must not be what is kept."""
    store = PostgresStore(postgres_url)
    await store.open()
    await everything(store)
    conn = await connect(store.options)
    if tasks:
        await conn.execute(SMALL.format(tasks))
    faults: list[str] = []
    for text in seen:
        plan = [row[0] for row in await generic(conn, text)]
        for above, line, below in zip(["", *plan], plan, [*plan[1:], ""], strict=False):
            bounded = "Index Cond" in below or "Limit" in above
            # Rows given by id, read by their state: all that have it, once for every row given.
            by_state = "run_state" in line and "unnest" in text and "LATERAL" not in text
            whole = QUEUED.search(below) and "seq" not in below and "Limit" not in above
            if by_state or whole or (READ.search(line) and not bounded):
                faults.append("\n".join([text, *plan]))
    await conn.close()
    await store.close()
    assert len(seen) > 40
    assert not faults, "\n\n".join(faults)


async def generic(conn: asyncpg.Connection[Any], text: str) -> list[Any]:
    """The plan that all batches share."""
    await conn.execute(f"PREPARE probe AS {text}")
    count = await conn.fetchval(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'probe'"
    )
    values = f"({', '.join(['NULL'] * count)})" if count else ""
    plan = await conn.fetch(f"EXPLAIN EXECUTE probe{values}")
    await conn.execute("DEALLOCATE probe")
    return plan


async def test_changes_of_a_tasks_state_touch_no_index(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    leader = await SceneLeader.stand(store)
    await join(store, "w1")
    for _ in range(5):
        run = (await submitted(store)).seq
        await leader.start(run)
        pairs = await leader.offer(run, "w1", 200)
        await store.accept(Accept("w1", pairs))
        ended = [End(*pair, "completed", b"1") for pair in pairs]
        await store.finish(Finish("w1", ended))
    await store.close()
    async with connected(postgres_url) as conn:
        [indexes] = await conn.fetch(
            "SELECT string_agg(pg_get_indexdef(indexrelid), ';') FROM pg_index"
            " WHERE indrelid = 'locktender.task'::regclass"
        )
        assert "state" not in indexes[0]
        # A backend tells its figures when it ends.
        query = (
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
            " WHERE schemaname = 'locktender' AND relname = 'task'"
        )
        for _ in range(3_000):
            updated, hot = await conn.fetchrow(query)
            if updated >= 2_000:
                break
            await conn.execute("SELECT pg_sleep(0.02), pg_stat_clear_snapshot()")
        assert updated == 2_000
        assert hot / updated > 0.95
