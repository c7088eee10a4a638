"""What a body can ask and do about its own attempt: `locktender.current()`.

The same on the loop, in a thread and in a child process. It is made when it is
asked for: a body that never asks costs nothing.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, overload

from locktender.base.clock import SECOND, SystemClock
from locktender.base.errors import LocktenderError
from locktender.worker.executors.capture import StepLog
from locktender.worker.executors.protocol import CURRENT, Attempt, StopReason
from locktender.worker.reports import progress_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_clock = SystemClock()


class Current:
    """The attempt whose body is asking."""

    __slots__ = ("_job",)

    def __init__(self, job: Attempt) -> None:
        self._job = job

    @property
    def run(self) -> str:
        """The run's id."""
        return self._job.run_id

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self._job.flow

    @property
    def step(self) -> str:
        """The step's name."""
        return self._job.step.name

    @property
    def task(self) -> int:
        """The number of the task, as `run.tasks()` and `locktender why` use it."""
        return self._job.task

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._job.attempt

    @property
    def token(self) -> int:
        """Names this attempt. A later attempt of the task always has a larger one: fence writes with it."""
        return self._job.token

    @property
    def workdir(self) -> Path:
        """This attempt's own directory, made on first use and removed when the attempt ends."""
        return self._job.workdir

    @property
    def seconds_left(self) -> float | None:
        """Until the step's timeout ends this attempt; None if it has none. Not below 0."""
        deadline = self._job.deadline_us
        return None if deadline is None else max(0, deadline - _clock.monotonic()) / SECOND

    @property
    def deadline(self) -> datetime | None:
        """The same as an instant (UTC), by this machine's clock."""
        left = self.seconds_left
        if left is None:
            return None
        return _EPOCH + timedelta(microseconds=_clock.now()) + timedelta(seconds=left)

    @property
    def stop_requested(self) -> bool:
        """Whether this attempt was told to end. A thread cannot be stopped: a long body looks here."""
        return self._job.stop_reason is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the body should stop: `cancel`, `timeout`, `drain` …; None while it should not."""
        return self._job.stop_reason

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs under `locktender.step`; kept with the attempt from INFO up (`run.logs()`)."""
        return StepLog(self._job)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """How far it is, for `run.tasks()` and `locktender runs show`.

        Call it as often as you like: the latest word goes out with the worker's next beat.
        """
        job = self._job
        text = str(message) if job.redact is None else job.redact(str(message))
        said = progress_of(job.token, done, total, text)
        if job.progress is not None:
            job.progress.put(said)

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} of task {self.task}, step {self.step}>"


@overload
def current(*, required: Literal[True]) -> Current: ...
@overload
def current(*, required: bool = False) -> Current | None: ...
def current(*, required: bool = False) -> Current | None:
    """The attempt whose body is asking; None outside of one, or an error if it is `required`."""
    job = CURRENT.get(None)
    if job is None:
        if required:
            raise LocktenderError(
                "no step's body is running here.",
                field="current",
                hint="Call it inside a step that a worker runs; a thread that the body starts itself"
                " needs the body's context: contextvars.copy_context().run(...).",
            )
        return None
    return Current(job)
