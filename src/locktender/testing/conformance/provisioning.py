# ruff: noqa: S101
"""Workers that were asked for: stored before anybody is asked, and known to the next leader."""

from __future__ import annotations

import pytest

from locktender.base.clock import SECOND
from locktender.base.errors import NotLeader
from locktender.base.model import AskedWorker, Said
from locktender.store.protocol import Provision, Store
from locktender.testing.conformance.world import LEASE, SceneLeader, StoreScene, history, join

TIMEOUT = 60 * SECOND


async def ask(leader: SceneLeader, *names: str) -> None:
    asked = {name: f'"{name}"'.encode() for name in names}
    await leader.store.provision(Provision(leader.term, asked, TIMEOUT))


async def asked(store: Store) -> list[AskedWorker]:
    return (await store.provisioned()).asked


async def joined(store: Store) -> dict[str, int]:
    return {each.name: each.joined_at for each in await asked(store)}


class TestProvisioning:
    async def test_what_is_asked_for_is_known_to_everybody(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await ask(leader, "b", "a")
        now = world.clock.now()
        found = await other.provisioned()
        assert found.now == now
        assert found.asked == [
            AskedWorker("a", now, now + TIMEOUT, 0, b'"a"'),
            AskedWorker("b", now, now + TIMEOUT, 0, b'"b"'),
        ]

    async def test_a_repetition_changes_nothing(self, world: StoreScene) -> None:
        leader = await SceneLeader.stand(await world.open())
        await ask(leader, "a")
        before = await asked(leader.store)
        world.clock.advance(SECOND)
        await ask(leader, "a")
        assert await asked(leader.store) == before

    async def test_a_leader_whose_term_is_over_may_ask_for_nobody(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        paused = await SceneLeader.stand(store, "a")
        await ask(paused, "first")
        await store.provision(Provision(paused.term, said=Said("of the first")))
        world.clock.advance(LEASE + 1)
        await SceneLeader.stand(other, "b")
        for late in (
            Provision(paused.term, {"late": b"{}"}, TIMEOUT),
            Provision(paused.term, gone=["first"]),
            Provision(paused.term, said=Said("late")),
        ):
            with pytest.raises(NotLeader):
                await store.provision(late)
        assert list(await joined(other)) == ["first"]

    async def test_who_joins_is_marked_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        await ask(leader, "a", "b")
        world.clock.advance(SECOND)
        await join(other, "w1", provision="a")
        at = world.clock.now()
        assert await joined(store) == {"a": at, "b": 0}
        world.clock.advance(SECOND)
        await join(other, "w1", provision="a")
        # One that lost its lease comes back under another id.
        await join(other, "w2", provision="a")
        await join(other, "w3", provision="never-asked-for")
        await join(other, "w4")
        assert await joined(store) == {"a": at, "b": 0}

    async def test_who_has_left_stays_known_until_a_leader_forgets_it(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        await ask(leader, "a", "b", "c")
        await join(store, "w1", provision="a")
        await store.leave("w1")
        assert (await joined(store))["a"] > 0
        await store.provision(Provision(leader.term, gone=["a", "never-asked-for"]))
        await store.provision(Provision(leader.term, gone=["a"]))
        assert list(await joined(store)) == ["b", "c"]

    async def test_who_started_a_worker_may_say_that_it_ended_without_leading(
        self, world: StoreScene
    ) -> None:
        store, other = await world.open(), await world.open()
        await ask(await SceneLeader.stand(store), "a", "b")
        await other.forget_asked(["b", "never-asked-for"])
        await other.forget_asked([])
        assert list(await joined(store)) == ["a"]

    async def test_one_change_may_do_all_of_it(self, world: StoreScene) -> None:
        leader = await SceneLeader.stand(await world.open())
        await ask(leader, "old")
        said = Said("1 of at most 3 workers is on its way", world.clock.now() + SECOND, "quota")
        await leader.store.provision(Provision(leader.term, {"new": b"{}"}, TIMEOUT, ["old"], said))
        found = await leader.store.provisioned()
        assert [each.name for each in found.asked] == ["new"]
        assert found.said == said

    async def test_what_the_provisioner_said_ends_with_its_leaders_term(
        self, world: StoreScene
    ) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store, "a")
        assert (await other.provisioned()).said is None
        await store.provision(Provision(leader.term, said=Said("one")))
        await store.provision(Provision(leader.term, said=Said("two")))
        await ask(leader, "a")
        assert (await other.provisioned()).said == Said("two")
        world.clock.advance(LEASE + 1)
        second = await SceneLeader.stand(other, "b")
        found = await store.provisioned()
        assert found.said is None
        assert [each.name for each in found.asked] == ["a"]
        await other.provision(Provision(second.term, said=Said("three")))
        assert (await store.provisioned()).said == Said("three")

    async def test_asking_is_no_history(self, world: StoreScene) -> None:
        """Nothing starts or ends by it; the worker that comes is in the history by its own word."""
        leader = await SceneLeader.stand(await world.open())
        before = await history(leader.store)
        await ask(leader, "a")
        await leader.store.forget_asked(["a"])
        assert await history(leader.store) == before
