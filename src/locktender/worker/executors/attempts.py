"""The attempts an executor runs: permits, timeouts, stop requests, and the one outcome of each."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from locktender.base.clock import Clock
from locktender.base.model import Failure
from locktender.observe import tracing
from locktender.worker.executors import bodies, failures, logs
from locktender.worker.executors.protocol import Attempt, Done, Outcome, Stopping, StopReason

log: logging.Logger = logging.getLogger(__name__)

CLEANUP_THREADS = 4
"""How many attempts of an executor are cleaned up after at once."""
STOP_WAIT_US = 1_000_000
"""How long bodies may take at close to end after they were asked to."""


class RunningAttempt(msgspec.Struct, eq=False):
    """One attempt from `start` to `done`."""

    attempt: Attempt
    done: Done
    timer: asyncio.TimerHandle | None = None
    since_us: int = 0
    runner: Any = None
    """What runs the body: a task, a context, a child."""


class RunningAttempts:
    def __init__(self, permits: int, clock: Clock, stop: Callable[[int, StopReason], None]) -> None:
        logs.install()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.permits = permits
        self._clock = clock
        self._stop = stop
        self._by_token: dict[int, RunningAttempt] = {}
        self._stopping: dict[int, RunningAttempt] = {}
        """Those that were asked to stop: few, and read often."""
        self._changed: asyncio.Event | None = None
        self._from_threads: deque[tuple[RunningAttempt, Outcome]] = deque()
        self._woken = False
        self._cleanup: ThreadPoolExecutor | None = None
        self.closing: bool = False
        """What is started from here on is handed back: the body would be cut off, and count as failed."""

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def free(self) -> int:
        return -1 if self.permits < 0 else self.permits - len(self._by_token)

    def tokens(self) -> list[int]:
        return list(self._by_token)

    def all(self) -> list[RunningAttempt]:
        return list(self._by_token.values())

    def open(self, attempt: Attempt, done: Done) -> RunningAttempt | None:
        """None if it is refused; `done` is called soon then."""
        if self.closing:
            self.loop.call_soon(_call_done, done, attempt, _stopped(attempt, "drain"))
            return None
        if 0 <= self.permits <= len(self._by_token) or attempt.token in self._by_token:
            refusal = RuntimeError(
                f"token {attempt.token} was started twice"
                if attempt.token in self._by_token
                else f"all {self.permits} permits are in use"
            )
            outcome = Outcome("failed", failure=failures.internal(refusal))
            self.loop.call_soon(_call_done, done, attempt, outcome)
            return None
        running = RunningAttempt(attempt, done)
        attempt.host = self
        attempt.span = tracing.start(attempt)
        self._by_token[attempt.token] = running
        return running

    def runs(self, attempt: Attempt) -> bool:
        """Whether its attempt is still in flight."""
        running = self._by_token.get(attempt.token)
        return running is not None and running.attempt is attempt

    def arm(self, running: RunningAttempt) -> None:
        """The body starts now: so does its timeout."""
        timeout_us = running.attempt.timeout_us
        if timeout_us is not None and running.timer is None:
            running.attempt.deadline_us = self._clock.monotonic() + timeout_us
            running.timer = self.loop.call_later(
                timeout_us / 1_000_000, self._stop, running.attempt.token, "timeout"
            )

    def request_stop(self, token: int, reason: StopReason) -> RunningAttempt | None:
        """The attempt to stop; None where there is none or it was asked to stop before."""
        running = self._by_token.get(token)
        if running is None or running.attempt.stop_reason is not None:
            return None
        running.attempt.stop_reason = reason
        running.since_us = self._clock.monotonic()
        self._stopping[token] = running
        return running

    def fail(self, attempt: Attempt, failure: Failure) -> bool:
        """Something that the body started has raised what ends a program: it fails, and is asked to stop."""
        if attempt.stop_reason is not None or attempt.token not in self._by_token:
            return False  # it ends with the reason it was asked to stop for
        attempt.raised = failure  # at once: the body may end before it can be stopped
        self.loop.call_soon_threadsafe(self._stop, attempt.token, "error")
        return True

    def end(self, running: RunningAttempt, outcome: Outcome) -> None:
        """Free the permit, then call `done`. An attempt that was asked to stop ends with that reason."""
        attempt = running.attempt
        if self._by_token.pop(attempt.token, None) is None:
            return
        self._stopping.pop(attempt.token, None)
        if running.timer is not None:
            running.timer.cancel()
        if attempt.raised is not None:
            outcome = Outcome("failed", failure=attempt.raised)
        elif attempt.stop_reason is not None:
            outcome = _stopped(attempt, attempt.stop_reason)
        _call_done(running.done, attempt, _with_notes(attempt, outcome))
        if self._changed is not None:
            self.wake()

    def end_from_thread(
        self, running: RunningAttempt, outcome: Outcome, *, wake: bool = False
    ) -> None:
        """`end`, from another thread than the loop's. `wake`: in any case."""
        self._from_threads.append((running, outcome))
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
        self, clean_up: Callable[[], None], running: RunningAttempt, outcome: Outcome
    ) -> None:
        """Clean up after a body in a thread, which may take long, then end: the permit is kept until then.

        Where no thread can be started it is done here: an attempt without an end runs for ever.
        """
        try:
            if self._cleanup is None:
                self._cleanup = ThreadPoolExecutor(CLEANUP_THREADS, "locktender-cleanup")
            cleared = self.loop.run_in_executor(self._cleanup, _clean_up, clean_up, running.attempt)
        except RuntimeError:  # no thread left to give; or closed, while a body went on
            _clean_up(clean_up, running.attempt)
            self.end(running, outcome)
        else:
            cleared.add_done_callback(lambda _: self.end(running, outcome))

    def close(self) -> None:
        """From here on clean-up runs on the loop."""
        if self._cleanup is not None:
            self._cleanup.shutdown(wait=False)

    def stopping(self) -> list[Stopping]:
        return [
            Stopping(token, attempt.stop_reason, running.since_us, attempt.task, attempt.step.name)
            for token, running in self._stopping.items()
            if (attempt := running.attempt).stop_reason is not None
        ]

    async def drained(self, wait_us: int) -> bool:
        """Wait until nothing is in flight, at most `wait_us`."""
        return await self.until(lambda: not self._by_token, wait_us)

    async def until(self, condition: Callable[[], bool], wait_us: int) -> bool:
        """Wait until `condition` holds, checked again after every end and every `wake`."""
        end = self.loop.time() + wait_us / 1_000_000
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
        drained = await self._attempts.drained(grace_us)
        self._attempts.closing = True
        if not drained:
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


def _clean_up(clean_up: Callable[[], None], attempt: Attempt) -> None:
    try:
        clean_up()
    except Exception:
        log.exception("failed to clean up after task %s (token %s)", attempt.task, attempt.token)


def _with_notes(attempt: Attempt, outcome: Outcome) -> Outcome:
    """The outcome with the notes of the body. Never raises: an end that is not delivered would leave the
    task running for ever."""
    try:
        if attempt.lines is not None:
            body, count, last_at = attempt.lines.body()
            outcome = replace(outcome, log=body, log_lines=count, log_at=last_at)
        if attempt.progress is not None:
            attempt.progress.forget(attempt.token)
        if attempt.span is not None:
            tracing.end(attempt.span, outcome.state, outcome.failure, outcome.reason)
    except Exception:
        log.exception(
            "failed to keep the notes and log of task %s (token %s)", attempt.task, attempt.token
        )
    return outcome


def _stopped(attempt: Attempt, reason: StopReason) -> Outcome:
    return bodies.too_late(attempt) if reason == "timeout" else Outcome("cancelled", reason=reason)


def _call_done(done: Done, attempt: Attempt, outcome: Outcome) -> None:
    try:
        done(attempt, outcome)
    except Exception:
        # The executor must go on for the others; the worker's own error is the worker's to fix.
        log.exception(
            "failed to deliver the end of task %s (token %s)", attempt.task, attempt.token
        )
