"""D: a step that holds the worker's loop is named, with its line; a loop with too much to do blames nobody."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headgate.base.clock import SystemClock
from headgate.stages.executors.on_loop import AsyncExecutor
from headgate.stages.executors.protocol import Job, Outcome
from headgate.stages.loop_watch import LoopWatch

THRESHOLD_US = 60_000


class Stub:
    retry_on = None

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn

    def decode_call(self, raw: bytes) -> tuple[list[Any], dict[str, Any]]:
        return [], {}

    def encode_result(self, value: Any) -> bytes:
        return b"null"


class Watched:
    def __init__(self) -> None:
        self.blocks: list[tuple[str, int]] = []
        self.executor = AsyncExecutor(-1, clock=SystemClock())
        self.watch = LoopWatch(
            asyncio.get_running_loop(),
            self.executor.holder,
            SystemClock(),
            THRESHOLD_US,
            lambda step, lag_us: self.blocks.append((step, lag_us)),
        )
        self._token = 0

    async def run(self, name: str, fn: Callable[..., Any]) -> Outcome:
        self._token += 1
        ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        job = Job(self._token, self._token, "run", Stub(name, fn), b"")
        self.executor.start(job, lambda _, outcome: ended.set_result(outcome))
        return await ended

    async def told(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.blocks) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    watched.watch.start()
    yield watched
    watched.watch.stop()
    watched.watch._thread.join(5)
    assert not watched.watch._thread.is_alive()
    await watched.executor.close(0)


async def blocking() -> None:
    time.sleep(0.4)  # noqa: ASYNC251 — the very fault


async def polite() -> None:
    await asyncio.sleep(0.2)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "holds the worker's loop" in each.msg]


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
    assert 250_000 < lag_us < 5_000_000
    [text] = warnings(caplog)
    line = blocking.__code__.co_firstlineno + 1
    assert "step app:blocking holds the worker's loop for more than 60 ms" in text
    assert f"{__file__}:{line} (blocking)" in text
    assert watched.watch.worst_us() >= lag_us


async def in_a_gather() -> None:
    await asyncio.gather(asyncio.sleep(0), _later())


async def in_a_wait_for() -> None:
    await asyncio.wait_for(_later(), 10)


async def _later() -> None:
    await asyncio.sleep(0)
    await blocking()


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.4)
    await asyncio.sleep(0.6)


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
    if body is not in_a_callback:
        assert "(blocking)" in text


async def test_what_is_no_step_is_told_by_its_line(
    watched: Watched, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        await asyncio.create_task(blocking())
        await asyncio.sleep(0.1)

    [text] = warnings(caplog)
    line = blocking.__code__.co_firstlineno + 1
    assert "something that is no step holds the worker's loop for more than 60 ms" in text
    assert f"{__file__}:{line} (blocking)" in text
    assert watched.blocks == []


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
        time.sleep(0.01)  # noqa: ASYNC251 — short, but many

    await asyncio.gather(*(watched.run(f"app:brief{number}", brief) for number in range(40)))
    await asyncio.sleep(0.1)

    assert watched.blocks == []
    assert warnings(caplog) == []
    assert watched.watch.worst_us() > THRESHOLD_US


async def test_the_lag_is_seen_while_it_lasts(watched: Watched):
    seen: list[int] = []

    async def look_meanwhile() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 — the very fault
        seen.append(watched.watch.worst_us())  # another thread would ask at this moment

    await watched.run("app:look", look_meanwhile)
    assert seen[0] > 150_000


async def test_a_step_that_takes_the_loop_over_from_another_is_named(watched: Watched):
    async def before() -> None:
        time.sleep(0.045)  # noqa: ASYNC251 — over by the second look

    async with asyncio.timeout(20):
        while not watched.blocks:
            await asyncio.gather(
                watched.run("app:before", before), watched.run("app:blocking", blocking)
            )
            await asyncio.sleep(0.05)

    assert [name for name, _ in watched.blocks] == ["app:blocking"]


async def test_a_stop_between_two_questions_ends_the_thread_while_the_loop_is_held(
    watched: Watched,
):
    class StopsAtTheLastMoment(threading.Event):
        def clear(self) -> None:
            watched.watch.stop()
            super().clear()

    watched.watch._answered = StopsAtTheLastMoment()

    watched.watch._thread.join(5)  # on the loop: nobody answers

    assert not watched.watch._thread.is_alive()
