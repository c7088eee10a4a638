"""What tells open pages that something changed: events of the history, and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from tests.steps import held_steps as flows
from tests.support.fault_injector import Injector

from locktender import connect_async
from locktender.base.config import Settings
from locktender.base.errors import HistoryReplaced
from locktender.client.core import Core
from locktender.client.history import HistoryPages
from locktender.store.open import store_for
from locktender.store.protocol import LATEST, Cursor, Follow, Followed

pytest_plugins = ["locktender.testing.postgres"]


def pages_of(store: object) -> HistoryPages:
    return HistoryPages(cast("Core", SimpleNamespace(store=store)))


async def test_a_write_without_an_event_does_not_refresh_pages(store_url: str):
    store = store_for(Settings(url=store_url))
    await store.open()
    try:
        pages = pages_of(store)
        place = first = await pages.now()
        for _ in range(3):
            # As a lease is renewed.
            await asyncio.to_thread(
                Injector(store_url).query, "UPDATE {}meta SET value = value RETURNING 1"
            )
            place, changed = await pages.moved(place)
            assert not changed
        assert (first != place) == store_url.startswith("postgres")
        async with connect_async(store_url) as client:
            await client.submit(flows.ordinary, 1)
            await client.submit(flows.ordinary, 2)
        place, changed = await pages.moved(place)
        assert changed
        place, changed = await pages.moved(place)
        assert not changed
        assert (await pages.moved(first))[1]
    finally:
        await store.close()


async def test_another_history_refreshes_pages_and_is_followed():
    class Replaced:
        async def follow(self, follow: Follow) -> Followed:
            if follow.after == Cursor("7"):
                raise HistoryReplaced("the history ends at event 3.")
            return Followed(Cursor("7" if follow.after == LATEST and not seen else "3"), [], [])

    seen: list[str] = []
    pages = pages_of(Replaced())
    seen.append(await pages.now())
    place, changed = await pages.moved(seen[0])
    assert changed
    assert place != seen[0]
    assert (await pages.moved(place)) == (place, False)
