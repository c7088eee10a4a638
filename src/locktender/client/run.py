"""A run, for async and for sync code: it keeps the id and asks the store for everything else."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar, cast

from locktender.base.durations import Duration, microseconds
from locktender.base.model import Request
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client import results, run_details
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.retry_runs import retry_runs
from locktender.client.views import EventInfo, LogInfo, Requested, RunInfo, TaskInfo
from locktender.observe.why import Why, explain_run, with_sessions

T_co = TypeVar("T_co", covariant=True)
SubmitOutcome = Literal["created", "attached", "skipped"]
_SUBMITTED: dict[str, SubmitOutcome] = {
    "created": "created",
    "attached": "attached",
    "finished": "skipped",
}
"""What the store calls it → what users see."""


class AsyncRun(Generic[T_co]):
    """One submission of a flow. It keeps only the id; every method reads the store."""

    def __init__(self, core: Core, run_id: str, outcome: str = "") -> None:
        """`outcome`: what the store did with the submission, if this run comes from one."""
        self._core = core
        self._id = run_id
        self._outcome = outcome

    @property
    def id(self) -> str:
        """The run's id: 26 letters and digits, in the order of submission."""
        return self._id

    @property
    def submitted(self) -> SubmitOutcome | None:
        """What `submit` did: "created" this run, "attached" to the active run of the same key, or
        "skipped" because a run of the key has succeeded. None if this run was not just submitted."""
        return _SUBMITTED.get(self._outcome)

    def __repr__(self) -> str:
        return f"<run {self._id}>"

    async def info(self) -> RunInfo:
        """What the store says of the run now: state, tags, times, error."""
        self._core.guard.check()
        return RunInfo.of(await self._core.row(self._id))

    async def status(self) -> RunState:
        """The run's state now, e.g. `queued`, `running`, `succeeded`."""
        return (await self.info()).state

    async def wait(self, timeout: Duration | None = None) -> RunState:  # noqa: ASYNC109
        """Waits until the run has ended and returns its state.

        `timeout` (default None: no bound): `WaitTimeout` is raised then, and the run goes on.
        """
        self._core.guard.check()
        row = await self._core.waiting.until_ended(self._id, _patience(timeout))
        return RunState(row.state)

    async def result(self, timeout: Duration | None = None) -> T_co:  # noqa: ASYNC109
        """Waits until the run has ended and returns the flow's value.

        `timeout` (default None: no bound): `WaitTimeout` is raised then, and the run goes on.
        Raises `RunFailed`, `RunCancelled` or `RunTimedOut` if it did not succeed.
        """
        self._core.guard.check()
        row = await self._core.waiting.until_ended(self._id, _patience(timeout))
        return cast("T_co", await results.value_of(self._core, row))

    async def why(self) -> Why:
        """Explains what the run waits for now, and for how long; `print` shows it as text."""
        self._core.guard.check()
        store = self._core.store
        return await with_sessions(
            store, await explain_run(store, self._id, self._core.settings.labels)
        )

    async def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        """Asks for the run to end *cancelled*; `wait()` returns when it has.

        reason  kept in the history; default none
        force   True: without its clean-up steps (`run_if="always"`); default False
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
        """Queues an ended run again; steps that succeeded are not run again.

        Raises `AdmissionRejected` at a ceiling, as `submit` does.
        """
        self._core.guard.check()
        await retry_runs(self._core, [self._id])
        return self

    async def tasks(self) -> list[TaskInfo]:
        """Its tasks now: one per plain step and one per item of a map."""
        self._core.guard.check()
        return await run_details.tasks(self._core, self._id)

    async def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        """Lines that its bodies logged, in the order of time, of attempts that have ended.

        task   only this task's; default None: all
        limit  1 to 100,000 lines; default 10,000
        """
        self._core.guard.check()
        return await run_details.logs(self._core, self._id, task, limit)

    async def events(self) -> list[EventInfo]:
        """Every change of state of the run and its tasks so far, in order."""
        self._core.guard.check()
        return await run_details.events(self._core, self._id)


def _patience(timeout: Duration | None) -> int | None:
    return None if timeout is None else microseconds(timeout, "timeout", minimum=0)


class Run(Generic[T_co]):
    """One submission of a flow. It keeps only the id; every method reads the store."""

    def __init__(self, bridge: Bridge, run: AsyncRun[T_co]) -> None:
        self._bridge = bridge
        self._run = run

    @property
    def id(self) -> str:
        """The run's id: 26 letters and digits, in the order of submission."""
        return self._run.id

    @property
    def submitted(self) -> SubmitOutcome | None:
        """What `submit` did: "created" this run, "attached" to the active run of the same key, or
        "skipped" because a run of the key has succeeded. None if this run was not just submitted."""
        return self._run.submitted

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def info(self) -> RunInfo:
        """What the store says of the run now: state, tags, times, error."""
        return self._bridge.call(self._run.info())

    def status(self) -> RunState:
        """The run's state now, e.g. `queued`, `running`, `succeeded`."""
        return self._bridge.call(self._run.status())

    def wait(self, timeout: Duration | None = None) -> RunState:
        """Waits until the run has ended and returns its state.

        `timeout` (default None: no bound): `WaitTimeout` is raised then, and the run goes on.
        """
        return self._bridge.call(self._run.wait(timeout))

    def result(self, timeout: Duration | None = None) -> T_co:
        """Waits until the run has ended and returns the flow's value.

        `timeout` (default None: no bound): `WaitTimeout` is raised then, and the run goes on.
        Raises `RunFailed`, `RunCancelled` or `RunTimedOut` if it did not succeed.
        """
        return self._bridge.call(self._run.result(timeout))

    def why(self) -> Why:
        """Explains what the run waits for now, and for how long; `print` shows it as text."""
        return self._bridge.call(self._run.why())

    def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        """Asks for the run to end *cancelled*; `wait()` returns when it has.

        reason  kept in the history; default none
        force   True: without its clean-up steps (`run_if="always"`); default False
        """
        return self._bridge.call(self._run.cancel(reason, force=force))

    def retry(self) -> Run[T_co]:
        """Queues an ended run again; steps that succeeded are not run again.

        Raises `AdmissionRejected` at a ceiling, as `submit` does.
        """
        self._bridge.call(self._run.retry())
        return self

    def tasks(self) -> list[TaskInfo]:
        """Its tasks now: one per plain step and one per item of a map."""
        return self._bridge.call(self._run.tasks())

    def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        """Lines that its bodies logged, in the order of time, of attempts that have ended.

        task   only this task's; default None: all
        limit  1 to 100,000 lines; default 10,000
        """
        return self._bridge.call(self._run.logs(task, limit=limit))

    def events(self) -> list[EventInfo]:
        """Every change of state of the run and its tasks so far, in order."""
        return self._bridge.call(self._run.events())
