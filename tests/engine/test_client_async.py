"""The async client: the same verbs on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import broken_promises
from tests.steps import client_flows as flows
from tests.support.server_harness import until
from tests.support.transports import reached_async

from locktender import (
    AdmissionRejected,
    LocktenderError,
    RunFailed,
    RunState,
    WaitTimeout,
    connect,
    connect_async,
    current,
    embedded_async,
    flow,
    step,
)
from locktender.base.clock import SECOND
from locktender.base.errors import StoreUnreachable
from locktender.base.model import RunRow
from locktender.client import run_waiter
from locktender.client.client_async import AsyncClient
from locktender.client.guard import ClientClosed
from locktender.kernel.scheduler import Cycle
from locktender.leader.leader import Leader
from locktender.store.protocol import RunsEnded

pytest_plugins = ["locktender.testing.postgres"]

ALL_TRANSPORTS = True


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


async def test_every_verb_has_its_async_form(url: Path, transport: str):
    async with reached_async(transport, url, grace="1s") as engine:
        await engine.pools.set("db", limit=4)
        await engine.limits.set_tag("tenant", limit=1, per_value=True)
        run = await engine.submit(flows.summed, [1, 2], tags={"tenant": "acme"}, priority=5)
        assert str(await run.why())
        assert await run.result(timeout="60s") == 6
        assert await run.status() is RunState.SUCCEEDED
        assert len(await run.tasks()) == 3
        assert (await run.events())[0].after == "queued"
        assert (await (await engine.runs.get(run.id)).info()).priority == 5
        assert [info.id for info in await engine.runs.list(tags={"tenant": "acme"})] == [run.id]
        assert (await engine.pools.get("db")).limit == 4
        assert len(await engine.workers.list()) == 1
        assert await engine.queue.list() == []
        assert (await engine.limits.history(1))[0].name == "tenant=*"
        with pytest.raises(RunFailed, match="boom"):
            await (await engine.submit(flows.failing, "boom")).result(60)
    assert engine.closed
    with pytest.raises(ClientClosed):
        await engine.runs.list()
    assert await asyncio.to_thread(broken_promises, url) == []


async def test_hundreds_wait_at_once(url: Path, transport: str):
    async with (
        reached_async(transport, url, max_concurrent_runs=-1) as engine,
        connect_async(url) as other,
    ):
        runs = await engine.submit_many(flows.doubled, range(300))
        here = asyncio.gather(*(run.result(60) for run in runs))
        known = [await other.runs.get(run.id) for run in runs]
        there = asyncio.gather(*(run.result(60) for run in known))
        assert await here == [2 * n for n in range(300)]
        assert await there == [2 * n for n in range(300)]


@step
def fails_when_open() -> int:
    assert flows.GATE.wait(60)
    raise ValueError("boom")


@flow
def waits_and_fails() -> int:
    return fails_when_open()


@step
def second_try() -> int:
    attempt = current(required=True).attempt
    if attempt == 1:
        raise ValueError("boom")
    assert flows.GATE.wait(60)
    return attempt


@flow
def fails_at_first() -> int:
    return second_try()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the store is."""
    name = "url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


async def test_who_waits_reads_a_row_when_its_run_has_ended(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    async with (
        embedded_async(place, max_concurrent_runs=-1) as engine,
        connect_async(place) as other,
    ):
        read: list[str] = []
        row_of = other._core.store.run

        async def counted(run_id: str) -> RunRow | None:
            read.append(run_id)
            return await row_of(run_id)

        monkeypatch.setattr(other._core.store, "run", counted)
        held = await engine.submit(flows.waits, 7)
        waiting = asyncio.ensure_future((await other.runs.get(held.id)).result(60))
        await until(lambda: read, "the first read")
        read.clear()
        for number in range(50):  # commits and ends that do not concern it
            assert await (await engine.submit(flows.doubled, number)).result(60) == 2 * number
        assert read in ([], [held.id])  # what it asked when it began to wait
        read.clear()
        flows.GATE.set()
        assert await waiting == 7
        assert read == [held.id]


async def test_the_result_of_a_run_that_ended_takes_one_read(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_waiter, "NEW_US", 0)
    async with embedded_async(place) as engine:
        run = await engine.submit(flows.doubled, 4)
        assert await run.result(60) == 8
        read = _counted_reads(engine, monkeypatch)
        for asked in (run, await engine.runs.get(run.id)):
            read.clear()
            assert await asked.result(60) == 8
            assert read.count("run") == 1


async def test_a_result_that_was_decided_here_is_not_read(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_waiter, "NEW_US", 60 * SECOND)
    async with embedded_async(place) as engine:
        await until(lambda: _leads(engine), "this process to lead")
        read = _counted_reads(engine, monkeypatch)
        runs = [await engine.submit(flows.waits, 7), await engine.submit(waits_and_fails)]
        waiting = [asyncio.ensure_future(run.result(60)) for run in runs]
        await until(lambda: len(engine._core.waiting._waiters) == 2, "both waits")
        flows.GATE.set()
        value, error = await asyncio.gather(*waiting, return_exceptions=True)
        assert value == 7
        assert isinstance(error, RunFailed)
        assert (error.run_id, error.step, error.error_message) == (
            runs[1].id,
            "fails_when_open",
            "boom",
        )
        assert "run" not in read


async def test_the_end_of_an_earlier_try_ends_no_wait(place: str, monkeypatch: pytest.MonkeyPatch):
    """The leader tells of it late: another process has seen it, and has retried the run."""
    act = Leader._act
    late: list[Callable[[], None]] = []

    def acts_late(self: Leader, cycle: Cycle) -> None:
        if cycle.commit.runs_ended and not late:
            late.append(lambda: act(self, cycle))
        else:
            act(self, cycle)

    monkeypatch.setattr(Leader, "_act", acts_late)
    async with embedded_async(place) as engine, connect_async(place) as other:
        run = await engine.submit(fails_at_first)
        seen = await other.runs.get(run.id)
        assert await seen.wait(60) == RunState.FAILED
        await seen.retry()
        waiting = asyncio.ensure_future(run.result(60))
        await until(lambda: engine._core.waiting._waiters, "the wait for the second try")
        late[0]()
        flows.GATE.set()
        assert await waiting == 2


def _leads(engine: AsyncClient) -> bool:
    running = engine._core.engine
    return running is not None and running.leads


def _counted_reads(engine: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read of runs from now on, by the name of the verb."""
    store, read = engine._core.store, list[str]()

    def count(verb: str) -> None:
        asked = getattr(store, verb)

        def counted(*args: Any) -> Any:
            read.append(verb)
            return asked(*args)

        monkeypatch.setattr(store, verb, counted)

    for verb in ("run", "run_states"):
        count(verb)
    return read


async def test_an_end_that_a_failed_term_did_not_name_is_found(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    """The commit is written, the term ends before anybody is told, and the same process leads again."""
    act = Leader._act
    failed: list[list[int]] = []

    def fails_once(self: Leader, cycle: Cycle) -> None:
        if cycle.commit.runs_ended and not failed:
            failed.append([end.run for end in cycle.commit.runs_ended])
            raise StoreUnreachable("the connection was lost")
        act(self, cycle)

    monkeypatch.setattr(Leader, "_act", fails_once)
    async with embedded_async(url) as engine:
        run = await engine.submit(flows.waits, 7)
        waiting = asyncio.ensure_future(run.result(60))
        await until(lambda: engine._core.waiting._waiters, "the waiter")
        flows.GATE.set()
        assert await waiting == 7
    assert failed


async def test_who_waits_looks_although_others_ends_are_named(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    """A notification may be lost while those of other runs arrive without pause."""
    async with embedded_async(url) as engine, connect_async(url) as other:

        async def named(timeout_us: int) -> RunsEnded:
            await asyncio.sleep(0.01)
            return RunsEnded([1 << 40], look=False)

        monkeypatch.setattr(other._core.store, "wait_for_ends", named)
        run = await engine.submit(flows.waits, 7)
        waiting = asyncio.ensure_future((await other.runs.get(run.id)).result(60))
        await until(lambda: other._core.waiting._waiters, "the waiter")
        flows.GATE.set()
        assert await waiting == 7


async def test_who_has_waited_for_long_is_not_told_and_looks(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_waiter, "ATTENTIVE_SECONDS", 0.0)
    async with embedded_async(url) as engine, connect_async(url) as other:
        forgot = asyncio.Event()

        async def forget_ends() -> bool:
            forgot.set()
            return True

        async def wait_for_ends(timeout_us: int) -> RunsEnded:
            await asyncio.sleep(timeout_us / SECOND)
            return RunsEnded([], look=False)

        monkeypatch.setattr(other._core.store, "forget_ends", forget_ends)
        monkeypatch.setattr(other._core.store, "wait_for_ends", wait_for_ends)
        run = await engine.submit(flows.waits, 7)
        waiting = asyncio.ensure_future((await other.runs.get(run.id)).result(60))
        await until(forgot.is_set, "that it is told no more")
        flows.GATE.set()
        assert await waiting == 7


async def test_a_client_that_waits_no_more_is_not_told(url: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_waiter, "ATTENTIVE_SECONDS", 0.0)
    async with embedded_async(url) as engine, connect_async(url) as other:
        forgot: list[str] = []

        async def forget_ends() -> bool:
            forgot.append("ends")
            return True

        monkeypatch.setattr(other._core.store, "forget_ends", forget_ends)
        run = await engine.submit(flows.waits, 7)
        waiting = asyncio.ensure_future((await other.runs.get(run.id)).result(60))
        await until(lambda: other._core.waiting._waiters, "the waiter")
        flows.GATE.set()
        assert await waiting == 7
        watcher = other._core.waiting._watcher
        assert watcher is not None
        await asyncio.wait_for(watcher, 60)
        assert forgot


async def test_some_are_taken_and_the_rest_say_why_not(url: Path, transport: str):
    async with reached_async(transport, url, max_active=1) as engine:
        taken, refused = await engine.submit_many(flows.waits, [1, 2], partial=True)
        assert isinstance(refused, AdmissionRejected)
        assert not isinstance(taken, LocktenderError)
        flows.GATE.set()
        assert await taken.result(60) == 1


async def test_a_client_may_be_awaited_and_closed_by_hand(url: Path):
    engine = await embedded_async(url)
    try:
        run = await engine.submit(flows.waits, 1)
        with pytest.raises(WaitTimeout):
            await run.result(0)
        flows.GATE.set()
        assert await run.result(60) == 1
    finally:
        await engine.close(grace=0)
        await engine.close()


async def test_the_loop_may_end_while_the_client_closes(url: Path):
    """Ctrl-C under asyncio.run cancels the main task: closing does not wait for the whole grace then."""
    engine = await embedded_async(url, grace="10m")
    run = await engine.submit(flows.waits, 1)
    async with asyncio.timeout(60):
        while await run.status() != RunState.RUNNING:  # noqa: ASYNC110 — the engine says when
            await asyncio.sleep(0.005)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    done, _ = await asyncio.wait([closing], timeout=110)
    assert done == {closing}  # long before the grace is over
    assert closing.cancelled()


@step
async def asks_sync(url: str) -> str:
    try:
        with connect(url) as engine:
            engine.runs.list()
    except LocktenderError as error:
        return str(error)
    return "worked"


@flow
def asking(url: str) -> str:
    return asks_sync(url)


async def test_a_body_may_use_a_client_of_its_own(url: Path):
    async with embedded_async(url) as engine:
        assert await (await engine.submit(asking, str(url))).result(60) == "worked"
