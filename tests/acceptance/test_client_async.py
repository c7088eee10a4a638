"""The async client: the same verbs on the caller's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance import client_flows as flows
from tests.conftest import broken_promises

from headgate import (
    AdmissionRejected,
    HeadgateError,
    RunFailed,
    RunState,
    WaitTimeout,
    connect,
    connect_async,
    embedded_async,
    flow,
    step,
)
from headgate.client.guard import ClientClosed


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


async def test_every_verb_has_its_async_form(url: Path):
    async with embedded_async(url, grace="1s") as hg:
        await hg.pools.set("db", limit=4)
        await hg.limits.set_tag("tenant", limit=1, per_value=True)
        run = await hg.submit(flows.summed, [1, 2], tags={"tenant": "acme"}, priority=5)
        assert str(await run.why())
        assert await run.result(timeout="10s") == 6
        assert await run.status() is RunState.SUCCEEDED
        assert len(await run.tasks()) == 3
        assert (await run.events())[0].after == "queued"
        assert (await (await hg.runs.get(run.id)).info()).priority == 5
        assert [info.id for info in await hg.runs.list(tags={"tenant": "acme"})] == [run.id]
        assert (await hg.pools.get("db")).limit == 4
        assert len(await hg.workers.list()) == 1
        assert await hg.queue.list() == []
        assert (await hg.limits.history(1))[0].name == "tenant=*"
        with pytest.raises(RunFailed, match="boom"):
            await (await hg.submit(flows.failing, "boom")).result(10)
    assert hg.closed
    with pytest.raises(ClientClosed):
        await hg.runs.list()
    assert await asyncio.to_thread(broken_promises, url) == []


async def test_hundreds_wait_at_once(url: Path):
    async with embedded_async(url, max_concurrent_runs=-1) as hg, connect_async(url) as other:
        runs = await hg.submit_many(flows.doubled, range(300))
        here = asyncio.gather(*(run.result(20) for run in runs))
        known = [await other.runs.get(run.id) for run in runs]
        there = asyncio.gather(*(run.result(20) for run in known))
        assert await here == [2 * n for n in range(300)]
        assert await there == [2 * n for n in range(300)]


async def test_some_are_taken_and_the_rest_say_why_not(url: Path):
    async with embedded_async(url, max_active=1) as hg:
        taken, refused = await hg.submit_many(flows.waits, [1, 2], partial=True)
        assert isinstance(refused, AdmissionRejected)
        assert not isinstance(taken, HeadgateError)
        flows.GATE.set()
        assert await taken.result(10) == 1


async def test_a_client_may_be_awaited_and_closed_by_hand(url: Path):
    hg = await embedded_async(url)
    try:
        run = await hg.submit(flows.waits, 1)
        with pytest.raises(WaitTimeout):
            await run.result(0)
        flows.GATE.set()
        assert await run.result(10) == 1
    finally:
        await hg.close(grace=0)
        await hg.close()


async def test_the_loop_may_end_while_the_client_closes(url: Path):
    """Ctrl-C under asyncio.run cancels the main task: closing does not wait for the whole grace then."""
    hg = await embedded_async(url, grace="60s")
    await hg.pools.set("db", 1)
    run = await hg.submit(flows.waits, 1)
    with pytest.raises(WaitTimeout, match="still running"):
        await run.wait("200ms")
    begun = time.monotonic()
    closing = asyncio.create_task(hg.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert time.monotonic() - begun < 2


@step
async def asks_sync(url: str) -> str:
    try:
        with connect(url) as hg:
            hg.runs.list()
    except HeadgateError as error:
        return str(error)
    return "worked"


@flow
def asking(url: str) -> str:
    return asks_sync(url)


async def test_a_body_may_use_a_client_of_its_own(url: Path):
    async with embedded_async(url) as hg:
        assert await (await hg.submit(asking, str(url))).result(10) == "worked"
