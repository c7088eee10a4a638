"""Async bodies: tasks on the worker's own loop, thousands in flight."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from locktender.base.clock import Clock
from locktender.worker.executors import failures, workdirs
from locktender.worker.executors.attempts import BaseExecutor, RunningAttempt
from locktender.worker.executors.bodies import encoded, enter, is_late, opened, too_late
from locktender.worker.executors.owned_tasks import OwnedTask
from locktender.worker.executors.protocol import (
    CURRENT,
    MAX_RESULT_BYTES,
    Attempt,
    Done,
    Outcome,
    StopReason,
)
from locktender.worker.loop_lag import context_of, frame_of, running_handle


class AsyncExecutor(BaseExecutor):
    """Runs bodies as tasks. A body that will not be cancelled stays in flight until it ends."""

    def __init__(
        self, permits: int, *, clock: Clock, max_result: int | None = MAX_RESULT_BYTES
    ) -> None:
        super().__init__(permits, clock)
        self._thread = threading.get_ident()
        self._max_result = max_result

    def start(self, job: Attempt, done: Done) -> None:
        flight = self._attempts.open(job, done)
        if flight is None:
            return
        self._attempts.arm(flight)
        task = self._loop.create_task(self._perform(job))
        if isinstance(task, OwnedTask):
            task.job = job
        flight.vehicle = task
        # The task's own end, not the end of our coroutine: a task that is cancelled before its
        # first step never enters the coroutine at all.
        task.add_done_callback(partial(self._ended, flight))

    def stop(self, token: int, reason: StopReason) -> None:
        flight = self._attempts.ask(token, reason)
        if flight is not None:
            flight.vehicle.cancel(reason)

    def outlives(self) -> bool:
        return self.in_flight > 0 and self._loop.is_running()

    def holder(self) -> Attempt | None:
        """The job whose body has the loop at this moment; asked from another thread when the loop lags.

        Whatever a body starts, tasks of its own and callbacks, has its context.
        """
        handle = running_handle(frame_of(self._thread))
        if handle is not None:
            return context_of(handle).get(CURRENT)
        task = asyncio.current_task(self._loop)  # a loop that is not written in Python
        if task is None:
            return None
        return next((each.job for each in self._attempts.all() if each.vehicle is task), None)

    async def _perform(self, job: Attempt) -> Outcome:
        """Never raises: a task that ends with SystemExit ends the loop, and with it the worker. User code
        runs in all of it: validators, the body, encoders, the texts of errors."""
        try:
            enter(job)
            step = job.step
            try:
                args, kwargs = step.decode_call(opened(job))
            except BaseException as error:  # noqa: BLE001
                return Outcome("failed", failure=failures.bad_call(error))
            try:
                value = step.fn(*args, **kwargs)
                if hasattr(value, "__await__"):
                    value = await value
            except GeneratorExit:
                raise  # the loop is being torn down: a coroutine must not go on after this
            except BaseException as error:  # noqa: BLE001
                if is_late(job):
                    return too_late(job)
                return Outcome("failed", failure=failures.of_exception(error, step.retry_on))
            if job.deadline_us is not None and is_late(job):
                return too_late(job)
            return encoded(job, value, self._max_result)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001
            return Outcome("failed", failure=failures.internal(error))

    def _ended(self, flight: RunningAttempt, task: asyncio.Task[Outcome]) -> None:
        try:
            outcome = task.result()
        except asyncio.CancelledError:
            # Before its first step, or by the last line of its body; what that said may be a secret.
            error = asyncio.CancelledError()
            retry_on = flight.job.step.retry_on
            outcome = Outcome("failed", failure=failures.of_exception(error, retry_on))
        except BaseException as error:  # noqa: BLE001
            outcome = Outcome("failed", failure=failures.internal(error))
        job = flight.job
        if job.has_workdir and job.work_root is not None and not self._loop.is_closed():
            # A large tree takes long to remove.
            remove = partial(workdirs.remove, job.work_root, job.task, job.token)
            self._attempts.end_after(remove, flight, outcome)
        else:
            self._attempts.end(flight, outcome)
