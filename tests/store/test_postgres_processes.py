"""PostgreSQL with real second processes: the exact ceiling, and no deadlock between hot workers."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager

from tests.support.store_children import Child, child_of

from locktender.store.postgres import PostgresStore
from locktender.store.protocol import RunFilter, Withdraw
from locktender.testing.conformance.recovering import legal
from locktender.testing.conformance.world import SceneLeader, new_run, set_ceiling, submit
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]
ROUNDS = 40


def child(url: str, verb: str, argument: object = "") -> AbstractAsyncContextManager[Child]:
    return child_of("postgres_child.py", url, verb, argument)


async def test_the_ceiling_is_exact_over_processes(postgres_url: str, store: PostgresStore) -> None:
    await set_ceiling(store, 15)
    async with child(postgres_url, "race", 20) as one, child(postgres_url, "race", 20) as two:
        for each in (one, two):
            await each.line()
        for each in (one, two):
            each.go()
        created = [(await each.line())["created"] for each in (one, two)]
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
        await one.line()
        await two.line()
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
            each.go()
        done = [(await each.line())["done"] for each in (one, two)]
    assert min(done) > 0
    for run in runs:
        await legal(store, run)
    async with connected(postgres_url) as conn:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert await conn.fetchval(query) == 0
