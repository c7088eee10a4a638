"""A run, for async and for sync code: it keeps the id and asks the store for everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from locktender.base.durations import Duration, microseconds
from locktender.base.errors import AdmissionRejected, DuplicateKey, InvalidInput, LocktenderError
from locktender.base.model import Request, RunRow
from locktender.base.states import OUTBOX_RUNS, TERMINAL_RUNS, RunState
from locktender.base.tracebacks import public
from locktender.client import results, run_details
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.mailing import EventWaitInfo, send_to_run, tokens_of
from locktender.client.outbox_rows import unmoved
from locktender.client.pauses import pause_runs, resume_runs
from locktender.client.refusals import wait_at, way_in
from locktender.client.views import EventInfo, GraphInfo, LogInfo, Requested, RunInfo, TaskInfo
from locktender.store.protocol import Submitted
from locktender.store.retry import repeated

if TYPE_CHECKING:
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
        from locktender.observe.why import explain_run, with_sessions

        self._core.guard.check()
        store = self._core.store
        row = await self._core.row(self._id)
        if row.state in OUTBOX_RUNS:
            why = unmoved(row, await store.now())
        else:
            why = await explain_run(store, row.id, self._core.settings.labels)
        return await with_sessions(store, why)

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
        self._core.guard.check()
        return await send_to_run(self._core, self._id, event, payload, id)

    async def waits(self) -> list[EventWaitInfo]:
        """The events that it waits for now, each with a token for `client.events.answer`."""
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


@public
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
        """Lines that its bodies logged, in the order of time, of attempts that have ended.

        task   only this task's; default None: all
        limit  1 to 100,000 lines; default 10,000
        """
        return self._bridge.call(self._run.logs(task, limit=limit))

    def events(self) -> list[EventInfo]:
        """Every change of state of the run and its tasks so far, in order."""
        return self._bridge.call(self._run.events())


PAGE = 500
"""Runs that are queued in one transaction."""
MOST_SHOWN = 5


async def retry_runs(core: Core, rows: Sequence[RunRow], again: Sequence[int] = ()) -> None:
    """Queues all that may be; raises the first refusal, which names all of them.

    A run that succeeded is refused before any of the others is queued, unless nodes of it run `again`.
    """
    for row in rows:
        if row.state == RunState.SUCCEEDED and not again:
            raise _finished(row.id)
    refused: dict[str, LocktenderError] = {}
    for start in range(0, len(rows), PAGE):
        refused |= await _retry_rows(core, rows[start : start + PAGE], again)
    if refused:
        raise _told([row.id for row in rows], refused)


async def retry_slices(core: Core, slices: AsyncIterator[list[RunRow]]) -> list[str]:
    """Queues all of each slice before the next is read; their ids. Raises as `retry_runs` does."""
    several: list[str] = []
    refused: dict[str, LocktenderError] = {}
    async for rows in slices:
        several += [row.id for row in rows]
        refused |= await _retry_rows(core, rows, ())
    if refused:
        raise _told(several, refused)
    return several


async def _retry_rows(
    core: Core, rows: Sequence[RunRow], again: Sequence[int]
) -> dict[str, LocktenderError]:
    await resume_runs(core, rows)  # the pause of an ended run stands for a few seconds
    refused = await _retry_page(core, {row.id: row.generation for row in rows}, again)
    core.changed()
    return refused


async def _retry_page(
    core: Core, before: Mapping[str, int], again: Sequence[int]
) -> dict[str, LocktenderError]:
    """Those of one transaction that were refused, and why."""
    tried = False

    async def queue() -> dict[str, Submitted]:
        nonlocal tried
        left = await _untouched(core, before) if tried else list(before)
        tried = True
        answers = await core.store.retry(left, again) if left else []
        return dict(zip(left, answers, strict=True))

    answers = await repeated(queue, "a retry of runs", core.clock, core.guard.check)
    errors = {run_id: _refusal(run_id, answer) for run_id, answer in answers.items()}
    return {run_id: error for run_id, error in errors.items() if error is not None}


async def _untouched(core: Core, before: Mapping[str, int]) -> list[str]:
    """Those that no lost call has queued. One that was may have ended since: again would be once too often."""
    return [each for each, was in before.items() if (await core.row(each)).generation == was]


def _told(several: Sequence[str], refused: Mapping[str, LocktenderError]) -> LocktenderError:
    """The first refusal; of several runs, with how many were queued and which were not."""
    error = next(iter(refused.values()))
    if len(several) == 1:
        return error
    retried = tuple(each for each in several if each not in refused)
    shown = ", ".join(list(refused)[:MOST_SHOWN]) + (", …" if len(refused) > MOST_SHOWN else "")
    queued = "1 run is" if len(retried) == 1 else f"{len(retried):,} runs are"
    error.message = f"{queued} queued again, {len(refused):,} not ({shown}): {error.message}"
    error.args = (error.message,)
    if isinstance(error, AdmissionRejected | DuplicateKey):
        error.retried, error.refused = retried, tuple(refused)
    return error


def _finished(run_id: str) -> InvalidInput:
    return InvalidInput(
        f"run {run_id} succeeded: there is nothing to try again.",
        field="run",
        got=run_id,
        hint="Begin at one of its steps (from_step=…, --from), or submit the flow again.",
    )


def _refusal(run_id: str, answer: Submitted) -> LocktenderError | None:
    match answer.outcome:
        case "finished":
            return _finished(run_id)
        case "duplicate":
            return DuplicateKey(
                f"run {run_id} cannot be tried again: its key belongs to the active run {answer.id}.",
                field="run",
                got=run_id,
                hint="Wait for that run, or cancel it.",
            )
        case "rejected":
            return AdmissionRejected(
                f"run {run_id} cannot be tried again now: the ceiling {answer.ceiling} is reached"
                f" ({answer.active:,} of {answer.limit:,} runs are active).",
                retry_after=wait_at(answer),
                field=answer.ceiling,
                got=answer.active,
                hint=way_in(answer),
            )
        case "in_flight":
            return InvalidInput(
                f"run {run_id} is held, and {answer.active:,} attempts of it have not ended.",
                field="run",
                got=run_id,
                hint="Try again when they have ended, or cancel the run.",
            )
        case "created" | "attached":
            return None
