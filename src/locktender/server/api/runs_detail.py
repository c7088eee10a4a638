"""What there is to know of one run: result, tasks, graph, events, logs, why, blame, timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from locktender.base.clock import SECOND
from locktender.base.errors import (
    AdmissionRejected,
    DuplicateKey,
    InvalidInput,
    LocktenderError,
    NotFound,
    RunFailed,
    WaitTimeout,
)
from locktender.base.ids import run_of
from locktender.base.states import TERMINAL_RUNS
from locktender.client.results import ReturnedBy, raw_value
from locktender.client.run_details import run_id_of
from locktender.client.run_logs import LogCounts, attempt_logs, log_counts
from locktender.client.views import EventInfo, GraphInfo, LogInfo, TaskInfo
from locktender.observe.blame import Blame
from locktender.observe.timeline import Timeline, TimelinePart
from locktender.observe.why import Why
from locktender.server.api.answers import refusal
from locktender.server.api.bodies import (
    CountsQuery,
    LogsQuery,
    PartQuery,
    ResultQuery,
    TimelineQuery,
)
from locktender.server.api.reading import number
from locktender.server.api.routing import ApiCall, ApiRoute, Reply
from locktender.server.api.tenancy import hide_blame, hide_timeline, hide_why

T = TypeVar("T")
MAX_SAID = 2_000
MAX_TRACED = 20_000


class RunResult(msgspec.Struct, frozen=True):
    """What a run that succeeded returned."""

    run: str
    state: str
    result: Any
    returned_by: ReturnedBy
    """What says its type."""


class RunProgress(msgspec.Struct, frozen=True):
    """A run that has not ended."""

    run: str
    state: str
    number: int
    """For `GET /runs/ended`; 0: not known yet."""


class TaskPage(msgspec.Struct, frozen=True):
    """Tasks by their number."""

    tasks: list[TaskInfo]
    next: int | None
    """`after` of the next part; null: this is the last."""


class EventPage(msgspec.Struct, frozen=True):
    """Changes of state in their order."""

    events: list[EventInfo]
    next: int | None


class LogPage(msgspec.Struct, frozen=True):
    """Lines in the order of time."""

    logs: list[LogInfo]


class WhyAnswer(msgspec.Struct, frozen=True):
    """What a run waits for: every gate with its numbers and holders."""

    why: Why
    text: str
    """The same, for people."""


class BlameAnswer(msgspec.Struct, frozen=True):
    """What the time of a run went into: own work, each gate, hand-off. They add up to its wall time."""

    blame: Blame
    text: str
    """The same, for people."""


async def get_result(call: ApiCall) -> Any:
    query: ResultQuery = call.query
    run, _ = await call.run()
    try:
        run_id, value, by = await raw_value(call.core, run.id, round(query.wait * SECOND))
    except WaitTimeout:
        info = await run.info()
        if info.state in TERMINAL_RUNS:  # since
            return await get_result(call)
        shown = RunProgress(info.id, info.state, info.number)
        return Reply(shown, 202, {"retry-after": "1"})
    except (RunFailed, AdmissionRejected, DuplicateKey) as error:
        # The last two: a submission in a transaction of an application, refused afterwards.
        return refusal(_Ended(error, await run.status()))
    return Reply(RunResult(run_id, "succeeded", msgspec.Raw(value), by))


class _Ended(RunFailed):
    """The error of an ended run, with its state."""

    def __init__(self, error: LocktenderError, state: str) -> None:
        message = error.message[:MAX_SAID]
        super().__init__(message, field=error.field, got=error.got, hint=error.hint)
        self.code = error.code  # type: ignore[misc]
        self._state = state
        self._found = error

    def as_dict(self) -> dict[str, Any]:
        shown = {**super().as_dict(), "state": self._state}
        found = self._found
        if not isinstance(found, RunFailed):
            return {**found.as_dict(), "state": self._state}
        said = {
            "run": found.run_id,
            "step": found.step,
            "error_type": found.error_type,
            "error_message": found.error_message[:MAX_SAID],
            "traceback": (found.traceback or "")[-MAX_TRACED:],
        }
        return shown | {name: value for name, value in said.items() if value}


async def list_tasks(call: ApiCall) -> Reply:
    query: PartQuery = call.query
    run, _ = await call.run()
    found = sorted(await run.tasks(), key=lambda task: task.id)
    return Reply(TaskPage(*_part(found, query, lambda task: task.id)))


async def list_events(call: ApiCall) -> Reply:
    query: PartQuery = call.query
    run, _ = await call.run()
    return Reply(EventPage(*_part(await run.events(), query, lambda event: event.seq)))


def _part(
    found: Sequence[T], query: PartQuery, number: Callable[[T], int]
) -> tuple[list[T], int | None]:
    """Events of one commit share a number: they stay together."""
    rest = [each for each in found if number(each) > query.after]
    end = query.limit
    while 0 < end < len(rest) and number(rest[end]) == number(rest[end - 1]):
        end += 1
    page = rest[:end]
    return page, number(page[-1]) if len(rest) > len(page) else None


async def list_logs(call: ApiCall) -> Reply:
    query: LogsQuery = call.query
    run, _ = await call.run()
    task = None if query.task is UNSET else query.task
    if query.token is not UNSET:
        if task is None:
            raise InvalidInput("token needs a task.", field="task")
        return Reply(LogPage(await attempt_logs(call.core, run.id, task, query.token, query.known)))
    return Reply(LogPage(await run.logs(task, limit=query.limit)))


async def count_logs(call: ApiCall) -> Reply:
    query: CountsQuery = call.query
    run, _ = await call.run()
    return Reply(await log_counts(call.core, run.id, None if query.task is UNSET else query.task))


async def get_graph(call: ApiCall) -> Reply:
    run, _ = await call.run()
    return Reply(await run.graph())


async def get_task_why(call: ApiCall) -> Reply:
    run, info = await call.run()
    task = number(call.path("task"), "task")
    if run_of(task) != info.number:
        raise NotFound(f"run {run.id} has no task {task}.", field="task", got=task)
    why = await hide_why(call, info, await call.client.why(task))
    return Reply(WhyAnswer(why, why.text()))


async def get_why_of_task(call: ApiCall) -> Reply:
    task = number(call.path("task"), "task")
    run = await run_id_of(call.core, task)
    if not await call.is_own(run):
        raise NotFound(f"there is no task {task}.", field="task", got=task)
    _, info = await call.run_named(run)
    why = await hide_why(call, info, await call.client.why(task))
    return Reply(WhyAnswer(why, why.text()))


async def get_blame(call: ApiCall) -> Reply:
    run, _ = await call.run()
    blame = hide_blame(call, await run.blame())
    return Reply(BlameAnswer(blame, blame.text()))


async def get_timeline(call: ApiCall) -> Reply:
    query: TimelineQuery = call.query
    _, info = await call.run()
    until = None if query.until_us is UNSET else query.until_us
    part = TimelinePart(query.from_us, until, query.step, query.after)
    return Reply(await hide_timeline(call, await call.api.timelines.of(call.core, info, part)))


async def get_why(call: ApiCall) -> Reply:
    run, info = await call.run()
    why = await hide_why(call, info, await run.why())
    return Reply(WhyAnswer(why, why.text()))


ROUTES = (
    ApiRoute(
        "GET", "/runs/{run}/result", "read", get_result, "The result of a run, waiting for it if asked to",
        RunResult, query=ResultQuery, refuses=(404, 409, 422), also={202: RunProgress},
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/{run}/tasks", "read", list_tasks, "The tasks of a run", TaskPage,
        query=PartQuery, refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/{run}/events", "read", list_events, "Every change of state of a run and its tasks",
        EventPage, query=PartQuery, refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/{run}/logs", "read", list_logs, "The newest lines that the bodies of a run logged", LogPage,
        query=LogsQuery, refuses=(404, 422),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/{run}/logs/counts", "read", count_logs, "How many lines each attempt of a run has logged",
        LogCounts, query=CountsQuery, refuses=(404, 422), tenant="own",
    ),
    ApiRoute(
        "GET", "/tasks/{task}/why", "read", get_why_of_task, "What a task waits for, by its number", WhyAnswer,
        refuses=(404,), tenant="numbers",
    ),
    ApiRoute(
        "GET", "/runs/{run}/graph", "read", get_graph, "The steps of a run and how they depend on each other",
        GraphInfo, refuses=(404,),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/{run}/tasks/{task}/why", "read", get_task_why, "What a task waits for", WhyAnswer,
        refuses=(404,),
        tenant="numbers",
    ),
    ApiRoute(
        "GET", "/runs/{run}/blame", "read", get_blame, "What the time of a run went into", BlameAnswer,
        refuses=(404, 422),
        tenant="numbers",
    ),
    ApiRoute(
        "GET", "/runs/{run}/why", "read", get_why, "What a run waits for", WhyAnswer, refuses=(404,),
        tenant="numbers",
    ),
    ApiRoute(
        "GET", "/runs/{run}/timeline", "read", get_timeline,
        "What each task waited for and when it ran; many items of a step are folded", Timeline,
        query=TimelineQuery, refuses=(404, 422), tenant="numbers",
    ),
)  # fmt: skip
