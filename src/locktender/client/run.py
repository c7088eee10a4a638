"""A run, for async code.

A run, for sync code. Thread-safe.
"""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from locktender.base.durations import Duration, microseconds
from locktender.base.model import Request
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client import results, run_details
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.retry_runs import retry_runs
from locktender.client.views import EventInfo, LogInfo, Requested, RunInfo, TaskInfo
from locktender.observe.why import Why, explain_run

T_co = TypeVar("T_co", covariant=True)


class AsyncRun(Generic[T_co]):
    """One submission of a flow. Only its id is kept here; everything else is asked of the store."""

    def __init__(self, core: Core, run_id: str) -> None:
        self._core = core
        self._id = run_id

    @property
    def id(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"<run {self._id}>"

    async def info(self) -> RunInfo:
        self._core.guard.check()
        return RunInfo.of(await self._core.row(self._id))

    async def status(self) -> RunState:
        return (await self.info()).state

    async def wait(self, timeout: Duration | None = None) -> RunState:  # noqa: ASYNC109
        """The state it ended in. Raises `WaitTimeout` if it has not ended within `timeout`; it goes on then."""
        self._core.guard.check()
        row = await self._core.waiting.until_ended(self._id, _patience(timeout))
        return RunState(row.state)

    async def result(self, timeout: Duration | None = None) -> T_co:  # noqa: ASYNC109
        """The flow's value. Raises `RunFailed`, `RunCancelled`, `RunTimedOut`, or `WaitTimeout`."""
        self._core.guard.check()
        row = await self._core.waiting.until_ended(self._id, _patience(timeout))
        return cast("T_co", await results.value_of(self._core, row))

    async def why(self) -> Why:
        """What it waits for now, and for how long; `print` shows it as text."""
        self._core.guard.check()
        return await explain_run(self._core.store, self._id, self._core.settings.labels)

    async def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        """Asks for the run to end *cancelled*; `wait()` tells when it has.

        Clean-up steps (`run_if="always"`) still run, unless by `force`.
        """
        core = self._core
        core.guard.check()
        row = await core.row(self._id)
        leader = await core.leader()
        if row.state in TERMINAL_RUNS:
            return Requested((), leader, (self._id,))
        await core.store.ask(
            [Request("cancel", self._id, force=force, who=core.who, reason=reason)]
        )
        core.changed()
        return Requested((self._id,), leader)

    async def retry(self) -> AsyncRun[T_co]:
        """Queues it again, past the ceiling like a submission; finished steps are not run again."""
        self._core.guard.check()
        await retry_runs(self._core, [self._id])
        return self

    async def tasks(self) -> list[TaskInfo]:
        self._core.guard.check()
        return await run_details.tasks(self._core, self._id)

    async def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        """What its bodies logged, of attempts that have ended; of one task only if `task` says so."""
        self._core.guard.check()
        return await run_details.logs(self._core, self._id, task, limit)

    async def events(self) -> list[EventInfo]:
        """Every change of state so far, in order."""
        self._core.guard.check()
        return await run_details.events(self._core, self._id)


def _patience(timeout: Duration | None) -> int | None:
    return None if timeout is None else microseconds(timeout, "timeout", minimum=0)


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
