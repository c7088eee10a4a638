"""The order of events, and take-over: no event is lost, and none stands before its cause."""

from __future__ import annotations

import asyncio
import time

import pytest

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.errors import LocktenderError, NotLeader
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.recovery import fence
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import BEGINNING, Accept, Elect, EventFilter, Gather
from locktender.testing.conformance.recovering import legal
from locktender.testing.conformance.world import (
    SceneLeader,
    expire_passed,
    history,
    join,
    offered,
    submitted,
)
from locktender.testing.postgres_server import connected

pytest_plugins = ["locktender.testing.postgres"]


async def test_a_follower_finds_a_late_transaction_later(
    postgres_url: str, store: PostgresStore
) -> None:
    """By numbers it would read the second and lose the first, or wait for it."""
    after = (await store.load()).cursor
    async with connected(postgres_url) as slow:
        # Given one that has written its event and is not committed yet, and one that is.
        await slow.execute("BEGIN")
        await slow.execute(
            "INSERT INTO locktender.event (seq, at, term, cycle, actor, run, body)"
            " SELECT locktender.event_base(), 1, 0, 0, 'client', 7, '[]'"
        )
        run = await submitted(store)
        # Then the second is read; what is settled ends before the first.
        gathered = await store.gather(Gather(after, "me"))
        assert [event.run for event in gathered.events] == [run.seq]
        assert [event.run for event in await store.events(EventFilter())] == [run.seq]
        assert await store.events(EventFilter(settled=True)) == []
        # When the first commits, it alone is read, and both are settled, in the order of their numbers.
        await slow.execute("COMMIT")
    gathered = await store.gather(Gather(gathered.cursor, "me"))
    assert [event.run for event in gathered.events] == [7]
    both = [7, run.seq]
    assert [event.run for event in await store.events(EventFilter(settled=True))] == both
    assert (await store.gather(Gather(gathered.cursor, "me"))).events == []


async def test_many_writers_lose_no_event(store: PostgresStore, other: PostgresStore) -> None:
    """A reader that follows two hot writers sees every event once."""
    seen: list[int] = []
    after, done = BEGINNING, False

    async def follow() -> None:
        nonlocal after
        while True:
            last = done
            gathered = await store.gather(Gather(after, "me", limit=7))
            seen.extend(event.run for event in gathered.events)
            after = gathered.cursor
            if last and not gathered.events:
                return

    following = asyncio.ensure_future(follow())
    submits = [submitted(each) for _ in range(60) for each in (store, other)]
    runs = [result.seq for result in await asyncio.gather(*submits)]
    done = True
    await asyncio.wait_for(following, 60)
    assert sorted(seen) == sorted(runs)


async def test_a_leader_that_hangs_in_a_transaction_is_taken_over(
    store: PostgresStore, other: PostgresStore
) -> None:
    """It holds the row; its connection is ended, and when it wakes up it can write nothing."""
    led = await store.elect(Elect("a", 100 * MILLISECOND))
    inside, woken = asyncio.Event(), asyncio.Event()

    async def hang(tx: PostgresSession) -> None:
        async with tx.transaction():
            await fence(tx, led.term)
            inside.set()
            await woken.wait()
            await tx.run("leader_resign", "b", led.term + 1)

    frozen = asyncio.ensure_future(store._lead(hang))
    await inside.wait()
    async with asyncio.timeout(60):  # it would hang for ever
        while not (taken := await other.elect(Elect("b", 60 * SECOND))).term:
            await other.wait(10 * MILLISECOND)
    assert taken.term == led.term + 1
    woken.set()
    with pytest.raises(NotLeader):
        await frozen
    assert await other.leader() == "b"
    with pytest.raises(NotLeader):
        await SceneLeader(store, "a", led.term).start(1)


async def test_take_over_waits_for_the_commit_in_flight(
    store: PostgresStore, other: PostgresStore
) -> None:
    """What the old leader has on its way is written before the new term begins, or not at all."""
    for n in range(4):
        leader = await SceneLeader.stand(store, f"a{n}", 1)
        run = await submitted(store)
        results = await asyncio.gather(
            leader.start(run.seq), other.elect(Elect(f"b{n}", 1)), return_exceptions=True
        )
        broken = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, LocktenderError) for error in broken)
    terms = [event.term for event in await history(store) if event.actor.startswith("leader:")]
    assert terms == sorted(terms)


async def test_an_acceptance_beside_a_loss_stands_before_it(
    store: PostgresStore, other: PostgresStore
) -> None:
    for n in range(5):
        leader, run, pairs = await offered(store, f"w{n}", 10, lease_us=30 * MILLISECOND)
        accepts = [other.accept(Accept(f"w{n}", [pair])) for pair in pairs]

        async def expire(leader: SceneLeader = leader) -> None:
            end = time.monotonic() + 60
            while not await expire_passed(store, leader.term, leader.actor):
                assert time.monotonic() < end
                await asyncio.sleep(0.002)

        await asyncio.gather(expire(), *accepts)
        await legal(store, run)
        assert {row.state for row in await store.tasks(run)} <= {"abandoned", "requested"}
        await join(store, "idle")
