"""What is asked of a queue costs the same however long it is: by work that the database counts, not by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from locktender.base.limits import Fair, TagRule
from locktender.observe.why import explain_run
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.connection import connect
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import Heads, RunFilter, Store
from locktender.store.sqlite.reads import beside, heads
from locktender.store.sqlite.session import SqliteSession
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.conformance.world import new_run, set_rule, set_tag, submit

pytest_plugins = ["locktender.testing.postgres"]

SHORT, LONG = 1_500, 12_000
MOST = 200
KINDS = ["one lane", "many lanes", "turns"]


async def prepared(store: Store, kind: str) -> None:
    if kind != "one lane":
        await set_tag(store, TagRule("tenant", per_value=True, limit=1))
    if kind == "turns":
        await set_rule(store, "fair", "tenant", Fair("tenant"))
    await set_rule(store, "active", "", {"limit": -1})


async def grown(store: Store, kind: str, runs: list[int], until: int) -> list[int]:
    """The seqs of all queued runs: `until` of them."""
    while len(runs) < until:
        tags = [{} if kind == "one lane" else {"tenant": str(n % 300)} for n in range(500)]
        runs += [each.seq for each in await submit(store, *(new_run(tags=tag) for tag in tags))]
    return runs


def places(runs: list[int]) -> list[int]:
    """The first, one near the front, the middle, one near the end, the last."""
    return [runs[0], runs[MOST // 2], runs[len(runs) // 2], runs[-MOST // 2], runs[-1]]


@pytest.mark.parametrize("kind", KINDS)
async def test_sqlite_looks_at_no_more_of_a_longer_queue(tmp_path: Path, kind: str):
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open()
    counted = 0

    def step() -> None:
        nonlocal counted
        counted += 1

    def worked(tx: SqliteSession, run: int) -> int:
        """Steps of SQLite's own machine, in hundreds."""
        nonlocal counted
        counted = 0
        tx.db.set_progress_handler(step, 100)
        beside(tx, run, MOST)
        heads(tx, Heads(list(range(1, 40)), 2))
        tx.db.set_progress_handler(None, 0)
        return counted

    try:
        await prepared(store, kind)
        most: list[int] = []
        runs: list[int] = []
        for length in (SHORT, LONG):
            runs = await grown(store, kind, runs, length)
            found: list[int] = []
            for run in places(runs):
                query = store._query  # pyright: ignore[reportPrivateUsage]
                found.append(await query(lambda tx, run=run: worked(tx, run)))
            most.append(max(found))
        assert most[1] <= 1.2 * most[0] + 2
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_postgres_looks_at_no_more_of_a_longer_queue(
    postgres_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """With the plans that are kept, made while the tables were empty and made again when they were full."""
    store = PostgresStore(postgres_url)
    await store.open()
    fetch = PostgresSession.fetch
    seen: list[tuple[str, tuple[Any, ...]]] = []

    async def spy(self: PostgresSession, text: str, *params: Any) -> list[Any]:
        seen.append((text, params))
        return await fetch(self, text, *params)

    conn = await connect(store.options)
    try:
        await prepared(store, kind)
        rows: list[float] = []
        runs: list[int] = []
        for length in (SHORT, LONG):
            runs = await grown(store, kind, runs, length)
            await conn.execute("ANALYZE")
            with monkeypatch.context() as patch:
                patch.setattr(PostgresSession, "fetch", spy)
                for run in places(runs):
                    await store.beside(run, MOST)
                await store.heads(Heads(list(range(1, 40)), 2))
                # Nearly all runs are queued: those that ended must not be looked for among them.
                await store.runs(RunFilter(states=["succeeded", "failed"], flow="demo", limit=5))
            looked = [await rows_read(conn, text, params) for text, params in seen]
            rows.append(max(looked))
            seen.clear()
        assert rows[1] <= 1.2 * rows[0] + 2
    finally:
        await conn.close()
        await store.close()


async def rows_read(conn: asyncpg.Connection[Any], text: str, params: tuple[Any, ...]) -> float:
    """Rows that the scans of a statement read, returned or not."""
    plan = await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", *params)
    return _read(msgspec.json.decode(plan)[0]["Plan"])


def _read(node: dict[str, Any]) -> float:
    below = sum(_read(each) for each in node.get("Plans", ()))
    if "Scan" not in node["Node Type"] or node["Node Type"] == "Subquery Scan":
        return below
    each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return below + node["Actual Loops"] * each


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_e7_the_last_of_a_long_queue_knows_its_place(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("locktender.observe.rebuilt.MAX_RUNS_COUNTED", 10)
    store: Store = SqliteStore(tmp_path / "locktender.db")
    if kind == "postgres":
        store = PostgresStore(request.getfixturevalue("postgres_url"))
    await store.open()
    try:
        await set_rule(store, "runs", "", {"limit": 1})
        ids = [new_run() for _ in range(60)]
        await submit(store, *ids)

        async def told(number: int) -> tuple[int | None, str]:
            why = await explain_run(store, ids[number].id)
            return why.position, why.position_is

        assert [await told(n) for n in (0, 9, 55, 59)] == [
            *((1, "exact"), (10, "exact"), (56, "exact"), (60, "exact"))
        ]
        assert await told(30) == (12, "at least")
        # With a limit of some tag others may be overtaken, and of whom is not known
        await set_tag(store, TagRule("team", per_value=True, limit=1))
        assert await told(59) == (60, "about")
        assert await told(30) == (12, "at least")
    finally:
        await store.close()
