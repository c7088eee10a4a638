# ruff: noqa: S101
"""Cached results: kept by the leader's commits, replaced, cleared, bounded, and their blobs."""

from __future__ import annotations

import pytest

from locktender.base.changes import CachedResult
from locktender.base.clock import SECOND
from locktender.base.codec import blob_ref
from locktender.base.commits import CacheClear, RunEvents
from locktender.base.errors import NotLeader
from locktender.base.events import Change
from locktender.base.ids import task_id
from locktender.store.protocol import BoundCache, Store
from locktender.store.pruning import BLOB_GRACE_US, sweep
from locktender.testing.conformance.world import SceneLeader, StoreScene, submitted

HOUR = 3_600 * SECOND


async def _made(
    store: Store, key: str, run: int, output: bytes = b"1", step: str = "s", flow: str = "f"
) -> CachedResult:
    now = await store.now()
    return CachedResult(
        key, step, flow, "flow", task_id(run, 0), now, now + HOUR, len(output), output
    )


async def _keep(leader: SceneLeader, *results: CachedResult) -> None:
    change = Change("cache", results[0].task, "", "stored", 0, {"key": results[0].key})
    run = results[0].task >> 20
    await leader.commit(cache_stored=list(results), events=[RunEvents(run, [change])])


async def _clear(leader: SceneLeader, step: str | None, flow: str | None) -> None:
    change = Change("cache", 0, "", "cleared", 0, {"step": step, "flow": flow})
    await leader.commit(cache_cleared=[CacheClear(step, flow)], events=[RunEvents(0, [change])])


async def _keys(store: Store, step: str | None = None, flow: str | None = None) -> set[str]:
    return {each.key for each in await store.cached_results(step, flow)}


class TestCaching:
    async def test_a_kept_result_is_found_by_its_key(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        first = await _made(store, "a1", run.seq, b'{"x":1}')
        await _keep(leader, first, await _made(store, "b1", run.seq))
        assert await other.find_cached(["a1", "none"]) == [first]
        assert await other.find_cached([]) == []
        assert {each.key for each in await store.find_cached(["a1", "b1"])} == {"a1", "b1"}
        [shown] = await other.cached_result("a")
        assert shown == first
        assert [each.output for each in await other.cached_results()] == [b"", b""]

    async def test_the_later_result_of_a_key_replaces_the_earlier(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await _keep(leader, await _made(store, "a1", run.seq, b"1"))
        world.clock.advance(SECOND)
        later = await _made(store, "a1", run.seq, b"2")
        await _keep(leader, later)
        assert await store.find_cached(["a1"]) == [later]

    async def test_an_old_term_keeps_and_clears_nothing(self, world: StoreScene) -> None:
        store = await world.open()
        old = await SceneLeader.stand(store)
        run = await submitted(store)
        await _keep(old, await _made(store, "a1", run.seq))
        world.clock.advance(HOUR // 2)
        await SceneLeader.stand(store, "next")
        for lost in (_keep(old, await _made(store, "b1", run.seq)), _clear(old, None, None)):
            with pytest.raises(NotLeader):
                await lost
        assert await _keys(store) == {"a1"}

    async def test_results_are_cleared_by_step_and_by_flow(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        for step in "st":
            for flow in "fg":
                made = await _made(store, f"{step}{flow}", run.seq, step=step, flow=flow)
                await _keep(leader, made)
        assert await _keys(store, "s") == {"sf", "sg"}
        assert await _keys(store, "s", "g") == {"sg"}
        await _clear(leader, "s", "f")
        assert await _keys(store) == {"sg", "tf", "tg"}
        await _clear(leader, None, "g")
        assert await _keys(store) == {"tf"}
        await _clear(leader, "nobody", None)
        assert await _keys(store) == {"tf"}
        await _clear(leader, None, None)
        assert await _keys(store) == set()

    async def test_expired_and_surplus_results_are_removed(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await _keep(leader, await _made(store, "old", run.seq))
        world.clock.advance(HOUR - SECOND)
        for n in range(4):
            world.clock.advance(SECOND // 10)
            await _keep(leader, await _made(store, f"k{n}", run.seq, b"12345"))
        world.clock.advance(SECOND)
        assert await _keys(store) == {"k0", "k1", "k2", "k3"}
        assert not await store.bound_cache(BoundCache(leader.term))
        assert await store.find_cached(["old"]) == []
        assert len(await store.find_cached(["k0", "k1", "k2", "k3"])) == 4
        assert await store.bound_cache(BoundCache(leader.term, most=3, batch=1))
        assert not await store.bound_cache(BoundCache(leader.term, most=3))
        assert await _keys(store) == {"k1", "k2", "k3"}
        assert not await store.bound_cache(BoundCache(leader.term, most_bytes=11))
        assert await _keys(store) == {"k2", "k3"}
        await SceneLeader.stand(store, leader.owner)
        with pytest.raises(NotLeader):
            await store.bound_cache(BoundCache(leader.term, most=1))

    async def test_a_blob_stays_as_long_as_its_result_is_kept(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        digest = await store.put_blob(b'"large"')
        await _keep(leader, await _made(store, "a1", run.seq, blob_ref(digest, 7)))
        world.clock.advance(BLOB_GRACE_US + SECOND)
        await sweep(store, await store.now() + BLOB_GRACE_US)
        assert await store.get_blob(digest) == b'"large"'
        await _clear(leader, None, None)
        assert (await sweep(store, await store.now() + 2 * BLOB_GRACE_US)).blobs == 1
