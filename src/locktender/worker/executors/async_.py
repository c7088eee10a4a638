"""Async bodies: tasks on a loop in a thread of its own, thousands in flight.

The engine's loop passes starts on in batches, and gets ends back in batches: one wake-up
of the other thread per turn of a loop, not per attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from locktender.base.clock import SECOND, Clock
from locktender.base.limits import MAX_VALUE_BYTES
from locktender.worker.executors import failures, workdirs
from locktender.worker.executors.attempts import BaseExecutor, RunningAttempt
from locktender.worker.executors.bodies import encoded, enter, is_late, opened, too_late
from locktender.worker.executors.body_loop import BodyLoop, OwnedTask
from locktender.worker.executors.protocol import (
    CURRENT,
    Attempt,
    Done,
    Outcome,
    StopReason,
)
from locktender.worker.loop_lag import LoopLag, OnBlock, context_of, frame_of, running_handle

log: logging.Logger = logging.getLogger(__name__)
BLOCKED_US = 1 * SECOND
"""A body loop that is later than this takes no new attempts."""
CLOSE_WAIT_US = 2 * SECOND


class _BodyTask(OwnedTask):
    """The task that runs a body; of `OwnedTask` are also those that the body makes."""

    __slots__ = ("on_end", "running", "watched")
    running: RunningAttempt
    on_end: Callable[[_BodyTask], None]
    watched: bool
    """Its end is the task's own (`on_end`). Else its coroutine hands the outcome over, which costs less."""

    def cancel(self, msg: Any | None = None) -> bool:
        # A task that is cancelled before its first step never enters its coroutine, and one that is cancelled
        # by the last line of its body ends cancelled though its coroutine returns.
        self.watch()
        return super().cancel(msg)

    def watch(self) -> None:
        if not self.watched and not self.done():
            self.watched = True
            self.add_done_callback(self.on_end, context=Context())


class AsyncExecutor(BaseExecutor):
    """Runs bodies as tasks. A body that ignores its cancellation stays in flight until it ends."""

    def __init__(
        self,
        permits: int,
        *,
        clock: Clock,
        max_result: int | None = MAX_VALUE_BYTES,
        loop_lag_us: int | None = None,
        on_block: OnBlock | None = None,
    ) -> None:
        """`loop_lag_us`: a body that holds the loop for longer is logged, and `on_block` is called."""
        super().__init__(permits, clock)
        self._clock = clock
        self._max_result = max_result
        self._loop_lag_us = loop_lag_us
        self._on_block = on_block
        self._bodies: BodyLoop | None = None
        self.lag: LoopLag | None = None
        self._starts: deque[RunningAttempt] = deque()
        """Not begun. The body loop takes from it, and `take_back` on the engine's."""
        self._sending = False
        self._ends: list[tuple[RunningAttempt, Outcome]] = []
        """Of the body loop alone, until it hands them over."""

    @property
    def body_loop(self) -> BodyLoop:
        """Started when first needed, and again after it died."""
        if self._bodies is None:
            self._bodies = bodies = BodyLoop(self._died, self._wake)
            if self._loop_lag_us is not None:
                self.lag = LoopLag(
                    bodies.loop, bodies.thread, self.holder, self._clock, self._loop_lag_us,
                    self._blocked_by,
                )  # fmt: skip
                self.lag.start()
        return self._bodies

    def start(self, attempt: Attempt, done: Done) -> None:
        running = self._attempts.open(attempt, done)
        if running is None:
            return
        if attempt.timeout_us is not None:
            self._attempts.arm(running)
        self._starts.append(running)
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sending = False
        if self._starts:
            self.body_loop.call(self._begin)

    def stop(self, token: int, reason: StopReason) -> None:
        running = self._attempts.request_stop(token, reason)
        if running is None:
            return
        if self._withdraw(running):
            self._attempts.end(running, Outcome("cancelled"))
        elif self._bodies is not None:
            self._bodies.call(self._cancel, running, reason)

    def take_back(self) -> bool:
        """While a body blocks the loop, what has not begun is handed back. Whether one does."""
        lag = self.lag
        if lag is None or lag.late_us() < BLOCKED_US:
            return False
        for running in self._starts.copy():
            self.stop(running.attempt.token, "drain")
        return True

    def lag_us(self) -> int:
        return 0 if self.lag is None else self.lag.worst_us()

    async def shut_down(self) -> None:
        if self.lag is not None:
            self.lag.stop()
        bodies = self._bodies
        if bodies is None:
            return
        bodies.close()
        if not self._attempts:
            await self._attempts.until(bodies.ended.is_set, CLOSE_WAIT_US)

    def outlives(self) -> bool:
        bodies = self._bodies
        return self.in_flight > 0 and bodies is not None and bodies.thread.is_alive()

    def holder(self) -> Attempt | None:
        """The attempt whose body has the loop at this moment. From any thread.

        Whatever a body starts, tasks of its own and callbacks, has its context.
        """
        bodies = self._bodies
        if bodies is None or bodies.thread.ident is None:
            return None
        handle = running_handle(frame_of(bodies.thread.ident))
        return None if handle is None else context_of(handle).get(CURRENT)

    def _blocked_by(self, step: str, lag_us: int) -> None:
        if self._on_block is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_block, step, lag_us)

    def _withdraw(self, running: RunningAttempt) -> bool:
        """Whether its body has not begun, and never will."""
        try:
            self._starts.remove(running)
        except (ValueError, RuntimeError):  # begun; or the body loop is just taking some
            return False
        return True

    def _died(self, error: BaseException) -> None:
        """In the body loop's thread, as the last thing it does."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_again, error)

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._attempts.wake)

    def _start_again(self, error: BaseException) -> None:
        self._ends = []  # what the loop that failed did not hand over
        begun = [each for each in self._attempts.all() if each not in self._starts]
        log.error(
            "the event loop of async steps failed: %s. %s attempts fail with it; a new loop is started",
            failures.name_of(error),
            len(begun),
            exc_info=error,
        )
        if self.lag is not None:
            self.lag.stop()
        self._bodies = self.lag = None
        failure = failures.internal(RuntimeError(f"the event loop of async steps failed: {error}"))
        for running in begun:
            self._end(running, Outcome("failed", failure=failure))
        self._send()

    # -- on the body loop --------------------------------------------------------------------------

    def _begin(self) -> None:
        starts, loop, on_end = self._starts, asyncio.get_running_loop(), self._task_done
        for _ in range(len(starts)):
            try:
                running = starts.popleft()
            except IndexError:
                return  # taken back meanwhile
            task = _BodyTask(self._perform(running), loop=loop)
            task.attempt, task.watched, task.on_end = running.attempt, False, on_end
            task.running, running.runner = running, task

    def _cancel(self, running: RunningAttempt, reason: StopReason) -> None:
        if running.runner is not None:
            running.runner.cancel(reason)

    async def _perform(self, running: RunningAttempt) -> Outcome:
        """Never raises: user code runs in all of it: validators, the body, encoders, the texts of errors."""
        task: _BodyTask = running.runner
        try:
            outcome = await self._outcome(running.attempt)
        except GeneratorExit:
            task.watch()  # of the body: else the loop is being torn down, and nothing waits for this end
            raise  # a coroutine must not go on after this
        except BaseException as error:  # noqa: BLE001
            task.watch()
            return Outcome("failed", failure=failures.internal(error))
        if not task.watched:
            self._put_end(running, outcome)
        return outcome

    async def _outcome(self, attempt: Attempt) -> Outcome:
        enter(attempt)
        step = attempt.step
        try:
            args, kwargs = step.decode_call(opened(attempt))
        except BaseException as error:  # noqa: BLE001
            return Outcome("failed", failure=failures.bad_call(error))
        try:
            value = step.fn(*args, **kwargs)
            if hasattr(value, "__await__"):
                value = await value
        except GeneratorExit:
            raise  # as above
        except BaseException as error:  # noqa: BLE001
            if is_late(attempt):
                return too_late(attempt)
            return Outcome("failed", failure=failures.of_exception(error, step.retry_on))
        if attempt.deadline_us is not None and is_late(attempt):
            return too_late(attempt)
        return encoded(attempt, value, self._max_result)

    def _task_done(self, task: _BodyTask) -> None:
        running = task.running
        try:
            outcome = task.result()
        except asyncio.CancelledError:
            # Before its first step, or by the last line of its body; its message may hold a secret.
            error = asyncio.CancelledError()
            retry_on = running.attempt.step.retry_on
            outcome = Outcome("failed", failure=failures.of_exception(error, retry_on))
        except BaseException as error:  # noqa: BLE001
            outcome = Outcome("failed", failure=failures.internal(error))
        self._put_end(running, outcome)

    def _put_end(self, running: RunningAttempt, outcome: Outcome) -> None:
        self._ends.append((running, outcome))
        if len(self._ends) == 1:
            # In no attempt's context: it hands over the ends of others, too.
            asyncio.get_running_loop().call_soon(self._hand_over, context=Context())

    def _hand_over(self) -> None:
        ends, self._ends = self._ends, []
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all, ends)

    # -- on the engine's loop ----------------------------------------------------------------------

    def _end_all(self, ends: list[tuple[RunningAttempt, Outcome]]) -> None:
        for running, outcome in ends:
            self._end(running, outcome)

    def _end(self, running: RunningAttempt, outcome: Outcome) -> None:
        attempt = running.attempt
        running.runner = None
        if attempt.has_workdir and attempt.work_root is not None:
            # A large tree takes long to remove.
            remove = partial(workdirs.remove, attempt.work_root, attempt.task, attempt.token)
            self._attempts.end_after(remove, running, outcome)
        else:
            self._attempts.end(running, outcome)
