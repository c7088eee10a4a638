"""A run, for async and for sync code: it keeps the id and asks the store for everything else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from locktender.base.durations import Duration, microseconds
from locktender.base.errors import InvalidInput
from locktender.base.model import Request, RunRow
from locktender.base.states import OUTBOX_RUNS, TERMINAL_RUNS, RunState
from locktender.base.tracebacks import public
from locktender.client import results, run_details, run_logs
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.outbox_rows import unmoved
from locktender.client.pauses import pause_runs, resume_runs
from locktender.client.retries import retry_runs
from locktender.client.run_waiter import RunSubmission
from locktender.client.views import EventInfo, GraphInfo, LogInfo, Requested, RunInfo, TaskInfo

if TYPE_CHECKING:
    from locktender.client.mailing import EventWaitInfo
    from locktender.observe.blame import Blame
    from locktender.observe.why import Why

T_co = TypeVar("T_co", covariant=True)
SubmitOutcome = Literal["created", "attached", "skipped", "submitted"]
_SUBMITTED: dict[str, SubmitOutcome] = {
    "created": "created",
    "attached": "attached",
    "finished": "skipped",
    "submitted": "submitted",
}
"""What the store calls it → what users see."""


@public
class AsyncRun(Generic[T_co]):
    """One submission of a flow. It keeps little more than the id: what it says is read from the store, or has just
    been decided in this process."""

    def __init__(
        self,
        core: Core,
        run_id: str,
        outcome: str = "",
        seq: int = 0,
        flow: str = "",
        graph: str = "",
    ) -> None:
        """`outcome`: what the store did with the submission, if this run comes from one; `seq`: its number;
        `flow` and `graph`: those that it will end with, if that is known."""
        self._core = core
        self._id = run_id
        self._outcome = outcome
        made_us = core.clock.monotonic() if outcome == "created" else 0
        self._submission = RunSubmission(seq, made_us, flow, graph) if seq else None

    @property
    def id(self) -> str:
        """The run's id: 26 letters and digits, in the order of submission."""
        return self._id

    @property
    def submitted(self) -> SubmitOutcome | None:
        """What `submit` did: "created" this run, "attached" to the active run of the same key, or
        "skipped" because a run of the key has succeeded, or waits (`keep="oldest"`); "submitted" inside a
        transaction of yours (`connection=`). None if this run was not just submitted."""
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
        ended = await self._core.waiting.until_ended(self._id, _patience(timeout), self._submission)
        return RunState(ended.state)

    async def result(self, timeout: Duration | None = None) -> T_co:  # noqa: ASYNC109
        """Waits until the run has ended and returns the flow's value.

        `timeout` (default None: no bound): `WaitTimeout` is raised then, and the run goes on.
        Raises `RunFailed`, `RunCancelled` or `RunTimedOut` if it did not succeed.
        """
        self._core.guard.check()
        ended = await self._core.waiting.until_ended(self._id, _patience(timeout), self._submission)
        return cast("T_co", await results.value_of(self._core, ended))

    async def why(self) -> Why:
        """Explains what the run waits for now, and for how long; `print` shows it as text."""
        from locktender.observe.why import explain_run, with_sessions

        self._core.guard.check()
        store = self._core.store
        row = await self._core.row(self._id)
        if row.state in OUTBOX_RUNS:
            why = unmoved(row, await store.now())
        else:
            why = await explain_run(store, row.id, self._core.settings.labels)
        return await with_sessions(store, why)

    async def blame(self) -> Blame:
        """What its time went into: own work, each gate, hand-off; they add up to its wall time."""
        from locktender.observe.blame import blame_run

        self._core.guard.check()
        return await blame_run(self._core.store, await self._taken_up())

    async def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        """Asks for the run to end *cancelled*; `wait()` returns when it has.

        reason  kept in the history; default none
        force   True: without its clean-up steps (`run_if="always"`); default False
        """
        core = self._core
        core.guard.check()
        row = await self._taken_up()
        leader = await core.leader()
        if row.state in TERMINAL_RUNS:
            return Requested((), leader, (self._id,))
        await core.store.ask(
            [Request("cancel", self._id, force=force, who=core.who, reason=reason)]
        )
        core.changed()
        return Requested((self._id,), leader)

    async def _taken_up(self) -> RunRow:
        """Its row. Raises `InvalidInput` while the leader has not made a run of it."""
        row = await self._core.row(self._id)
        if row.state == RunState.SUBMITTED:
            raise InvalidInput(
                f"run {self._id} is only submitted: no leader has taken it up yet.",
                field="run",
                got=row.state,
                hint="Try again in a moment: a leader takes it up within a second.",
            )
        return row

    async def pause(self, reason: str = "") -> None:
        """Starts nothing more of the run; tasks that run go on. It waits until `resume`, and holds no place.

        reason  kept in the history and shown by `why`; default none

        A cancel and the run's deadline still end it. Raises `InvalidInput` if it has ended.
        """
        self._core.guard.check()
        await pause_runs(self._core, [await self._core.row(self._id)], reason)

    async def resume(self) -> None:
        """Lets a paused run go on. If its flow is paused, too, it waits until that is resumed."""
        self._core.guard.check()
        await resume_runs(self._core, [await self._core.row(self._id)])

    async def retry(
        self, *, from_step: str | None = None, args: Mapping[str, Any] | None = None
    ) -> AsyncRun[T_co]:
        """Queues an ended run again; steps that succeeded are not run again.

        from_step  also run this step and all that follow it again, even of a run that succeeded; the
                   name as `tasks()` shows it; default None
        args       arguments by name that take the place of the run's own: that is a new run of the same
                   flow, with the same tags, priority and key, and it is returned; default None

        Raises `AdmissionRejected` at a ceiling, as `submit` does.
        """
        from locktender.client.retry_from import steps_from, stored, with_args

        self._core.guard.check()
        if args is not None:
            prepared = await with_args(self._core, self._id, args, from_step)
            return AsyncRun(self._core, await stored(self._core, prepared), "created")
        again = () if from_step is None else await steps_from(self._core, self._id, from_step)
        await retry_runs(self._core, [await self._core.row(self._id)], again)
        return self

    async def send(self, event: str, payload: Any = None, *, id: str | None = None) -> bool:  # noqa: A002
        """Sends an event to the run: the payload is the result of its `wait_event`.

        event    the name that the flow waits for
        payload  any JSON value up to 256 kB; default None
        id       a second event of the same name and id changes nothing; default one of its own

        It may come before the wait: it stays in the run's mailbox until the run ends, 1,000 at most.
        Returns whether it is new. Raises `InvalidInput` if the run has ended, if it cannot wait for the
        event, or if the payload does not fit its schema.
        """
        from locktender.client.mailing import send_to_run

        self._core.guard.check()
        return await send_to_run(self._core, self._id, event, payload, id)

    async def waits(self) -> list[EventWaitInfo]:
        """The events that it waits for now, each with a token for `client.events.answer`."""
        from locktender.client.mailing import tokens_of

        self._core.guard.check()
        return await tokens_of(self._core, self._id)

    async def tasks(self) -> list[TaskInfo]:
        """Its tasks now: one per plain step and one per item of a map."""
        self._core.guard.check()
        return await run_details.tasks(self._core, self._id)

    async def graph(self) -> GraphInfo:
        """Its steps, how they depend on each other, and how many tasks of each are in which state."""
        self._core.guard.check()
        return await run_details.graph(self._core, self._id)

    async def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        """The newest lines that its bodies logged, in the order of time, stored about a second after that.

        task   only this task's; default None: all
        limit  1 to 100,000 lines; default 10,000
        """
        self._core.guard.check()
        return await run_logs.logs(self._core, self._id, task, limit)

    async def follow_logs(self, task: int | None = None) -> AsyncGenerator[LogInfo]:
        """Lines that its bodies log, as they come, until the run has ended. `task`: only this task's."""
        self._core.guard.check()
        async for line in run_logs.follow_logs(self._core, self._id, task):
            yield line

    async def events(self) -> list[EventInfo]:
        """Every change of state of the run and its tasks so far, in order."""
        self._core.guard.check()
        return await run_details.events(self._core, self._id)


def _patience(timeout: Duration | None) -> int | None:
    return None if timeout is None else microseconds(timeout, "timeout", minimum=0)


@public
class Run(Generic[T_co]):
    """One submission of a flow. It keeps little more than the id: what it says is read from the store, or has just
    been decided in this process."""

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
        "skipped" because a run of the key has succeeded, or waits (`keep="oldest"`). None if this run was
        not just submitted."""
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

    def blame(self) -> Blame:
        """What its time went into: own work, each gate, hand-off; they add up to its wall time."""
        return self._bridge.call(self._run.blame())

    def cancel(self, reason: str = "", *, force: bool = False) -> Requested:
        """Asks for the run to end *cancelled*; `wait()` returns when it has.

        reason  kept in the history; default none
        force   True: without its clean-up steps (`run_if="always"`); default False
        """
        return self._bridge.call(self._run.cancel(reason, force=force))

    def pause(self, reason: str = "") -> None:
        """Starts nothing more of the run; tasks that run go on. It waits until `resume`, and holds no place.

        reason  kept in the history and shown by `why`; default none

        A cancel and the run's deadline still end it. Raises `InvalidInput` if it has ended.
        """
        self._bridge.call(self._run.pause(reason))

    def resume(self) -> None:
        """Lets a paused run go on. If its flow is paused, too, it waits until that is resumed."""
        self._bridge.call(self._run.resume())

    def retry(
        self, *, from_step: str | None = None, args: Mapping[str, Any] | None = None
    ) -> Run[T_co]:
        """Queues an ended run again; steps that succeeded are not run again.

        from_step  also run this step and all that follow it again, even of a run that succeeded; the
                   name as `tasks()` shows it; default None
        args       arguments by name that take the place of the run's own: that is a new run of the same
                   flow, with the same tags, priority and key, and it is returned; default None

        Raises `AdmissionRejected` at a ceiling, as `submit` does.
        """
        again = self._bridge.call(self._run.retry(from_step=from_step, args=args))
        return self if again is self._run else Run(self._bridge, again)

    def send(self, event: str, payload: Any = None, *, id: str | None = None) -> bool:  # noqa: A002
        """Sends an event to the run: the payload is the result of its `wait_event`.

        event    the name that the flow waits for
        payload  any JSON value up to 256 kB; default None
        id       a second event of the same name and id changes nothing; default one of its own

        It may come before the wait: it stays in the run's mailbox until the run ends, 1,000 at most.
        Returns whether it is new. Raises `InvalidInput` if the run has ended, if it cannot wait for the
        event, or if the payload does not fit its schema.
        """
        return self._bridge.call(self._run.send(event, payload, id=id))

    def waits(self) -> list[EventWaitInfo]:
        """The events that it waits for now, each with a token for `client.events.answer`."""
        return self._bridge.call(self._run.waits())

    def tasks(self) -> list[TaskInfo]:
        """Its tasks now: one per plain step and one per item of a map."""
        return self._bridge.call(self._run.tasks())

    def graph(self) -> GraphInfo:
        """Its steps, how they depend on each other, and how many tasks of each are in which state."""
        return self._bridge.call(self._run.graph())

    def logs(self, task: int | None = None, *, limit: int = 10_000) -> list[LogInfo]:
        """The newest lines that its bodies logged, in the order of time, stored about a second after that.

        task   only this task's; default None: all
        limit  1 to 100,000 lines; default 10,000
        """
        return self._bridge.call(self._run.logs(task, limit=limit))

    def follow_logs(self, task: int | None = None) -> Generator[LogInfo]:
        """Lines that its bodies log, as they come, until the run has ended. `task`: only this task's."""
        return self._bridge.iterate(self._run.follow_logs(task))

    def events(self) -> list[EventInfo]:
        """Every change of state of the run and its tasks so far, in order."""
        return self._bridge.call(self._run.events())
