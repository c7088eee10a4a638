"""The attempts an executor runs: permits, timeouts, stop requests, and the one outcome of each."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from locktender.base.clock import Clock
from locktender.base.model import Failure
from locktender.observe import tracing
from locktender.worker.executors import bodies, capture, failures
from locktender.worker.executors.protocol import Attempt, Done, Outcome, Stopping, StopReason

log: logging.Logger = logging.getLogger(__name__)

CLEANUP_THREADS = 4
"""How many attempts of an executor are cleaned up after at once."""
STOP_WAIT_US = 1_000_000
"""How long bodies may take at close to end after they were asked to."""


class RunningAttempt:
    """One attempt from `start` to `done`."""

    __slots__ = ("done", "job", "since_us", "timer", "vehicle")

    def __init__(self, job: Attempt, done: Done) -> None:
        self.job: Attempt = job
        self.done: Done = done
        self.timer: asyncio.TimerHandle | None = None
        self.since_us: int = 0
        self.vehicle: Any = None
        """What carries the body: a task, a context, a child."""


class RunningAttempts:
    def __init__(self, permits: int, clock: Clock, stop: Callable[[int, StopReason], None]) -> None:
        capture.install()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.permits = permits
        self._clock = clock
        self._stop = stop
        self._by_token: dict[int, RunningAttempt] = {}
        self._told: dict[int, RunningAttempt] = {}
        """Those that were told to stop: few, and asked for often."""
        self._changed: asyncio.Event | None = None
        self._from_threads: deque[tuple[RunningAttempt, Outcome]] = deque()
        self._woken = False
        self._cleanup: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def free(self) -> int:
        return -1 if self.permits < 0 else self.permits - len(self._by_token)

    def tokens(self) -> list[int]:
        return list(self._by_token)

    def all(self) -> list[RunningAttempt]:
        return list(self._by_token.values())

    def open(self, job: Attempt, done: Done) -> RunningAttempt | None:
        """None if it cannot be taken; `done` hears of it soon."""
        if 0 <= self.permits <= len(self._by_token) or job.token in self._by_token:
            refusal = RuntimeError(
                f"token {job.token} was started twice"
                if job.token in self._by_token
                else f"all {self.permits} permits are in use"
            )
            outcome = Outcome("failed", failure=failures.internal(refusal))
            self.loop.call_soon(_tell, done, job, outcome)
            return None
        flight = RunningAttempt(job, done)
        job.home = self
        job.span = tracing.start(job)
        self._by_token[job.token] = flight
        return flight

    def carries(self, job: Attempt) -> bool:
        """Whether its attempt is still in flight."""
        flight = self._by_token.get(job.token)
        return flight is not None and flight.job is job

    def arm(self, flight: RunningAttempt) -> None:
        """The body starts now: so does its timeout."""
        timeout_us = flight.job.timeout_us
        if timeout_us is not None and flight.timer is None:
            flight.job.deadline_us = self._clock.monotonic() + timeout_us
            flight.timer = self.loop.call_later(
                timeout_us / 1_000_000, self._stop, flight.job.token, "timeout"
            )

    def ask(self, token: int, reason: StopReason) -> RunningAttempt | None:
        """The flight to stop; None where there is none or it was told before."""
        flight = self._by_token.get(token)
        if flight is None or flight.job.stop_reason is not None:
            return None
        flight.job.stop_reason = reason
        flight.since_us = self._clock.monotonic()
        self._told[token] = flight
        return flight

    def fail(self, job: Attempt, failure: Failure) -> bool:
        """Something that the body started has raised what ends a program: it fails, and is told to stop."""
        if job.stop_reason is not None or job.token not in self._by_token:
            return False  # it ends as it was told
        job.raised = failure  # at once: the body may end before it can be told
        self.loop.call_soon_threadsafe(self._stop, job.token, "error")
        return True

    def end(self, flight: RunningAttempt, outcome: Outcome) -> None:
        """Free the permit, then tell. A flight that was told to stop ends as it was told."""
        job = flight.job
        if self._by_token.pop(job.token, None) is None:
            return
        self._told.pop(job.token, None)
        if flight.timer is not None:
            flight.timer.cancel()
        if job.raised is not None:
            outcome = Outcome("failed", failure=job.raised)
        elif job.stop_reason is not None:
            outcome = _as_asked(job, job.stop_reason)
        _tell(flight.done, job, _with_notes(job, outcome))
        self.wake()

    def end_from_thread(
        self, flight: RunningAttempt, outcome: Outcome, *, wake: bool = False
    ) -> None:
        """`end`, from another thread than the loop's. `wake`: in any case."""
        self._from_threads.append((flight, outcome))
        # Append, then test: `_end_all` clears the flag before it empties the queue, so either it
        # still sees this end, or this thread sees the flag cleared and wakes the loop again.
        if wake or not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        self._woken = False
        # Only those present now: bodies started by `done` may end faster than this loop turns.
        for _ in range(len(self._from_threads)):
            self.end(*self._from_threads.popleft())

    def end_after(
        self, clean_up: Callable[[], None], flight: RunningAttempt, outcome: Outcome
    ) -> None:
        """Clean up after a body in a thread, which may take long, then end: the permit is kept until then.

        Where no thread can be started it is done here: an attempt without an end runs for ever.
        """
        try:
            if self._cleanup is None:
                self._cleanup = ThreadPoolExecutor(CLEANUP_THREADS, "locktender-cleanup")
            cleared = self.loop.run_in_executor(self._cleanup, _clean_up, clean_up, flight.job)
        except RuntimeError:  # no thread left to give; or closed, while a body went on
            _clean_up(clean_up, flight.job)
            self.end(flight, outcome)
        else:
            cleared.add_done_callback(lambda _: self.end(flight, outcome))

    def close(self) -> None:
        """From here on clean-up runs on the loop."""
        if self._cleanup is not None:
            self._cleanup.shutdown(wait=False)

    def stopping(self) -> list[Stopping]:
        return [
            Stopping(token, job.stop_reason, flight.since_us, job.task, job.step.name)
            for token, flight in self._told.items()
            if (job := flight.job).stop_reason is not None
        ]

    async def drained(self, patience_us: int) -> bool:
        """Wait until nothing is in flight, at most `patience_us`."""
        return await self.until(lambda: not self._by_token, patience_us)

    async def until(self, condition: Callable[[], bool], patience_us: int) -> bool:
        """Wait until `condition` holds, looking again after every end and every `wake`."""
        end = self.loop.time() + patience_us / 1_000_000
        while not condition():
            self._changed = asyncio.Event()
            try:
                async with asyncio.timeout_at(end):
                    await self._changed.wait()
            except TimeoutError:
                break
        return condition()

    def wake(self) -> None:
        if self._changed is not None:
            self._changed.set()


class BaseExecutor:
    """What every executor does alike. A subclass adds `start`, `stop` and `shut_down`."""

    in_processes: ClassVar[bool] = False
    stop_wait_us: ClassVar[int] = STOP_WAIT_US

    def __init__(self, permits: int, clock: Clock) -> None:
        self._attempts = RunningAttempts(permits, clock, self.stop)
        self._loop = self._attempts.loop

    @property
    def in_flight(self) -> int:
        return len(self._attempts)

    @property
    def free(self) -> int:
        return self._attempts.free

    def stop(self, token: int, reason: StopReason) -> None:
        raise NotImplementedError

    def stopping(self) -> list[Stopping]:
        return self._attempts.stopping()

    def kill(self) -> None:
        for token in self._attempts.tokens():
            self.stop(token, "kill")

    def extend(self, deadline_us: int) -> None:
        """Bodies in this process end with it: they need no deadline of their own."""

    async def close(self, grace_us: int) -> list[int]:
        if not await self._attempts.drained(grace_us):
            for token in self._attempts.tokens():
                self.stop(token, "drain")
            await self._attempts.drained(self.stop_wait_us)
        await self.shut_down()
        self._attempts.close()
        return self._attempts.tokens()

    async def shut_down(self) -> None:
        """Free what bodies ran in. Some may still run."""

    def outlives(self) -> bool:
        return False

    def take_back(self) -> bool:
        return False

    def lag_us(self) -> int:
        return 0


def _clean_up(clean_up: Callable[[], None], job: Attempt) -> None:
    try:
        clean_up()
    except Exception:
        log.exception("failed to clean up after task %s (token %s)", job.task, job.token)


def _with_notes(job: Attempt, outcome: Outcome) -> Outcome:
    """The outcome with what the body said beside it. Never raises: an end that is not told would leave the
    task running for ever."""
    try:
        if job.lines is not None:
            outcome = outcome._replace(log=job.lines.body())
        if job.progress is not None:
            job.progress.forget(job.token)
        if job.span is not None:
            tracing.end(job.span, outcome.state, outcome.failure, outcome.reason)
    except Exception:
        log.exception("what task %s (token %s) said of itself is lost", job.task, job.token)
    return outcome


def _as_asked(job: Attempt, reason: StopReason) -> Outcome:
    return bodies.too_late(job) if reason == "timeout" else Outcome("cancelled", reason=reason)


def _tell(done: Done, job: Attempt, outcome: Outcome) -> None:
    try:
        done(job, outcome)
    except Exception:
        # The executor must go on for the others; the worker's own error is the worker's to fix.
        log.exception("telling the end of task %s (token %s) failed", job.task, job.token)
