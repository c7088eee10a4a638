# ruff: noqa: S101
"""Waking: another's commit ends a wait, one's own does not."""

from __future__ import annotations

import asyncio
import time

from locktender.base.clock import MILLISECOND, SECOND
from locktender.store.protocol import Store
from locktender.testing.conformance.world import StoreScene, submitted

_FOREVER = 3_600 * SECOND
"""Who is not woken waits for so long,"""
_PATIENCE = 60.0
"""and a test for so many seconds."""


async def waited(store: Store, timeout_us: int, since: int = -1) -> float:
    started = time.monotonic()
    await store.wait(timeout_us, since)
    return time.monotonic() - started


class TestWaking:
    async def test_a_wait_ends_at_its_timeout(self, world: StoreScene) -> None:
        store = await world.open()
        async with asyncio.timeout(_PATIENCE):
            await store.wait(0)
            assert await waited(store, 100 * MILLISECOND) >= 0.1

    async def test_another_stores_commit_ends_a_wait(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        waiting = asyncio.ensure_future(store.wait(_FOREVER))
        await submitted(other)
        await asyncio.wait_for(waiting, _PATIENCE)

    async def test_ones_own_commit_does_not(self, world: StoreScene) -> None:
        store = await world.open()
        waiting = asyncio.ensure_future(waited(store, 200 * MILLISECOND))
        await submitted(store)
        assert await waiting >= 0.2

    async def test_what_came_before_the_wait_is_not_missed(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        await store.wait(0)
        await submitted(other)
        await asyncio.wait_for(store.wait(_FOREVER), _PATIENCE)

    async def test_two_who_wait_on_one_store_both_learn_of_it(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        leader_mark = worker_mark = await store.wait(0)
        await submitted(other)
        async with asyncio.timeout(_PATIENCE):
            leader_mark = await store.wait(_FOREVER, leader_mark)
            await store.wait(_FOREVER, worker_mark)
        assert leader_mark > worker_mark

    async def test_many_wait_at_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        waiting = [asyncio.ensure_future(store.wait(_FOREVER)) for _ in range(5)]
        await submitted(other)
        await asyncio.wait_for(asyncio.gather(*waiting), _PATIENCE)
