"""Whatever a body does to threads, its own or those of its loop: each attempt ends, and soon."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from locktender.base.clock import SystemClock
from locktender.worker.executors import sources
from locktender.worker.executors.attempts import RunningAttempt
from locktender.worker.executors.protocol import Outcome
from locktender.worker.executors.thread import ThreadExecutor, _ThreadWork

_harness: Any = sources.load(
    sources.CodeSource(
        "locktender_executor_harness",
        str(Path(__file__).parents[1] / "support" / "executor_harness.py"),
    )
)
Harness, until = _harness.Harness, _harness.until

cleared_up_after = pytest.mark.parametrize("kind", ["async", "process"])


@cleared_up_after
async def test_shutting_down_the_default_executor_loses_no_end(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        await asyncio.get_running_loop().shutdown_default_executor()

        outcome, _ = await harness.stopped("hang", "cancel")

        assert outcome == Outcome("cancelled", reason="cancel")


@cleared_up_after
async def test_no_end_waits_behind_what_bodies_give_to_threads(kind: str, tmp_path: Path):
    loop, go = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = asyncio.create_task(asyncio.to_thread(go.wait, _harness.PATIENCE))
    try:
        async with Harness(kind, tmp_path) as harness:
            outcome, _ = await harness.stopped("hang", "cancel")

            assert outcome == Outcome("cancelled", reason="cancel")
            assert not busy.done()
    finally:
        go.set()
        await busy


@cleared_up_after
async def test_where_no_thread_can_be_had_it_is_done_on_the_loop(kind: str, tmp_path: Path):
    async with Harness(kind, tmp_path) as harness:
        await harness.stopped("hang", "cancel")
        harness.executor._attempts.close()

        outcome, _ = await harness.stopped("hang", "cancel")

        assert outcome == Outcome("cancelled", reason="cancel")


def strike(thread: int) -> None:
    """As libraries end a thread's work."""
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(SystemExit)
    )


async def test_an_idle_thread_that_is_struck_runs_the_next_body(tmp_path: Path):
    async with Harness("thread", tmp_path, permits=1) as harness:
        for value in range(10):
            assert await harness.run("double", value) == Outcome("completed", b"%d" % (2 * value))
            [thread] = harness.executor._threads
            strike(thread.ident)


class Struck(ThreadExecutor):
    """Its thread is struck once, at one line."""

    where: str

    def _strike(self, here: str) -> None:
        if here == self.where:
            self.where = ""
            strike(threading.get_ident())

    def _run_body(self, running: RunningAttempt) -> Outcome:
        outcome = super()._run_body(running)
        self._strike("after the body")
        return outcome

    def _report(self, running: RunningAttempt, outcome: Outcome) -> None:
        if self.where == "before the loop is woken":
            self._attempts._woken = True
            self._strike(self.where)
        super()._report(running, outcome)
        self._strike("after its end was told")

    def _give_up(self, work: _ThreadWork) -> None:
        self._strike("while it gives up")
        super()._give_up(work)

    def _serve(self, work: _ThreadWork) -> bool:
        again = super()._serve(work)
        if self.where == "where it looks away":
            work.begun = True
            self._strike(self.where)
        return again


@pytest.mark.parametrize(
    ("where", "state"),
    [
        ("after the body", "failed"),
        ("before the loop is woken", "failed"),
        ("after its end was told", "completed"),
    ],
)
async def test_a_thread_that_is_interrupted_reports_one_end(where: str, state: str, tmp_path: Path):
    async with Harness("thread", tmp_path, permits=1) as harness:
        harness.executor = Struck(1, clock=SystemClock())
        harness.executor.where = where

        assert (await harness.run("double", 1)).state == state
        await until(lambda: harness.executor.where == "")
        assert await harness.run("double", 2) == Outcome("completed", b"4")
        assert len(harness.executor._threads) == 1


async def test_a_thread_that_dies_is_replaced_and_its_attempt_ends(tmp_path: Path):
    class Dying(ThreadExecutor):
        deaths = 0

        def _serve(self, work: _ThreadWork) -> bool:
            if self.deaths < 2:
                self.deaths += 1
                running = self._inbox.get()
                assert running is not None
                work.taken.append(running)
                work.begun = self.deaths == 2
                raise SystemExit
            return super()._serve(work)

    async with Harness("thread", tmp_path, permits=1) as harness:
        harness.executor = Dying(1, clock=SystemClock())

        # Once before its body has begun: another thread runs it, dies in it and is replaced again.
        assert (await harness.run("double", 1)).failure.type == "internal"
        assert await harness.run("double", 2) == Outcome("completed", b"4")
        [thread] = harness.executor._threads
        assert thread.is_alive()
