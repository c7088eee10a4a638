"""Runs and the queue: submit, list, cancel, retry, pause, reprioritise."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from locktender.base import names
from locktender.base.clock import SECOND
from locktender.base.errors import DuplicateKey, InvalidInput, LocktenderError, NotFound
from locktender.base.ids import MAX_RUNS
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.bulk import filter_of
from locktender.client.parts import MAX_EXAMINED, beginning_in_parts, runs_in_parts
from locktender.client.run import AsyncRun
from locktender.client.runs_async import checked_beginning
from locktender.client.submission import Submission
from locktender.client.views import EndedRun, Requested, RunInfo
from locktender.server.api.answers import Fault, fault_of
from locktender.server.api.bodies import (
    CancelBody,
    CancelRunsBody,
    CountQuery,
    EndedQuery,
    PauseRunsBody,
    PriorityBody,
    ReasonBody,
    RetryBody,
    RunBody,
    RunCall,
    RunsBody,
    RunsQuery,
    WhichRuns,
)
from locktender.server.api.reading import no_cursor, pairs, words
from locktender.server.api.routing import ApiCall, ApiRoute, Reply, conflict
from locktender.server.api.streams import while_asked
from locktender.server.api.submitting import IdempotencyKey, in_trace
from locktender.server.api.tenancy import own_key, show_own_key, shown_run

RUNS = "/api/v1/runs"
SUBMIT_HEADERS = {
    "Idempotency-Key": "A repetition with the same key and body gives the same run, and submits none.",
    "traceparent": "W3C Trace Context: the spans of the run's steps belong to this trace.",
}
_OPTIONS = tuple(name for name in RunCall.__struct_fields__ if name != "args")
Did = Literal["created", "attached", "skipped", "submitted", "repeated"]


class SubmittedRun(msgspec.Struct, frozen=True):
    """A run that was submitted, or that there was already."""

    id: str
    submitted: Did
    """`attached` to the active run of the same key; `skipped` because one succeeded or waits; `repeated`: the
    Idempotency-Key has a run already."""
    url: str


class SubmittedEntry(msgspec.Struct, frozen=True):
    """A run, or why it was refused."""

    run: SubmittedRun | None = None
    error: Fault | None = None


class SubmittedRuns(msgspec.Struct, frozen=True):
    """One entry per run, in order."""

    runs: list[SubmittedEntry]


class RunPage(msgspec.Struct, frozen=True):
    """Runs, newest first."""

    runs: list[RunInfo]
    next: str | None
    """`cursor` of the next page, also where this one is not full; null: this is the last."""


class RunIds(msgspec.Struct, frozen=True):
    """Runs that were changed."""

    ids: list[str]


class RunCount(msgspec.Struct, frozen=True):
    """How many runs match."""

    count: int


class EndedRuns(msgspec.Struct, frozen=True):
    """Of the runs that were waited for, those that have ended."""

    ended: list[EndedRun]


async def submit_run(call: ApiCall) -> Reply:
    body: RunBody = call.body
    groups, key = call.api.groups, _idempotency(call)
    if key is not None and (run := await key.earlier(call.core)) is not None:
        return accepted(run, "repeated")
    prepared = in_trace(await groups.prepare(body.flow, [_submission(call, body)]), call.request)
    if key is not None:
        prepared = key.given_to(prepared)
    return accepted(await groups.submit(prepared[0], key))


async def submit_runs(call: ApiCall) -> Reply:
    body: RunsBody = call.body
    key = _idempotency(call)
    earlier = None if key is None else await key.earlier(call.core)
    calls = [_submission(call, each) for each in body.runs]
    try:
        made = await call.api.groups.prepare(body.flow, calls)
    except InvalidInput as error:
        if (error.field or "").startswith("["):
            error.field, error.message = f"runs{error.field}", f"runs{error.message}"
        raise
    prepared = in_trace(made, call.request)
    if key is not None:
        prepared = key.given_to(prepared)
        await call.api.groups.claim(key)
    answers = await call.client.submit_all_prepared(prepared, partial=body.partial)
    done: Did | None = None if earlier is None else "repeated"
    shown = [
        SubmittedEntry(error=_fault(call, each))
        if isinstance(each, LocktenderError)
        else SubmittedEntry(_submitted(each, done))
        for each in answers
    ]
    return Reply(SubmittedRuns(shown), 202)


def _idempotency(call: ApiCall) -> IdempotencyKey | None:
    given = call.request.headers.get("idempotency-key")
    if given is None:
        return None
    return IdempotencyKey(given.strip(), call.principal.owner, [call.request.url.path, call.raw])


def _submission(call: ApiCall, body: RunCall) -> Submission:
    options: dict[str, Any] = {name: getattr(body, name) for name in _OPTIONS}
    if call.principal.tags:
        options["tags"] = call.only(body.tags)
        options["key"] = own_key(call.principal, body.key)
    return Submission(kwargs=body.args, **options)


def _submitted(run: AsyncRun[Any], done: Did | None = None) -> SubmittedRun:
    return SubmittedRun(run.id, done or run.submitted or "created", f"{RUNS}/{run.id}")


def accepted(run: AsyncRun[Any], done: Did | None = None) -> Reply:
    shown = _submitted(run, done)
    return Reply(shown, 202, {"location": shown.url})


def _fault(call: ApiCall, error: LocktenderError) -> Fault:
    if isinstance(error, DuplicateKey):
        show_own_key(call.principal, error)
    return msgspec.convert(fault_of(error), Fault)


async def list_runs(call: ApiCall) -> Reply:
    query: RunsQuery = call.query
    if query.beginning is not UNSET:
        return await _beginning(call, query.beginning, query.limit)
    before = None if query.cursor is UNSET else _page_number(query.cursor)
    tags = None if query.tags is UNSET else pairs(query.tags, "tags")
    status = None if query.status is UNSET else words(query.status, "status", RunState)
    flow = None if query.flow is UNSET else query.flow
    where = filter_of(status, call.only(tags), flow, query.limit + 1)
    found, place = await runs_in_parts(
        call.core, msgspec.structs.replace(where, before=before), MAX_EXAMINED
    )
    page = [RunInfo.of(row) for row in found[: query.limit]]
    if len(found) > len(page):
        # A submission that is no run has no number: behind a page of those there is none.
        place = page[-1].number
    shown = call.shown(page, lambda run: run.tags)
    return Reply(
        RunPage([shown_run(call.principal, run) for run in shown], str(place) if place else None)
    )


async def _beginning(call: ApiCall, text: str, limit: int) -> Reply:
    try:
        beginning = checked_beginning(text)
    except NotFound as error:
        raise InvalidInput(error.message, field="beginning", got=text) from None
    found, place = await beginning_in_parts(
        call.core, beginning, call.principal.tags, limit, MAX_EXAMINED
    )
    if place is not None and len(found) < limit:
        raise InvalidInput(
            f"more runs than are looked through begin with {beginning!r}.",
            field="beginning",
            got=text,
            hint="Give more characters of the id.",
        )
    return Reply(RunPage([shown_run(call.principal, RunInfo.of(row)) for row in found], None))


async def count_runs(call: ApiCall) -> Reply:
    query: CountQuery = call.query
    tags = None if query.tags is UNSET else pairs(query.tags, "tags")
    status = None if query.status is UNSET else words(query.status, "status", RunState)
    flow = None if query.flow is UNSET else query.flow
    return Reply(RunCount(await call.client.runs.count(status, call.only(tags), flow)))


async def wait_for_runs(call: ApiCall) -> Reply:
    query: EndedQuery = call.query
    numbers = [int(each) for each in query.numbers.split(",") if each]
    if not numbers:
        return Reply(EndedRuns([]))
    if call.principal.tags:
        tags = await call.tags_of(numbers)
        mine = [each for each in numbers if each in tags and call.principal.sees(tags[each])]
        if mine != numbers:
            # Another's is not there.
            gone = [EndedRun(each, "") for each in numbers if each not in mine]
            return Reply(EndedRuns(gone))
    waiting = call.core.waiting.until_any(numbers, round(query.wait * SECOND))
    ended = await while_asked(call.request, call.api.followers.closing, waiting)
    return Reply(EndedRuns([EndedRun(*each) for each in (ended or {}).items()]))


def _page_number(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdecimal() or not 0 < int(cursor[:20]) <= MAX_RUNS:
        raise no_cursor(cursor)
    return int(cursor)


async def get_run(call: ApiCall) -> Reply:
    _, info = await call.run()
    return Reply(shown_run(call.principal, info))


async def cancel_run(call: ApiCall) -> Reply:
    body: CancelBody = call.body
    run, info = await call.run()
    call.refuse_ended(info, "cancelled")
    asked = await run.cancel(checked_reason(body.reason), force=body.force)
    if asked.over:
        call.refuse_ended(await run.info(), "cancelled")
    return Reply(asked, 202)


async def cancel_runs(call: ApiCall) -> Reply:
    body: CancelRunsBody = call.body
    reason = checked_reason(body.reason)
    runs = call.client.runs
    if body.ids is not None:
        _ids_alone(body)
        ids = await call.check_runs(body.ids)
        return Reply(await runs.cancel(ids, reason=reason, force=body.force), 202)
    asked = await runs.cancel(
        status=body.status,
        tags=call.only(_filtered(body)),
        flow=body.flow,
        reason=reason,
        force=body.force,
    )
    return Reply(asked, 202)


async def retry_run(call: ApiCall) -> Reply:
    body: RetryBody = call.body
    run, info = await call.run()
    if body.args is None:
        if info.state == RunState.SUCCEEDED and body.from_step is None:
            raise conflict(info, "succeeded: there is nothing to try again", "Give from_step.")
        if info.state not in TERMINAL_RUNS and info.state != RunState.HELD:
            what = f"is {info.state}: only a run that has ended can be tried again"
            raise conflict(info, what, "Wait for its end, or cancel it.")
    again = await run.retry(from_step=body.from_step, args=body.args)
    return accepted(again)


async def retry_runs(call: ApiCall) -> Reply:
    body: WhichRuns = call.body
    runs = call.client.runs
    if body.ids is not None:
        _ids_alone(body)
        again = await runs.retry(await call.check_runs(body.ids))
    else:
        again = await runs.retry(
            status=body.status, tags=call.only(_filtered(body)), flow=body.flow
        )
    return Reply(RunIds([run.id for run in again]), 202)


async def pause_run(call: ApiCall) -> Reply:
    body: ReasonBody = call.body
    run, info = await call.run()
    call.refuse_ended(info, "paused")
    await run.pause(body.reason)
    return Reply(RunIds([run.id]))


async def resume_run(call: ApiCall) -> Reply:
    run, info = await call.run()
    call.refuse_ended(info, "resumed")
    await run.resume()
    return Reply(RunIds([run.id]))


async def pause_runs(call: ApiCall) -> Reply:
    body: PauseRunsBody = call.body
    runs = call.client.runs
    if body.ids is not None:
        _ids_alone(body)
        return Reply(RunIds(await runs.pause(await call.check_runs(body.ids), body.reason)))
    tags = call.only(_filtered(body))
    return Reply(
        RunIds(await runs.pause(None, body.reason, status=body.status, tags=tags, flow=body.flow))
    )


async def resume_runs(call: ApiCall) -> Reply:
    body: WhichRuns = call.body
    runs = call.client.runs
    if body.ids is not None:
        _ids_alone(body)
        return Reply(RunIds(await runs.resume(await call.check_runs(body.ids))))
    tags = call.only(_filtered(body))
    return Reply(RunIds(await runs.resume(status=body.status, tags=tags, flow=body.flow)))


async def set_priority(call: ApiCall) -> Reply:
    body: PriorityBody = call.body
    run, info = await call.run()
    asked = await call.client.queue.reprioritise(run.id, body.priority)
    if asked.over or asked.started:
        info = await run.info()
        raise conflict(info, f"is {info.state}", "Only a queued run has a place to change.")
    return Reply(asked, 202)


def checked_reason(text: str) -> str:
    """Why, as it is kept."""
    return names.text(text, "reason") if text else ""


def _filtered(body: WhichRuns) -> Any:
    """The tags of a filter. A tenant's own tags do not say which of its runs are meant."""
    if body.status is None and not body.tags and body.flow is None:
        raise say_which()
    return body.tags


def _ids_alone(body: WhichRuns) -> None:
    if body.status is not None or body.tags or body.flow is not None:
        raise either()


def either() -> InvalidInput:
    return InvalidInput(
        "ids and a filter cannot be given together.", field="ids", hint="Give the one or the other."
    )


def say_which() -> InvalidInput:
    return InvalidInput(
        "say which runs are meant.",
        field="ids",
        hint='Give ids, or a filter: {"tags": {"tenant": "acme"}}.',
    )


ROUTES = (
    ApiRoute(
        "POST", "/runs", "submit", submit_run, "Submit a run of a flow by its name", SubmittedRun,
        202, RunBody, refuses=(404, 409, 413, 415, 422, 429), headers=SUBMIT_HEADERS,
        example={"flow": "build", "args": {"names": ["a", "b"]}, "tags": {"tenant": "acme"}, "priority": 5},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/batch", "submit", submit_runs, "Submit many runs of a flow", SubmittedRuns,
        202, RunsBody, refuses=(404, 409, 413, 415, 422, 429), headers=SUBMIT_HEADERS,
        example={"flow": "build", "runs": [{"args": {"names": ["a"]}}, {"args": {"names": ["b"]}, "key": "b"}]},
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs", "read", list_runs, "List runs, newest first", RunPage,
        query=RunsQuery, refuses=(422,),
        tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/count", "read", count_runs, "How many runs match", RunCount,
        query=CountQuery, refuses=(422,), tenant="own",
    ),
    ApiRoute(
        "GET", "/runs/ended", "read", wait_for_runs, "Wait until one of many runs has ended", EndedRuns,
        query=EndedQuery, refuses=(422,), tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/pause", "operate", pause_runs, "Start nothing more of many runs", RunIds,
        body=PauseRunsBody, refuses=(404, 413, 415, 422), example={"flow": "build", "reason": "maintenance"},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/resume", "operate", resume_runs, "Let many paused runs go on", RunIds,
        body=WhichRuns, refuses=(404, 413, 415, 422), example={"flow": "build"},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/cancel", "operate", cancel_runs, "Cancel many runs", Requested,
        202, CancelRunsBody, refuses=(404, 413, 415, 422),
        example={"tags": {"tenant": "acme"}, "status": ["queued"], "reason": "wrong input"},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/retry", "operate", retry_runs, "Queue many ended runs again", RunIds,
        202, WhichRuns, refuses=(404, 409, 413, 415, 422, 429),
        example={"flow": "build", "status": ["failed"]},
        tenant="own",
    ),
    ApiRoute("GET", "/runs/{run}", "read", get_run, "One run", RunInfo, refuses=(404,), tenant="own"),
    ApiRoute(
        "POST", "/runs/{run}/cancel", "operate", cancel_run, "Cancel a run", Requested,
        202, CancelBody, optional=True, refuses=(404, 409, 413, 415, 422), example={"reason": "wrong input"},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/{run}/retry", "operate", retry_run, "Queue an ended run again", SubmittedRun,
        202, RetryBody, optional=True, refuses=(404, 409, 413, 415, 422, 429), example={"from_step": "index"},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/{run}/pause", "operate", pause_run, "Start nothing more of a run", RunIds,
        body=ReasonBody, optional=True, refuses=(404, 409, 413, 415, 422), example={"reason": "maintenance"},
        tenant="own",
    ),
    ApiRoute(
        "POST", "/runs/{run}/resume", "operate", resume_run, "Let a paused run go on", RunIds,
        refuses=(404, 409),
        tenant="own",
    ),
    ApiRoute(
        "PUT", "/runs/{run}/priority", "operate", set_priority, "Give a queued run another priority", Requested,
        202, PriorityBody, refuses=(404, 409, 413, 415, 422), example={"priority": 9},
        tenant="own",
    ),
)  # fmt: skip
