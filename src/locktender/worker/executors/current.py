"""What a body can ask and do about its own attempt: `locktender.current()`.

The same on the loop, in a thread and in a child process. It is made on each call: a body that
never calls costs nothing.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, overload

from locktender.base.clock import SECOND, SystemClock
from locktender.base.errors import LocktenderError
from locktender.worker.executors.logs import StepLog
from locktender.worker.executors.protocol import CURRENT, Attempt, StopReason
from locktender.worker.reports import progress_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_clock = SystemClock()


class Current:
    """The attempt whose body is asking."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def run(self) -> str:
        """The run's id."""
        return self._attempt.run_id

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self._attempt.flow

    @property
    def step(self) -> str:
        """The step's name."""
        return self._attempt.step.name

    @property
    def task(self) -> int:
        """The number of the task, as `run.tasks()` and `locktender why` use it."""
        return self._attempt.task

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._attempt.number

    @property
    def token(self) -> int:
        """Names this attempt. A later attempt of the task always has a larger one: fence writes with it."""
        return self._attempt.token

    @property
    def workdir(self) -> Path:
        """This attempt's own directory, made on first use and removed when the attempt ends."""
        return self._attempt.workdir

    @property
    def seconds_left(self) -> float | None:
        """Until the step's timeout ends this attempt; None if it has none. Not below 0."""
        deadline = self._attempt.deadline_us
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
        """Whether this attempt was asked to stop. A thread cannot be stopped: a long body reads this."""
        return self._attempt.stop_reason is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the body should stop: `cancel`, `timeout`, `drain` …; None while it should not."""
        return self._attempt.stop_reason

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs under `locktender.step`; kept with the attempt from INFO up (`run.logs()`)."""
        return StepLog(self._attempt)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """How far it is, for `run.tasks()` and `locktender runs show`.

        Call it as often as you like: the latest report goes out with the worker's next beat.
        """
        attempt = self._attempt
        text = str(message) if attempt.redact is None else attempt.redact(str(message))
        progress = progress_of(attempt.token, done, total, text)
        if attempt.progress is not None:
            attempt.progress.put(progress)

    def __repr__(self) -> str:
        return f"<attempt {self.attempt} of task {self.task}, step {self.step}>"


@overload
def current(*, required: Literal[True]) -> Current: ...
@overload
def current(*, required: bool = False) -> Current | None: ...
def current(*, required: bool = False) -> Current | None:
    """The attempt whose body is asking; None outside of one, or an error if it is `required`."""
    attempt = CURRENT.get(None)
    if attempt is None:
        if required:
            raise LocktenderError(
                "no step's body is running here.",
                field="current",
                hint="Call it inside a step that a worker runs; a thread that the body starts itself"
                " needs the body's context: contextvars.copy_context().run(...).",
            )
        return None
    return Current(attempt)
