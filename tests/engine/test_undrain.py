"""A drain that was ordered is taken back: by the worker's own process, by another one, before it began."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from locktender import AsyncClient, Client, InvalidInput, NotFound, connect_async, flow, step
from locktender.base.clock import SECOND
from locktender.base.model import Request, WorkerRow
from locktender.engine import Engine
from locktender.observe.checker import check
from locktender.store.open import settings_for, store_for
from locktender.store.protocol import Heartbeat
from locktender.testing import load_history

pytest_plugins = ["locktender.testing.postgres"]
SECONDS = 60


@step
async def echo(value: int) -> int:
    return value


@flow
def echoed(value: int) -> int:
    return echo(value)


@dataclass
class Scene:
    url: str
    client: AsyncClient
    worker: Engine

    @property
    def name(self) -> str:
        return self.worker.worker.id

    async def until(self, *, draining: bool) -> None:
        async with asyncio.timeout(SECONDS):
            while (await self.client.workers.get(self.name)).draining != draining:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def scene(store_url: str, tmp_path: Path, *, lead: bool = True) -> AsyncIterator[Scene]:
    """A worker in an engine of its own, and a leader in another; the history is checked at the end."""
    settings = settings_for(store_url, {"work_dir": str(tmp_path)})
    stores = [store_for(settings), store_for(settings)]
    engines = [Engine(stores[0], settings, work=False), Engine(stores[1], settings, lead=False)]
    for store in stores:
        await store.open()
    started = engines if lead else engines[1:]
    for engine in started:
        await engine.start()
    async with connect_async(store_url) as client:
        yield Scene(store_url, client, engines[1])
        if not lead:
            await engines[0].start()
            started = engines
    for engine in reversed(started):
        await engine.stop(0)
    for store in stores:
        await store.close()


async def test_a_drain_is_taken_back_and_the_worker_goes_on(
    store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="locktender")
    async with scene(store_url, tmp_path) as on:
        await on.client.workers.drain(on.name)
        await on.until(draining=True)
        run = await on.client.submit(echoed, 7)
        async with asyncio.timeout(SECONDS):
            while f"locktender workers undrain {on.name}" not in str(await run.why()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        asked = await on.client.workers.undrain(on.name)

        assert (asked.ids, asked.leader) == ((on.name,), True)
        assert await run.result(SECONDS) == 7
        await on.until(draining=False)
        # The orders stay in the store: neither is carried out again, and a later one is.
        await on.client.workers.drain(on.name)
        await on.until(draining=True)
        await on.client.workers.undrain(on.name)
        await on.until(draining=False)
        assert await (await on.client.submit(echoed, 8)).result(SECONDS) == 8
    orders = [each.getMessage() for each in caplog.records if "is ordered" in each.getMessage()]
    assert orders == [f"worker {on.name} is ordered to {kind}" for kind in ("drain", "undrain") * 2]
    history = await asyncio.to_thread(load_history, store_url)
    said = [event for event in history.events if event.after == "ordered"]
    assert [event.data["kind"] for event in said] == ["drain", "undrain"] * 2
    assert {event.data["subject"] for event in said} == {on.name}
    assert all(event.data["who"] for event in said)
    assert check(history) == []


async def test_a_drain_that_no_leader_has_read_is_taken_back(store_url: str, tmp_path: Path):
    async with scene(store_url, tmp_path, lead=False) as on:
        with pytest.raises(InvalidInput, match="does not drain"):
            await on.client.workers.undrain(on.name)
        assert not (await on.client.workers.drain(on.name)).leader

        assert not (await on.client.workers.undrain(on.name)).leader

        with pytest.raises(InvalidInput, match="does not drain"):
            await on.client.workers.undrain(on.name)
        run = await on.client.submit(echoed, 7)
        leader = Engine(on.worker.store, on.worker.settings, work=False)
        await leader.start()
        assert await run.result(SECONDS) == 7
        await leader.stop(0)


async def test_who_does_not_drain_has_left_or_ends_is_refused(store_url: str, tmp_path: Path):
    async with scene(store_url, tmp_path) as on:
        store = on.worker.store
        with pytest.raises(NotFound, match="there is no worker 'nobody'"):
            await on.client.workers.undrain("nobody")
        with pytest.raises(InvalidInput, match="does not drain"):
            await on.client.workers.undrain(on.name)
        row = WorkerRow("ends-1", "host", 1, "1", {"async": 1}, -1, -1, draining=True, ending=True)
        await store.heartbeat(Heartbeat(row, 600 * SECOND))
        with pytest.raises(InvalidInput, match="was told to end"):
            await on.client.workers.undrain("ends-1")
        await store.leave("ends-1")
        with pytest.raises(NotFound, match="there is no worker 'ends-1'"):
            await on.client.workers.undrain("ends-1")


async def test_a_worker_that_is_told_to_end_is_not_kept(store_url: str, tmp_path: Path):
    """The order reaches it after the signal did: it goes on draining."""
    async with scene(store_url, tmp_path) as on:
        await on.worker.membership.retire()  # pyright: ignore[reportOptionalMemberAccess]
        await on.until(draining=True)
        assert (await on.client.workers.get(on.name)).ending

        await on.worker.store.ask([Request("undrain", on.name, who="me")])
        await on.worker.store.ask([Request("reprioritise", "nothing")])
        async with asyncio.timeout(SECONDS):
            while not [each for each in await on.worker.store.orders(on.name) if each.task < 0]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await on.worker.membership.offers.receive(await on.worker.store.orders(on.name))  # pyright: ignore[reportOptionalMemberAccess]

        assert on.worker.worker.draining


def test_a_process_takes_back_the_drain_of_its_own_worker(engine: Client):
    [worker] = engine.workers.list()
    engine.workers.drain(worker.id)
    run = engine.submit(echoed, 1)
    assert engine.workers.list()[0].draining

    engine.workers.undrain(worker.id[:-2])

    assert run.result(SECONDS) == 1
    assert not engine.workers.list()[0].draining
