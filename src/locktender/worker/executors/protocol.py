"""What a worker and its executors agree on: an attempt goes in, exactly one outcome comes out.

`start` never blocks and never raises. `done` is called exactly once per attempt, on the
engine's loop, when the body has ended: until then the attempt keeps its permit, even if it
was asked to stop. An attempt that was asked to stop ends with the reason it was asked for.

A worker asks an executor only what `Executor` below says. CONTRIBUTING.md has the steps to add one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from locktender.base.errors import NotFound
from locktender.base.model import Failure, Progress
from locktender.base.secrets import Redactor
from locktender.worker.executors import workdirs
from locktender.worker.executors.sources import CodeSource

if TYPE_CHECKING:
    from locktender.worker.executors.logs import CapturedLines

EndState = Literal["completed", "failed", "timed_out", "cancelled"]
StopReason = Literal["cancel", "timeout", "lease_lost", "drain", "kill", "error"]
"""Why an attempt is asked to stop. `timeout` ends it timed_out, `error` failed (with `Attempt.raised`); all others
end it cancelled, and the worker decides by the outcome's `reason` what to write (a drained attempt is handed
back)."""


class ProgressSink(Protocol):
    """Where an attempt's progress goes: `ProgressReports` of the worker, or the line of a child to it."""

    def put(self, progress: Progress) -> None: ...
    def forget(self, token: int) -> None: ...


class StepCode(Protocol):
    """What an executor needs of a step."""

    @property
    def name(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def retry_on(self) -> tuple[type[BaseException], ...] | None:
        """None: every error may be retried."""
        ...

    def decode_call(self, raw: bytes, /) -> tuple[Sequence[Any], Mapping[str, Any]]: ...
    def encode_result(self, value: Any, /) -> bytes: ...


class Attempt(msgspec.Struct, eq=False):
    """One accepted attempt. A body sees it as `current()`."""

    task: int
    token: int
    run_id: str
    step: StepCode
    call: bytes
    timeout_us: int | None = None
    number: int = 1
    """1 for the first attempt of the task."""
    work_root: Path | None = None
    source: CodeSource | None = None
    """Where a child process finds the step; None: where `step.fn` was defined."""
    deadline_us: int | None = None
    """When the timeout ends it, on the boot-time clock; set when the body starts."""
    stop_reason: StopReason | None = None
    """Set when it is asked to stop. A thread cannot be stopped from outside: its body may read this."""
    has_workdir: bool = False
    flow: str = ""
    worker: str = ""
    trace: str | None = None
    """The trace of the caller that submitted the run (W3C `traceparent`)."""
    progress: ProgressSink | None = None
    """Where the body's progress goes; None: it is dropped."""
    redact: Redactor | None = None
    """Takes the values of its secrets out of a text; None: it has none."""
    lines: CapturedLines | None = None
    """What its body logged so far; None: nothing."""
    reporter: LineReporter | None = None
    """In a child process: sends new lines to the worker."""
    span: Any = None
    """Its span, where traces are collected."""
    host: AttemptHost | None = None
    """Who runs it in this process."""
    raised: Failure | None = None
    """What something that its body started has raised: it fails with it, whatever the body does."""

    @property
    def workdir(self) -> Path:
        """This attempt's own directory, made on first use and removed when the attempt ends."""
        if self.work_root is None:
            raise NotFound("this attempt has no work directory.", hint="Set work_dir.")
        # Set first: a directory half made when the body is stopped must be removed too.
        self.has_workdir = True
        return workdirs.create(self.work_root, self.task, self.token)


class AttemptHost(Protocol):
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def fail(self, attempt: Attempt, failure: Failure) -> bool:
        """End an attempt with what it has started raised; False: it has ended. From any thread."""
        ...

    def runs(self, attempt: Attempt) -> bool:
        """Whether its attempt is still in flight."""
        ...


class LineReporter(Protocol):
    def wake(self) -> None:
        """There is something new to send."""
        ...


class Outcome(msgspec.Struct, frozen=True, gc=False):
    state: EndState
    output: bytes | None = None
    failure: Failure | None = None
    reason: StopReason | None = None
    """What it was asked to stop for, if it was."""
    log: bytes | None = None
    """What its body logged, ready to be stored."""
    log_lines: int = 0
    """How many lines it logged, also those that were dropped."""
    log_at: int = 0
    """Of the newest of them."""


class Stopping(NamedTuple):
    """An attempt that was asked to stop and still runs."""

    token: int
    reason: StopReason
    since_us: int
    task: int = 0
    step: str = ""


Done = Callable[[Attempt, Outcome], None]

CURRENT: ContextVar[Attempt] = ContextVar("locktender_attempt")


class Executor(Protocol):
    """On the engine's loop, except where a method says otherwise."""

    @property
    def in_flight(self) -> int: ...
    @property
    def free(self) -> int:
        """Permits not in use; −1: unlimited."""
        ...

    def start(self, attempt: Attempt, done: Done) -> None: ...
    def stop(self, token: int, reason: StopReason) -> None:
        """Ask one attempt to end. Unknown tokens and second requests change nothing."""
        ...

    def stopping(self) -> list[Stopping]: ...
    def kill(self) -> None:
        """End everything now, by whatever means there are."""
        ...

    def extend(self, deadline_us: int) -> None:
        """The lease was renewed: bodies may run until `deadline_us` (boot-time clock)."""
        ...

    async def close(self, grace_us: int) -> list[int]:
        """Wait for what is in flight, then stop it (`drain`). Returns tokens that could not be ended."""
        ...

    def outlives(self) -> bool:
        """After `close`: whether a body still runs in this process. From any thread."""
        ...

    def take_back(self) -> bool:
        """Whether it can begin nothing now: bodies block it. What has not begun is handed back then."""
        ...

    def lag_us(self) -> int:
        """How late its bodies were served at worst in the last seconds. From any thread."""
        ...
