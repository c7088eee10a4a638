"""A run, for sync code. Thread-safe."""

from __future__ import annotations

from typing import Generic, TypeVar

from locktender.base.durations import Duration
from locktender.base.states import RunState
from locktender.client.bridge import Bridge
from locktender.client.run_async import AsyncRun
from locktender.client.views import EventInfo, LogInfo, Requested, RunInfo, TaskInfo
from locktender.observe.why import Why

T_co = TypeVar("T_co", covariant=True)


class Run(Generic[T_co]):
    """One submission of a flow. Only its id is kept here; everything else is asked of the store."""

    def __init__(self, bridge: Bridge, run: AsyncRun[T_co]) -> None:
        self._bridge = bridge
        self._run = run

    @property
    def id(self) -> str:
        return self._run.id

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def info(self) -> RunInfo:
        return self._bridge.call(self._run.info())

    def status(self) -> RunState:
        return self._bridge.call(self._run.status())

    def wait(self, timeout: Duration | None = None) -> RunState:
        """The state it ended in. Raises `WaitTimeout` if it has not ended within `timeout`; it goes on then."""
        return self._bridge.call(self._run.wait(timeout))

    def result(self, timeout: Duration | None = None) -> T_co:
        """The flow's value. Raises `RunFailed`, `RunCancelled`, `RunTimedOut`, or `WaitTimeout`."""
        return self._bridge.call(self._run.result(timeout))

    def why(self) -> Why:
        """What it waits for now, and for how long; `print` shows it as text."""
        return self._bridge.call(self._run.why())

    def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        """Asks for the run to end *cancelled*; by `force` without its clean-up steps."""
        return self._bridge.call(self._run.cancel(reason, force=force))

    def retry(self) -> Run[T_co]:
        """Queues it again, past the ceiling like a submission; finished steps are not run again."""
        self._bridge.call(self._run.retry())
        return self

    def tasks(self) -> list[TaskInfo]:
        return self._bridge.call(self._run.tasks())

    def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        """What its bodies logged, of attempts that have ended; of one task only if `task` says so."""
        return self._bridge.call(self._run.logs(task, limit=limit))

    def events(self) -> list[EventInfo]:
        """Every change of state so far, in order."""
        return self._bridge.call(self._run.events())
