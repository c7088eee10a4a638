"""Sync bodies in threads.

A thread cannot be stopped. A body that was asked to stop goes on: its attempt keeps its permit
until the thread returns, `stopping()` shows since when, and the body may read
`current().stop_reason`. A worker that is about to lose its lease while a thread still runs ends
its own process.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import ClassVar

from locktender.base.clock import Clock
from locktender.base.limits import MAX_VALUE_BYTES
from locktender.worker.executors import failures, workdirs
from locktender.worker.executors.attempts import BaseExecutor, RunningAttempt
from locktender.worker.executors.bodies import perform
from locktender.worker.executors.protocol import (
    Attempt,
    Done,
    Outcome,
    StopReason,
)

log: logging.Logger = logging.getLogger(__name__)


class _ThreadWork:
    """The attempt that one thread runs."""

    __slots__ = ("begun", "taken")

    def __init__(self) -> None:
        self.taken: list[RunningAttempt] = []
        """At most one, from its arrival until its end was reported."""
        self.begun = False


class ThreadExecutor(BaseExecutor):
    """At most `permits` daemon threads, started when needed and then kept."""

    stop_wait_us: ClassVar[int] = 200_000

    def __init__(
        self, permits: int, *, clock: Clock, max_result: int | None = MAX_VALUE_BYTES
    ) -> None:
        super().__init__(permits, clock)
        self._max_result = max_result
        self._inbox: SimpleQueue[RunningAttempt | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, attempt: Attempt, done: Done) -> None:
        running = self._attempts.open(attempt, done)
        if running is None:
            return
        # As many threads as attempts in flight: then none waits behind another.
        if len(self._threads) < len(self._attempts):
            try:
                self._add_thread()
            except RuntimeError as error:  # the machine has no thread left to give
                failure = Outcome("failed", failure=failures.internal(error))
                self._loop.call_soon(self._attempts.end, running, failure)
                return
        running.runner = contextvars.copy_context()
        self._attempts.arm(running)
        self._inbox.put(running)

    def stop(self, token: int, reason: StopReason) -> None:
        self._attempts.request_stop(token, reason)

    async def shut_down(self) -> None:
        for _ in self._threads:
            self._inbox.put(None)
        if not self._attempts:
            for thread in self._threads:
                thread.join(1.0)

    def outlives(self) -> bool:
        """Each thread ends with its body."""
        return any(thread.is_alive() for thread in self._threads)

    def _add_thread(self) -> None:
        number = len(self._threads) + 1
        work = _ThreadWork()
        thread = threading.Thread(
            target=self._work, args=(work,), name=f"locktender-{number}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _work(self, work: _ThreadWork) -> None:
        try:
            while self._serve(work):
                pass
        except BaseException:  # noqa: BLE001 — raised from outside, between two bodies: another thread replaces it
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._replace, threading.current_thread(), work)

    def _serve(self, work: _ThreadWork) -> bool:
        """One body after the other; True if an exception was raised from outside: call it again.

        Libraries end a thread's work with PyThreadState_SetAsyncExc. That exception may come late, and be
        raised between any two lines here, or when the next attempt arrives. So `work` has the attempt and
        whether it has begun, and the next call finds there what is left to do.
        """
        try:
            if work.begun:
                self._give_up(work)
            arrivals = iter(self._inbox.get, None)
            while True:
                if not work.taken:
                    # Taken and kept in one call, all of it in C: no exception is raised between.
                    work.taken.extend(islice(arrivals, 1))
                if not work.taken:
                    return False
                work.begun = True
                self._report(work.taken[0], self._run_body(work.taken[0]))
                # An idle thread must not keep the last attempt's values alive.
                work.taken.clear()
                work.begun = False
        except BaseException:  # noqa: BLE001 — whatever it is, this thread goes on
            return not self._loop.is_closed()

    def _give_up(self, work: _ThreadWork) -> None:
        """Fail the attempt, maybe after its end was reported: only the first end counts."""
        error = RuntimeError("its thread was ended from outside, beside the body")
        for running in work.taken:
            self._attempts.end_from_thread(
                running, Outcome("failed", failure=failures.internal(error)), wake=True
            )
        work.taken.clear()
        work.begun = False

    def _replace(self, thread: threading.Thread, work: _ThreadWork) -> None:
        log.warning("%s was ended from outside: another thread replaces it", thread.name)
        self._threads.remove(thread)
        if work.begun:
            self._give_up(work)
        try:
            if len(self._threads) < len(self._attempts):
                self._add_thread()
        except RuntimeError as error:
            for running in work.taken:
                self._attempts.end(running, Outcome("failed", failure=failures.internal(error)))
            return
        for running in work.taken:
            self._inbox.put(running)

    def _report(self, running: RunningAttempt, outcome: Outcome) -> None:
        self._attempts.end_from_thread(running, outcome)

    def _run_body(self, running: RunningAttempt) -> Outcome:
        attempt = running.attempt
        try:
            if attempt.stop_reason is not None:
                return Outcome("cancelled")
            return running.runner.run(perform, attempt, self._max_result)
        except BaseException as error:  # noqa: BLE001 — whatever it is, this thread goes on
            return Outcome("failed", failure=failures.internal(error))
        finally:
            if attempt.has_workdir and attempt.work_root is not None:
                workdirs.remove(attempt.work_root, attempt.task, attempt.token)
