"""PostgreSQL with real second processes: the exact ceiling, and no deadlock between hot workers."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from locktender.store.postgres import PostgresStore
from locktender.store.protocol import RunFilter, Withdraw
from locktender.testing.conformance.recovering import legal
from locktender.testing.conformance.world import SceneLeader, new_run, set_ceiling, submit
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
ROUNDS = 40
CHILD = Path(__file__).parents[1] / "support" / "postgres_child.py"


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def hear(self) -> dict[str, Any]:
        """The next line it says."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        assert line, "the child ended without a word"
        return json.loads(line)

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")


@asynccontextmanager
async def child(url: str, verb: str, argument: object) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CHILD), url, verb, str(argument)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # pyright: ignore


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    await store.open()
    yield store
    await store.close()


async def test_the_ceiling_is_exact_over_processes(postgres_url: str, store: PostgresStore) -> None:
    await set_ceiling(store, 15)
    async with child(postgres_url, "race", 20) as one, child(postgres_url, "race", 20) as two:
        for each in (one, two):
            await each.hear()
        for each in (one, two):
            each.tell()
        created = [(await each.hear())["created"] for each in (one, two)]
    assert sum(created) == 15
    counts = await store.counts()
    assert (counts.admitted[""], counts.active[""]) == (15, 15)
    assert len(await store.runs(RunFilter())) == 15


async def completed(store: PostgresStore, runs: list[int]) -> bool:
    for run in runs:
        if any(row.state == "completed" for row in await store.tasks(run)):
            return True
    return False


async def test_hot_workers_and_a_leader_never_deadlock(
    postgres_url: str, store: PostgresStore
) -> None:
    """Offers, acceptances, ends and withdrawals of the same rows, each in an order of its own."""
    leader = await SceneLeader.stand(store, lease_us=60_000_000)
    async with child(postgres_url, "work", "w1") as one, child(postgres_url, "work", "w2") as two:
        await one.hear()
        await two.hear()
        runs: list[int] = []
        for _ in range(ROUNDS):
            made = await submit(store, new_run(), new_run())
            await leader.start(*(run.seq for run in made))
            pairs: list[tuple[int, int]] = []
            for run, worker in zip(made, ("w1", "w2"), strict=True):
                runs.append(run.seq)
                pairs += await leader.offer(run.seq, worker, 40)
            random.shuffle(pairs)
            leader.cycle += 1
            withdraw = Withdraw(
                leader.term, leader.cycle, leader.actor, pairs[:20], "requested", "race"
            )
            await asyncio.gather(
                store.withdraw(withdraw),
                leader.commit(events=[]),
                submit(store, new_run()),
            )
        async with asyncio.timeout(60):
            for first in (0, 1):  # each worker has ended some of its own, however late it came
                while not await completed(store, runs[first::2]):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        for each in (one, two):
            each.tell()
        done = [(await each.hear())["done"] for each in (one, two)]
    assert min(done) > 0
    for run in runs:
        await legal(store, run)
    async with connected(postgres_url) as conn:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await conn.fetchval(query) == 0
