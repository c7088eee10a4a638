"""A long snapshot in our own database keeps old versions of rows: what that costs, and that it ends with it."""

from __future__ import annotations

import statistics
import time
from typing import Any

import asyncpg
import msgspec
import pytest

from locktender.base.changes import Bucket
from locktender.base.commits import Commit
from locktender.store.postgres import PostgresStore
from locktender.store.protocol import Elect

pytest_plugins = ["locktender.testing.postgres"]

UPDATES = 24_000
"""As many as a busy leader makes in ten minutes."""
FOREVER_US = 10**12
TABLES = {"leader": "one", "bucket": "pool = 'api'"}


async def blocks_read(conn: asyncpg.Connection[Any], table: str) -> int:
    """Blocks that are looked at to find the one row of a table: the same on a busy machine."""
    plan = await conn.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
        f" SELECT * FROM locktender.{table} WHERE {TABLES[table]}"
    )
    node = msgspec.json.decode(plan)[0]["Plan"]
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]


@pytest.mark.long
@pytest.mark.timeout(1_200)
async def test_rows_that_grow_under_a_snapshot_shrink_after_it(
    postgres_url: str, record_property: Any
):
    store = PostgresStore(postgres_url)
    await store.open()
    foreign, looks = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    cycle = 0
    try:
        term = (await store.elect(Elect("me", FOREVER_US))).term

        async def commits(count: int) -> float:
            """Their median, in milliseconds."""
            nonlocal cycle
            took: list[float] = []
            for _ in range(count):
                cycle += 1
                commit = Commit(
                    *(term, cycle, "leader:me"), buckets=[Bucket("api", cycle)], previous=cycle - 1
                )
                began = time.perf_counter()
                await store.commit(commit)
                took.append(time.perf_counter() - began)
            return statistics.median(took) * 1_000

        found: dict[str, Any] = {"before": await commits(1_000)}
        few = {table: await blocks_read(looks, table) for table in TABLES}
        await foreign.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await foreign.execute("SELECT 1")
        for _ in range(4):
            found[f"{cycle - 1_000:,} under it"] = await commits(UPDATES // 4)
        many = {table: await blocks_read(looks, table) for table in TABLES}
        await foreign.execute("COMMIT")
        # The server's own vacuum clears up within a minute. Here it is asked for.
        for table in TABLES:
            await looks.execute(f"VACUUM locktender.{table}")
        found["after it"] = await commits(1_000)
        again = {table: await blocks_read(looks, table) for table in TABLES}
    finally:
        await foreign.close()
        await looks.close()
        await store.close()
    for name, figures in (("ms", found), ("few", few), ("many", many), ("again", again)):
        record_property(name, figures)
    print(found, few, many, again)  # noqa: T201
    for table in TABLES:
        assert many[table] > 10 * few[table], (table, few, many)
        assert again[table] < many[table] / 4, (table, many, again)
