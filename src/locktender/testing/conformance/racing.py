# ruff: noqa: S101
"""The two places where two owners meet on one row: exactly one of them wins."""

from __future__ import annotations

import asyncio

from locktender.base.changes import End
from locktender.base.states import TASK_CHANGES
from locktender.store.protocol import Accept, Expire, Finish, Store, Withdraw
from locktender.testing.conformance.world import LEASE, StoreScene, history, offered

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
        """E10, C3: whoever commits second finds the row moved."""
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
            lost = await store.expire(Expire(leader.term, 1, leader.actor))
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
