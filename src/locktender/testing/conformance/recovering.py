# ruff: noqa: S101
"""Offers withdrawn, workers declared lost, and the two pairs of verbs that race for one row."""

from __future__ import annotations

import asyncio

from locktender.base.changes import End
from locktender.base.clock import SECOND
from locktender.base.commits import TaskEnd
from locktender.base.states import TASK_CHANGES
from locktender.store.protocol import Accept, Finish, Lost, Store, Withdraw
from locktender.testing.conformance.world import (
    LEASE,
    SceneLeader,
    StoreScene,
    changes_of,
    expire_passed,
    history,
    join,
    offered,
)


async def expire(leader: SceneLeader) -> list[Lost]:
    leader.cycle += 1
    return await expire_passed(leader.store, leader.term, leader.actor, leader.cycle)


def withdrawal(
    leader: SceneLeader, tasks: list[tuple[int, int]], to: str = "requested"
) -> Withdraw:
    return Withdraw(leader.term, leader.cycle, leader.actor, tasks, to, "offer_ttl")


class TestRecovering:
    async def test_an_offer_is_taken_back(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, pairs = await offered(store, tasks=2)
        assert await store.withdraw(withdrawal(leader, pairs[:1])) == pairs[:1]
        taken, kept = await store.tasks(run)
        assert (taken.state, taken.held, taken.worker, taken.offers) == (
            "requested",
            None,
            None,
            1,
        )
        assert kept.state == "scheduled"
        assert [order.task for order in await store.orders("w1")] == [kept.id]
        event = (await history(store, run))[-1]
        assert (event.before, event.after, event.data) == (
            "scheduled",
            "requested",
            {"reason": "offer_ttl"},
        )
        assert (event.term, event.cycle) == (leader.term, leader.cycle)
        assert await store.accept(Accept("w1", pairs[:1])) == []

    async def test_an_offer_is_cancelled(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, pairs = await offered(store)
        world.clock.advance(SECOND)
        assert await store.withdraw(withdrawal(leader, pairs, "cancelled")) == pairs
        [row] = await store.tasks(run)
        assert (row.state, row.held, row.ended_at) == ("cancelled", None, world.clock.now())
        assert await store.accept(Accept("w1", pairs)) == []

    async def test_a_repeated_withdrawal_gives_the_same_answer(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, pairs = await offered(store)
        for _ in range(2):
            assert await store.withdraw(withdrawal(leader, pairs)) == pairs
        assert (await changes_of(store, run)).count(("scheduled", "requested")) == 1

    async def test_what_was_accepted_is_not_withdrawn(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, [(task, given)] = await offered(store)
        assert await store.withdraw(withdrawal(leader, [(task, given + 1), (task + 9, 1)])) == []
        await store.accept(Accept("w1", [(task, given)]))
        assert await store.withdraw(withdrawal(leader, [(task, given)])) == []
        [row] = await store.tasks(run)
        assert row.state == "running"

    async def test_a_living_worker_is_left_alone(self, world: StoreScene) -> None:
        """B9."""
        store = await world.open()
        leader, run, pairs = await offered(store)
        await store.accept(Accept("w1", pairs))
        world.clock.advance(LEASE)
        assert await expire(leader) == []
        await join(store)
        world.clock.advance(LEASE)
        assert await expire(leader) == []
        [row] = await store.tasks(run)
        assert row.state == "running"

    async def test_a_lost_workers_tasks_come_back(self, world: StoreScene) -> None:
        """D5, C4."""
        store = await world.open()
        leader, run, pairs = await offered(store, tasks=3)
        await store.accept(Accept("w1", pairs[:2]))
        await store.finish(Finish("w1", [End(*pairs[0], "completed", b"1")]))
        await join(store, "w2", 10 * LEASE)
        world.clock.advance(LEASE + 1)
        [lost] = await expire(leader)
        assert lost.worker == "w1"
        assert lost.reason
        assert (lost.abandoned, lost.withdrawn) == ([pairs[1]], [pairs[2]])
        done, abandoned, ready = await store.tasks(run)
        assert (done.state, done.output) == ("completed", b"1")
        assert (abandoned.state, abandoned.abandons, abandoned.held) == ("abandoned", 1, None)
        assert (ready.state, ready.token, ready.held, ready.offers) == ("requested", 0, None, 1)
        assert await store.orders("w1") == []
        assert [worker.id for worker in await store.workers()] == ["w2"]
        assert (await changes_of(store, run))[-2:] == [
            ("running", "abandoned"),
            ("scheduled", "requested"),
        ]
        lost = [event for event in await history(store) if event.after == "lost"]
        assert [event.data["worker"] for event in lost] == ["w1"]
        assert await expire(leader) == []

    async def test_what_a_worker_was_told_to_leave_is_handed_back(self, world: StoreScene) -> None:
        """Seed 003: a shutdown spends no attempts. By (task, token), and all else as ever."""
        store = await world.open()
        leader, run, pairs = await offered(store, tasks=4)
        await store.accept(Accept("w1", pairs[:3]))
        left, (other, token), killed, offer = pairs
        await join(store, "w1", draining=True, leaves=(left, (other, token + 1), offer))
        world.clock.advance(LEASE + 1)
        [lost] = await expire(leader)
        assert lost.handed_back == [left]
        assert (lost.abandoned, lost.withdrawn) == ([(other, token), killed], [offer])
        back, abandoned, *_ = rows = await store.tasks(run)
        assert [row.state for row in rows] == [
            "handed_back",
            "abandoned",
            "abandoned",
            "requested",
        ]
        assert (back.abandons, back.attempt, back.token, back.held) == (0, 1, left[1], None)
        assert back.ended_at == abandoned.ended_at == world.clock.now()
        # Not the same as handed back by the worker itself: its slots may have to stay taken.
        assert back.error is not None
        events = await history(store)
        gone = next(each for each in events if each.after == "lost")
        handed_back = next(each for each in events if each.after == "handed_back")
        assert (handed_back.before, handed_back.token, handed_back.actor) == (
            "running",
            left[1],
            leader.actor,
        )
        assert "drain" in handed_back.data["reason"]
        assert (handed_back.term, handed_back.cycle) == (gone.term, gone.cycle)
        # A reader of the history must learn first that the worker is gone.
        assert events.index(gone) < events.index(handed_back)
        assert await store.finish(Finish("w1", [End(*left, "completed", b"1")])) == [left]

    async def test_a_drain_list_counts_only_after_the_lease_has_passed(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader, run, pairs = await offered(store, tasks=2)
        await store.accept(Accept("w1", pairs))
        await join(store, "w1", leaves=tuple(pairs))
        world.clock.advance(LEASE)
        assert await expire(leader) == []
        assert {row.state for row in await store.tasks(run)} == {"running"}
        assert await store.finish(Finish("w1", [End(*pairs[0], "completed", b"1")])) == []
        world.clock.advance(1)
        [lost] = await expire(leader)
        assert (lost.abandoned, lost.handed_back) == ([], [pairs[1]])
        assert [row.state for row in await store.tasks(run)] == ["completed", "handed_back"]

    async def test_the_last_drain_list_of_a_worker_counts(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, pairs = await offered(store, tasks=2)
        await store.accept(Accept("w1", pairs))
        await join(store, "w1", leaves=tuple(pairs))
        await join(store, "w1", leaves=(pairs[1],))
        world.clock.advance(LEASE + 1)
        [lost] = await expire(leader)
        assert (lost.abandoned, lost.handed_back) == ([pairs[0]], [pairs[1]])

    async def test_a_worker_may_leave_more_than_it_can_name(self, world: StoreScene) -> None:
        store = await world.open()
        leader, _, pairs = await offered(store, tasks=3)
        await store.accept(Accept("w1", pairs[:2]))
        await join(store, "w1", draining=True, leaves_all=True)
        world.clock.advance(LEASE + 1)
        [lost] = await expire(leader)
        assert (lost.abandoned, lost.handed_back, lost.withdrawn) == ([], pairs[:2], pairs[2:])

    async def test_several_lost_at_once(self, world: StoreScene) -> None:
        store = await world.open()
        leader, run, pairs = await offered(store, "w1", tasks=2)
        await join(store, "w2")
        await join(store, "idle")
        await store.accept(Accept("w1", pairs))
        world.clock.advance(LEASE + 1)
        lost = {each.worker: each.abandoned for each in await expire(leader)}
        assert lost == {"w1": pairs, "w2": [], "idle": []}
        assert {row.state for row in await store.tasks(run)} == {"abandoned"}

    async def test_writes_of_a_lost_worker_are_refused(self, world: StoreScene) -> None:
        """B12: a stale attempt can neither complete, fail, renew nor release."""
        store = await world.open()
        leader, run, pairs = await offered(store)
        await store.accept(Accept("w1", pairs))
        world.clock.advance(LEASE + 1)
        await expire(leader)
        for state in ("completed", "failed", "cancelled", "handed_back"):
            assert await store.finish(Finish("w1", [End(*pairs[0], state)])) == pairs
        assert await store.accept(Accept("w1", pairs)) == []
        await leader.commit(tasks_ended=[TaskEnd(*pairs[0], b"late", 1)])
        [row] = await store.tasks(run)
        assert (row.state, row.output) == ("abandoned", None)


_TASKS = 40


async def legal(store: Store, run: int) -> None:
    """Every task's changes follow each other, and each is in the table."""
    state: dict[int, str] = {}
    for event in await history(store, run):
        if event.subject == "task":
            assert (event.before, event.after) in TASK_CHANGES
            assert state.get(event.task, "new") == event.before
            state[event.task] = event.after
    assert state == {row.id: row.state for row in await store.tasks(run)}


class TestRacing:
    async def test_accept_against_withdraw(self, world: StoreScene) -> None:
        """E10, C3: the second commit finds the row moved."""
        store, other = await world.open(), await world.open()
        leader, run, pairs = await offered(store, tasks=_TASKS)

        async def withdraw(pair: tuple[int, int]) -> bool:
            verb = Withdraw(leader.term, 1, leader.actor, [pair], "requested", "race")
            return bool(await store.withdraw(verb))

        async def accept(pair: tuple[int, int]) -> bool:
            return bool(await other.accept(Accept("w1", [pair])))

        async def both(n: int, pair: tuple[int, int]) -> tuple[bool, bool]:
            if n % 2:
                accepted, withdrawn = await asyncio.gather(accept(pair), withdraw(pair))
            else:
                withdrawn, accepted = await asyncio.gather(withdraw(pair), accept(pair))
            return withdrawn, accepted

        results = await asyncio.gather(*(both(n, pair) for n, pair in enumerate(pairs)))
        assert all(withdrawn != accepted for withdrawn, accepted in results)
        states = [row.state for row in await store.tasks(run)]
        assert states.count("running") == sum(accepted for _, accepted in results)
        await legal(store, run)

    async def test_finish_against_expire(self, world: StoreScene) -> None:
        """C2: an attempt ends once, however late its worker is."""
        store, other = await world.open(), await world.open()
        leader, run, pairs = await offered(store, tasks=_TASKS)
        await store.accept(Accept("w1", pairs))
        world.clock.advance(LEASE + 1)

        async def finish(pair: tuple[int, int]) -> bool:
            return not await other.finish(Finish("w1", [End(*pair, "completed", b"1")]))

        async def expire() -> set[tuple[int, int]]:
            lost = await expire_passed(store, leader.term, leader.actor)
            return {pair for each in lost for pair in each.abandoned}

        first = await finish(pairs[0])
        abandoned, finished = await asyncio.gather(
            expire(), asyncio.gather(*(finish(pair) for pair in pairs[1:]))
        )
        done = {pair for pair, won in zip(pairs, [first, *finished], strict=True) if won}
        assert first
        assert not done & abandoned
        assert done | abandoned == set(pairs)
        await legal(store, run)

    async def test_two_workers_never_run_one_attempt(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        _, run, pairs = await offered(store, tasks=_TASKS)
        accepted = await asyncio.gather(
            *(each.accept(Accept("w1", [pair])) for pair in pairs for each in (store, other))
        )
        # The repetition of an acceptance is answered, but it happens once.
        assert all(accepted)
        assert {row.attempt for row in await store.tasks(run)} == {1}
        await legal(store, run)
