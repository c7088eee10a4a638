"""Verbs whose answer is lost are repeated with the same ids, and carried out once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from locktender import RunFailed, StoreError, WaitTimeout, connect_async, embedded_async, flow, step
from locktender.base.errors import SchemaTooNew
from locktender.client import run_waiter
from locktender.client.core import Core
from locktender.client.guard import ClientClosed
from locktender.client.retries import retry_runs
from locktender.client.run import AsyncRun
from locktender.store import retry
from locktender.store.open import settings_for
from locktender.store.retry import repeated


@step(retries=0)
def fails() -> int:
    raise ValueError("as always")


@flow
def failing() -> int:
    return fails()


def losing(
    verb: Callable[..., Awaitable[Any]], then: Callable[[], Awaitable[object]]
) -> Callable[..., Awaitable[Any]]:
    """`verb`, whose first answer is lost; `then` happens before its caller knows."""
    lost = False

    async def call(*given: Any) -> Any:
        nonlocal lost
        answer = await verb(*given)
        if not lost:
            lost = True
            await then()
            raise StoreError("the connection was lost.")
        return answer

    return call


async def test_a_retry_whose_answer_was_lost_is_not_repeated(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    async with embedded_async(url) as engine:
        run = await engine.submit(failing)
        with pytest.raises(RunFailed):
            await run.result(timeout="60s")
        core = engine._core  # pyright: ignore[reportPrivateUsage]

        async def ended_again() -> None:
            await core.waiting.until_ended(run.id, 10_000_000)

        monkeypatch.setattr(core.store, "retry", losing(core.store.retry, ended_again))
        await retry_runs(core, [await core.row(run.id)])
        await core.waiting.until_ended(run.id, 10_000_000)
        assert (await core.row(run.id)).generation == 1


async def core_of(url: Path) -> Core:
    return await Core.open(settings_for(url, {}), engine=False)


async def test_who_hears_nothing_for_long_is_told(
    url: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(retry, "AWAY_SECONDS", 0.2)
    core = await core_of(url)
    tries = 0

    async def away() -> None:
        nonlocal tries
        tries += 1
        raise StoreError("nobody answers.")

    with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match="nobody answers"):
        await repeated(away, "a submission", core.clock, core.guard.check)
    await core.close()
    assert tries > 1
    assert caplog.messages == ["a submission failed, retrying: nobody answers."]


async def test_what_can_never_be_done_is_not_repeated(url: Path):
    core = await core_of(url)
    tries = 0

    async def newer() -> None:
        nonlocal tries
        tries += 1
        raise SchemaTooNew("of a newer locktender.")

    with pytest.raises(SchemaTooNew):
        await repeated(newer, "a submission", core.clock, core.guard.check)
    await core.close()
    assert tries == 1


async def test_a_client_that_is_closed_meanwhile_says_so(url: Path):
    core = await core_of(url)
    tried = asyncio.Event()

    async def away() -> None:
        tried.set()
        raise StoreError("nobody answers.")

    repeating_ = asyncio.create_task(repeated(away, "a submission", core.clock, core.guard.check))
    await tried.wait()
    await core.close()
    with pytest.raises(ClientClosed):
        await repeating_


@pytest.mark.parametrize("read_before", [True, False])
async def test_a_wait_is_over_in_time_while_the_store_is_away(
    url: Path, monkeypatch: pytest.MonkeyPatch, read_before: bool
):
    async with embedded_async(url) as engine:
        await engine.limits.pause()
        run = await engine.submit(failing)
        core = engine._core  # pyright: ignore[reportPrivateUsage]
        row, waits = await core.row(run.id), asyncio.Event()

        async def away(*_: object) -> Any:
            waits.set()
            raise StoreError("nobody answers.")

        async def once(_: str) -> Any:
            monkeypatch.setattr(core.store, "run", away)
            return row

        monkeypatch.setattr(core.store, "run", once if read_before else away)
        monkeypatch.setattr(core.store, "run_states", away)
        # After it: the error of the store, a minute later.
        with pytest.raises(WaitTimeout, match="queued"):
            await run.result(timeout="100ms")
        assert waits.is_set()
        monkeypatch.undo()


async def test_a_wait_is_over_in_time_while_the_store_does_not_answer(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_waiter, "LAST_READ_SECONDS", 0.1)
    async with embedded_async(url) as engine:
        await engine.limits.pause()
        run = await engine.submit(failing)
        core = engine._core  # pyright: ignore[reportPrivateUsage]
        row = await core.row(run.id)

        async def hangs(*_: object) -> Any:
            await asyncio.Event().wait()

        async def once(_: str) -> Any:
            monkeypatch.setattr(core.store, "run", hangs)
            return row

        monkeypatch.setattr(core.store, "run", once)
        monkeypatch.setattr(core.store, "run_states", hangs)
        async with asyncio.timeout(60):
            with pytest.raises(WaitTimeout, match="queued"):
                await run.result(timeout="100ms")
            with pytest.raises(WaitTimeout, match="queued"):
                await run.result(timeout="100ms")  # it was submitted here
            with pytest.raises(StoreError, match="does not answer"):
                await AsyncRun(core, run.id).result(timeout="100ms")
        monkeypatch.undo()


async def test_a_wait_for_several_runs_outlasts_a_lost_answer(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    async with embedded_async(url) as engine:
        run = await engine.submit(failing)
        core = engine._core  # pyright: ignore[reportPrivateUsage]
        seq = (await core.row(run.id)).seq
        monkeypatch.setattr(
            core.store, "run_states", losing(core.store.run_states, lambda: asyncio.sleep(0))
        )
        assert await core.waiting.until_any([seq], 60_000_000) == {seq: "failed"}


async def test_who_waits_with_a_closed_client_starts_nothing(url: Path):
    core = await core_of(url)
    await core.close()
    with pytest.raises(ClientClosed):
        await core.waiting.until_any([1], 60_000_000)
    assert core.waiting._watcher is None  # pyright: ignore[reportPrivateUsage]


async def test_a_run_that_ended_before_the_wait_needs_no_pause(
    url: Path, monkeypatch: pytest.MonkeyPatch
):
    """A busy program begins to wait when the leader has long told it of the end."""
    monkeypatch.setattr(run_waiter, "FIRST_READ_AFTER_SECONDS", 600.0)
    monkeypatch.setattr(run_waiter, "NEW_US", 600_000_000)
    async with embedded_async(url) as engine:
        run = await engine.submit(failing)
        other = await connect_async(str(url))
        await (await other.runs.get(run.id)).wait(timeout="60s")
        await other.close()
        # The leader of this process has told it: another client has read the row since.
        async with asyncio.timeout(60):
            assert await run.wait() == "failed"
