"""A step that blocks the worker's loop is named, with its line; a busy loop blames no step."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from locktender.base.clock import SystemClock
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.protocol import Attempt, Outcome
from locktender.worker.loop_lag import LoopLag, LoopSample

THRESHOLD_US = 200_000
"""Long against what a busy machine does to a thread: nobody is blamed for that."""
PATIENCE = 60.0


class Stub:
    retry_on = None

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn

    def decode_call(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return [], {}

    def encode_result(self, value: Any) -> bytes:
        return b"null"


class Telling(LoopLag):
    """Says what its thread does, so that bodies hold the loop for as long as it takes and no longer."""

    found: threading.Event
    """Whoever holds the loop was blamed."""
    looked: threading.Event
    went_on: threading.Event
    slowly: bool = False
    """After each look it waits until somebody else has the loop."""

    def _log(self, sight: LoopSample) -> None:
        super()._log(sight)
        self.found.set()

    def _sample(self) -> LoopSample | None:
        sight = super()._sample()
        self.went_on.clear()
        self.looked.set()
        if self.slowly:
            self.went_on.wait(PATIENCE)
        return sight


class Watched:
    def __init__(self) -> None:
        self.blocks: list[tuple[str, int]] = []
        self.executor = AsyncExecutor(-1, clock=SystemClock())
        self.bodies = self.executor.body_loop
        self.watch = Telling(
            self.bodies.loop,
            self.bodies.thread,
            self.executor.holder,
            SystemClock(),
            THRESHOLD_US,
            lambda step, lag_us: self.blocks.append((step, lag_us)),
        )
        self.watch.found, self.watch.looked = threading.Event(), threading.Event()
        self.watch.went_on = threading.Event()
        self._token = 0

    async def run(self, name: str, fn: Callable[..., Any]) -> Outcome:
        self._token += 1
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        job = Attempt(self._token, self._token, "run", Stub(name, fn), b"")
        self.executor.start(job, lambda _, outcome: ended.set_result(outcome))
        return await ended

    async def told(self, count: int) -> None:
        await until(lambda: len(self.blocks) >= count)

    def hold_until_found(self) -> None:
        """A blocking call, seen from outside."""
        self.watch.slowly = False
        self.watch.found.clear()
        self.watch.went_on.set()
        assert self.watch.found.wait(PATIENCE)

    def hold_until_looked_at(self) -> None:
        """Who does so is not found again: the next look comes when somebody else has the loop."""
        self.watch.looked.clear()
        self.watch.went_on.set()
        assert self.watch.looked.wait(PATIENCE)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 — what is waited for happens in another thread
            await asyncio.sleep(0.005)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    watched.watch.start()
    _now[:] = [watched]
    yield watched
    watched.watch.slowly = False
    watched.watch.went_on.set()
    watched.watch.stop()
    watched.watch._thread.join(PATIENCE)
    assert not watched.watch._thread.is_alive()
    await watched.executor.close(0)


_now: list[Watched] = []


async def blocking() -> None:
    _now[0].hold_until_found()


async def polite() -> None:
    await asyncio.sleep(2 * THRESHOLD_US / 1e6)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = ("holds the worker's loop", "blocks the worker's event loop")
    return [each.getMessage() for each in caplog.records if any(text in each.msg for text in said)]


async def test_a_blocking_step_is_named_with_its_line(
    watched: Watched, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        await asyncio.gather(
            watched.run("app:polite", polite), watched.run("app:blocking", blocking)
        )
        await watched.told(1)

    [(name, lag_us)] = watched.blocks
    assert name == "app:blocking"
    assert lag_us >= 0.9 * THRESHOLD_US
    [text] = warnings(caplog)
    line = Watched.hold_until_found.__code__.co_firstlineno + 5
    assert "step app:blocking holds the worker's loop for more than 200 ms" in text
    assert "no other async step goes on meanwhile" in text
    assert f"{__file__}:{line} (Watched.hold_until_found)" in text
    await until(lambda: watched.watch.worst_us() >= lag_us)


async def in_a_gather() -> None:
    await asyncio.gather(asyncio.sleep(0), _later())


async def in_a_wait_for() -> None:
    await asyncio.wait_for(_later(), 60)


async def _later() -> None:
    await asyncio.sleep(0)
    await blocking()


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_later(0.01, _now[0].hold_until_found)
    await until(_now[0].watch.found.is_set)


@pytest.mark.parametrize("body", [in_a_gather, in_a_wait_for, in_a_callback])
async def test_a_step_is_named_for_what_it_has_started(
    body: Callable[..., Any], watched: Watched, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        await asyncio.gather(watched.run("app:polite", polite), watched.run("app:starts", body))
        await watched.told(1)

    assert [name for name, _ in watched.blocks] == ["app:starts"]
    [text] = warnings(caplog)
    assert "step app:starts holds the worker's loop" in text
    assert "(Watched.hold_until_found)" in text


async def test_what_is_no_step_is_told_by_its_line(
    watched: Watched, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        watched.bodies.call(watched.hold_until_found)
        await until(watched.watch.found.is_set)
        await until(lambda: watched.watch.worst_us() >= 0.9 * THRESHOLD_US)

    [text] = warnings(caplog)
    line = Watched.hold_until_found.__code__.co_firstlineno + 5
    assert "code outside any step blocks the worker's event loop for more than 200 ms" in text
    assert f"{__file__}:{line} (Watched.hold_until_found)" in text
    assert watched.blocks == []


async def test_a_line_that_is_nobodys_blames_no_user(
    watched: Watched, caplog: pytest.LogCaptureFixture
):
    """As an import of ours: no frame of it is a user's."""
    with caplog.at_level(logging.INFO):
        watched.bodies.call(watched.watch.found.wait, PATIENCE)
        await until(watched.watch.found.is_set)
        await until(lambda: watched.watch.worst_us() >= 0.9 * THRESHOLD_US)

    [said] = [each for each in caplog.records if each.name == "locktender.worker.loop_lag"]
    assert said.levelno == logging.INFO
    assert "the worker holds its own loop for more than 200 ms, at " in said.getMessage()
    assert warnings(caplog) == []


async def test_it_is_said_once_a_minute_and_counted_every_time(
    watched: Watched, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            await watched.run("app:blocking", blocking)
            await watched.told(number + 1)

    assert len(warnings(caplog)) == 1


async def test_a_polite_step_is_not_named(watched: Watched, caplog: pytest.LogCaptureFixture):
    await asyncio.gather(*(watched.run("app:polite", polite) for _ in range(50)))

    assert watched.blocks == []
    assert warnings(caplog) == []


async def test_many_short_steps_together_blame_nobody(
    watched: Watched, caplog: pytest.LogCaptureFixture
):
    async def brief() -> None:
        watched.hold_until_looked_at()

    watched.watch.slowly = True
    await asyncio.gather(*(watched.run(f"app:brief{number}", brief) for number in range(6)))
    watched.watch.slowly = False
    watched.watch.went_on.set()

    await until(lambda: watched.watch.worst_us() > 2 * THRESHOLD_US)
    assert watched.blocks == []
    assert warnings(caplog) == []


async def test_the_lag_is_seen_while_it_lasts(watched: Watched):
    seen: list[int] = []

    async def look_meanwhile() -> None:
        watched.hold_until_found()
        seen.append(watched.watch.worst_us())  # another thread would ask at this moment

    await watched.run("app:look", look_meanwhile)
    assert seen[0] >= 0.9 * THRESHOLD_US


async def test_a_step_that_takes_the_loop_over_from_another_is_named(watched: Watched):
    async def before() -> None:
        watched.hold_until_looked_at()

    watched.watch.slowly = True
    await asyncio.gather(watched.run("app:before", before), watched.run("app:blocking", blocking))
    await watched.told(1)

    assert [name for name, _ in watched.blocks] == ["app:blocking"]


async def test_a_stop_ends_the_thread_while_the_loop_is_held():
    class StopsAtTheLastMoment(threading.Event):
        def clear(self) -> None:
            watch.stop()
            super().clear()

    watch = LoopLag(
        asyncio.get_running_loop(), threading.current_thread(), lambda: None, SystemClock(), 20_000
    )
    watch._answered = StopsAtTheLastMoment()

    watch.start()
    watch._thread.join(PATIENCE)  # on the loop: nobody answers

    assert not watch._thread.is_alive()
