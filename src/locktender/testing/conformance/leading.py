# ruff: noqa: S101
"""Leading: one term at a time, and nothing written outside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from locktender.base.clock import SECOND
from locktender.base.errors import NotLeader
from locktender.store.protocol import Elect, Expire, Recut, Withdraw
from locktender.testing.conformance.world import LEASE, SceneLeader, StoreScene, history, submitted

LeaderVerb = Callable[[SceneLeader], Awaitable[object]]


async def _commit(leader: SceneLeader) -> object:
    return await leader.start(1)


async def _withdraw(leader: SceneLeader) -> object:
    tasks = [(1, 1)]
    return await leader.store.withdraw(
        Withdraw(leader.term, 1, leader.actor, tasks, "requested", "late")
    )


async def _expire(leader: SceneLeader) -> object:
    return await leader.store.expire(Expire(leader.term, 1, leader.actor))


async def _recut(leader: SceneLeader) -> object:
    return await leader.store.recut(Recut(leader.term))


class TestLeading:
    async def test_the_first_to_stand_leads(self, world: StoreScene) -> None:
        store = await world.open()
        led = await store.elect(Elect("a", LEASE))
        assert (led.term, led.owner) == (1, "a")
        assert led.expires_at == world.clock.now() + LEASE
        [event] = await history(store)
        assert (event.subject, event.before, event.after, event.term) == ("leader", "", "a", 1)

    async def test_a_second_is_refused_while_the_lease_lives(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        await store.elect(Elect("a", LEASE))
        led = await other.elect(Elect("b", LEASE))
        assert (led.term, led.owner) == (0, "a")

    async def test_one_of_many_wins(self, world: StoreScene) -> None:
        stores = [await world.open() for _ in range(3)]
        votes = [store.elect(Elect(f"o{n}", LEASE)) for n, store in enumerate(stores)]
        led = await asyncio.gather(*votes)
        assert sorted(each.term for each in led) == [0, 0, 1]

    async def test_renewal_keeps_the_term(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        led = await store.elect(Elect("a", LEASE))
        world.clock.advance(LEASE - SECOND)
        renewed = await store.elect(Elect("a", LEASE, led.term))
        assert (renewed.term, renewed.expires_at) == (led.term, world.clock.now() + LEASE)
        world.clock.advance(LEASE - SECOND)
        assert (await other.elect(Elect("b", LEASE))).term == 0

    async def test_renewal_tells_the_last_cycle_that_is_written(self, world: StoreScene) -> None:
        leader = await SceneLeader.stand(await world.open())
        await leader.start((await submitted(leader.store)).seq)
        await leader.commit()
        renewed = await leader.store.elect(Elect(leader.owner, LEASE, leader.term))
        assert renewed.cycle == leader.cycle

    async def test_take_over_after_the_lease(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        first = await store.elect(Elect("a", LEASE))
        world.clock.advance(LEASE + 1)
        second = await other.elect(Elect("b", LEASE))
        assert second.term == first.term + 1
        late = await store.elect(Elect("a", LEASE, first.term))
        assert (late.term, late.owner) == (0, "b")

    async def test_who_stands_again_has_a_new_term(self, world: StoreScene) -> None:
        """Tokens are counted within a term: a restarted leader must not give the old ones again."""
        store = await world.open()
        first = await store.elect(Elect("a", LEASE))
        second = await store.elect(Elect("a", LEASE))
        assert second.term == first.term + 1

    async def test_resigning_lets_the_next_one_in_at_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        led = await store.elect(Elect("a", LEASE))
        await store.resign("a", led.term)
        await store.resign("a", led.term)
        taken = await other.elect(Elect("b", LEASE))
        assert taken.term == led.term + 1
        await store.resign("a", led.term)
        assert (await other.elect(Elect("b", LEASE, taken.term))).term == taken.term

    @pytest.mark.parametrize("verb", [_commit, _withdraw, _expire, _recut])
    async def test_a_paused_leader_that_wakes_up_can_write_nothing(
        self, world: StoreScene, verb: LeaderVerb
    ) -> None:
        store, other = await world.open(), await world.open()
        run = await submitted(store)
        paused = await SceneLeader.stand(store, "a")
        world.clock.advance(LEASE + 1)
        await SceneLeader.stand(other, "b")
        events = await history(store)
        with pytest.raises(NotLeader):
            await verb(paused)
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "queued"
        assert await history(store) == events

    async def test_who_leads(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        assert await other.leader() is None
        led = await store.elect(Elect("a", LEASE))
        assert await other.leader() == "a"
        world.clock.advance(LEASE + 1)
        assert await other.leader() is None
        await store.elect(Elect("a", LEASE, led.term))
        assert await other.leader() == "a"
        await store.resign("a", led.term)
        assert await other.leader() is None

    async def test_the_term_alone_is_the_fence(self, world: StoreScene) -> None:
        """A leader whose lease ran out, with nobody to take over, may go on."""
        store = await world.open()
        run = await submitted(store)
        leader = await SceneLeader.stand(store)
        world.clock.advance(LEASE + 1)
        await leader.start(run.seq)
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "running"
