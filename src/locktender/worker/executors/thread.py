"""Sync bodies in threads.

A thread cannot be stopped. A body that was told to stop goes on: its attempt
stays in flight with its permit until the thread returns, `stopping()` shows
since when, and the body may look at `current().stop_reason`. A worker that is
about to lose its lease while a thread still runs has one means left: to end
its own process.
"""

from __future__ import annotations

import contextvars
import threading
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import ClassVar

from locktender.base.clock import Clock
from locktender.worker.executors import failures, workdirs
from locktender.worker.executors.attempts import BaseExecutor, RunningAttempt
from locktender.worker.executors.bodies import perform
from locktender.worker.executors.protocol import (
    MAX_RESULT_BYTES,
    Attempt,
    Done,
    Outcome,
    StopReason,
)


class _Seat:
    """What a thread of ours has in hand."""

    __slots__ = ("begun", "taken")

    def __init__(self) -> None:
        self.taken: list[RunningAttempt] = []
        """The one flight, from its arrival until its end was told."""
        self.begun = False


class ThreadExecutor(BaseExecutor):
    """At most `permits` daemon threads, started when needed and then kept."""

    stop_wait_us: ClassVar[int] = 200_000

    def __init__(
        self, permits: int, *, clock: Clock, max_result: int | None = MAX_RESULT_BYTES
    ) -> None:
        super().__init__(permits, clock)
        self._max_result = max_result
        self._inbox: SimpleQueue[RunningAttempt | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, job: Attempt, done: Done) -> None:
        flight = self._attempts.open(job, done)
        if flight is None:
            return
        # As many threads as attempts in flight: then none waits behind another.
        if len(self._threads) < len(self._attempts):
            try:
                self._add_thread()
            except RuntimeError as error:  # the machine has no thread left to give
                failure = Outcome("failed", failure=failures.internal(error))
                self._loop.call_soon(self._attempts.end, flight, failure)
                return
        flight.vehicle = contextvars.copy_context()
        self._attempts.arm(flight)
        self._inbox.put(flight)

    def stop(self, token: int, reason: StopReason) -> None:
        self._attempts.ask(token, reason)

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
        seat = _Seat()
        thread = threading.Thread(
            target=self._work, args=(seat,), name=f"locktender-{number}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _work(self, seat: _Seat) -> None:
        try:
            while self._serve(seat):
                pass
        except BaseException:  # noqa: BLE001 — struck where it looked away: another takes its place
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._replace, threading.current_thread(), seat)

    def _serve(self, seat: _Seat) -> bool:
        """One body after the other; True if it was struck and is to be called again.

        An exception that is set from outside (PyThreadState_SetAsyncExc, by which libraries end a thread's
        work) may come late, and strike between any two lines here, or when the next flight arrives. So
        what was taken stands in the seat, and what is to be done about it is found there.
        """
        try:
            if seat.begun:
                self._give_up(seat)
            arrivals = iter(self._inbox.get, None)
            while True:
                if not seat.taken:
                    # Taken and kept in one call, all of it in C: nothing strikes between.
                    seat.taken.extend(islice(arrivals, 1))
                if not seat.taken:
                    return False
                seat.begun = True
                self._report(seat.taken[0], self._carry(seat.taken[0]))
                # An idle thread must not keep the last job's values alive.
                seat.taken.clear()
                seat.begun = False
        except BaseException:  # noqa: BLE001 — whatever it is, this thread goes on
            return not self._loop.is_closed()

    def _give_up(self, seat: _Seat) -> None:
        """It was struck while it had a flight, maybe after its end was told: only the first end counts."""
        error = RuntimeError("its thread was ended from outside, beside the body")
        for flight in seat.taken:
            self._attempts.end_from_thread(
                flight, Outcome("failed", failure=failures.internal(error)), wake=True
            )
        seat.taken.clear()
        seat.begun = False

    def _replace(self, thread: threading.Thread, seat: _Seat) -> None:
        self._threads.remove(thread)
        if seat.begun:
            self._give_up(seat)
        try:
            if len(self._threads) < len(self._attempts):
                self._add_thread()
        except RuntimeError as error:
            for flight in seat.taken:
                self._attempts.end(flight, Outcome("failed", failure=failures.internal(error)))
            return
        for flight in seat.taken:
            self._inbox.put(flight)

    def _report(self, flight: RunningAttempt, outcome: Outcome) -> None:
        self._attempts.end_from_thread(flight, outcome)

    def _carry(self, flight: RunningAttempt) -> Outcome:
        job = flight.job
        try:
            if job.stop_reason is not None:
                return Outcome("cancelled")
            return flight.vehicle.run(perform, job, self._max_result)
        except BaseException as error:  # noqa: BLE001 — whatever it is, this thread goes on
            return Outcome("failed", failure=failures.internal(error))
        finally:
            if job.has_workdir and job.work_root is not None:
                workdirs.remove(job.work_root, job.task, job.token)
