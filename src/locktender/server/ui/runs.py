"""Runs: filtered by the address, found by id, key or tag, grouped by what blocks them, changed all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from locktender.base.errors import InvalidInput, LocktenderError
from locktender.base.ids import MAX_RUNS
from locktender.base.model import RunRow
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.client.bulk import Matching, filter_of
from locktender.client.runs_async import ID_LENGTH, SHORTEST_PREFIX
from locktender.client.views import RunInfo
from locktender.observe.answer import Why
from locktender.observe.why_queued import whys_of
from locktender.server.api.reading import pairs, words
from locktender.server.api.tenancy import own_key
from locktender.server.ui.dialogs import COMMANDS, Commands, Dialog, FormField, Given
from locktender.server.ui.dialogs import number as whole_number
from locktender.server.ui.pages import HEADERS, Done, UiRoute, View
from locktender.server.ui.words import address, plural, requested
from locktender.store.protocol import RunFilter

PAGE = 50
MAX_COUNTED = 10_000
MAX_FLOWS = 200
MAX_PARTS = 20
"""Of 50 runs each that a search examines for one page."""
ACTIVE = ("queued", "running", "waiting", "cancelling", "held")
SEGMENTS: tuple[tuple[str, str], ...] = (
    ("All", ""),
    ("Active", ",".join(ACTIVE)),
    ("Queued", "queued"),
    ("Running", "running"),
    ("Waiting", "waiting"),
    ("Succeeded", "succeeded"),
    ("Failed", "failed,timed_out"),
    ("Cancelled", "cancelled"),
    ("Held", "held"),
)
RETRIED = ("failed", "cancelled", "timed_out")


@dataclass(frozen=True, slots=True)
class RunsFilter:
    """What the address asks for."""

    status: str
    flow: str
    tags: str
    q: str

    @classmethod
    def of(cls, get: Any) -> RunsFilter:
        return cls(get("status"), get("flow"), get("tags"), get("q"))

    @property
    def states(self) -> list[str] | None:
        return words(self.status, "status", RunState) if self.status else None

    @property
    def pairs(self) -> dict[str, str]:
        return pairs(self.tags, "tags") if self.tags else {}

    @property
    def given(self) -> bool:
        return bool(self.status or self.flow or self.tags)

    def fields(self) -> dict[str, str]:
        return {"status": self.status, "flow": self.flow, "tags": self.tags}

    def text(self) -> str:
        states = (self.states or ["any"])[:6]
        parts = [f"state {' or '.join(each.replace('_', ' ') for each in states)}"]
        parts += [f"flow {self.flow}"] * bool(self.flow)
        parts += [f"tags {self.tags}"] * bool(self.tags)
        return ", ".join(parts)

    def options(self) -> dict[str, Any]:
        """The same for the command line."""
        tags = [f"{key}={value}" for key, value in self.pairs.items()]
        return {"state": list(self.states or ()), "tag": tags, "flow": self.flow}

    def body(self) -> dict[str, Any]:
        """The same for the API."""
        found: dict[str, Any] = {}
        if self.states:
            found["status"] = self.states
        if self.pairs:
            found["tags"] = self.pairs
        if self.flow:
            found["flow"] = self.flow
        return found


class ShownRun(msgspec.Struct, frozen=True):
    """A run with what is in its way, as far as that is known here."""

    run: RunInfo
    why: Why | None = None
    gate: str = ""
    """The first gate that blocks it, or its tasks."""
    blocked: int = 0
    """Tasks of it that wait there."""


async def show_runs(view: View) -> Response:
    wanted = RunsFilter.of(view.query)
    try:
        found, after = await _found(view, wanted)
    except InvalidInput as error:
        # The hint is for the address: in the form a filter has no name before it.
        tags = error.field == "tags"
        said = f"{error.message} Write e.g. tenant=acme,kind=bulk." if tags else str(error)
        return await _page(view, wanted, [], None, said)
    return await _page(view, wanted, await _shown(view, found), after)


async def _page(
    view: View, wanted: RunsFilter, rows: list[ShownRun], after: int | None, wrong: str = ""
) -> Response:
    """`wrong`: what is the matter with the filter; the form is shown all the same."""
    grouped = view.query("group") == "gate"
    given = {**wanted.fields(), "q": wanted.q, "group": "gate" if grouped else ""}
    states = None if wrong else wanted.states
    return await view.page(
        "runs.html",
        status=422 if wrong else 200,
        rows=rows,
        groups=_groups(rows) if grouped else [],
        grouped=grouped,
        wanted=wanted,
        wrong=wrong,
        given=given,
        segments=SEGMENTS,
        flows=[each.name for each in await view.client.flows.list()][:MAX_FLOWS],
        next=address("/runs", **given, before=after) if after else "",
        first=address("/runs", **given) if view.query("before") else "",
        can_retry=not wrong and _can(wanted, RETRIED),
        can_cancel=not wrong and _can(wanted, ACTIVE),
        can_move=states == ["queued"] and bool(wanted.flow or wanted.tags),
    )


def _can(wanted: RunsFilter, states: Iterable[str]) -> bool:
    """Whether a bulk action means anything for what is asked for."""
    return wanted.given and (wanted.states is None or bool({*wanted.states} & {*states}))


async def _found(view: View, wanted: RunsFilter) -> tuple[list[RunRow], int | None]:
    """The runs of a page, and the cursor of the next one."""
    before = view.query("before")
    if before and not (before.isdecimal() and 0 < int(before[:20]) <= MAX_RUNS):
        raise InvalidInput("this is not a cursor.", field="before", got=before, hint="/runs")
    number = int(before) if before else None
    where = filter_of(wanted.states, view.own(wanted.pairs), wanted.flow or None, PAGE + 1)
    if wanted.q:
        return await _searched(view, wanted.q, where, number)
    rows = await view.core.store.runs(msgspec.structs.replace(where, before=number))
    return rows[:PAGE], rows[PAGE - 1].seq if len(rows) > PAGE else None


async def _searched(
    view: View, text: str, where: RunFilter, before: int | None
) -> tuple[list[RunRow], int | None]:
    """By key, and by the beginning of an id; of these what the filter lets through.

    Who sees only their own cannot guess at ids.
    """
    store = view.core.store
    key, lower = own_key(view.principal, text), text.lower()
    shortest = ID_LENGTH if view.principal.tags else SHORTEST_PREFIX
    found: list[RunRow] = []
    named = lower.isascii() and lower.isalnum() and shortest <= len(lower) <= ID_LENGTH
    if before is None and named:
        rows = await store.runs(RunFilter(id_prefix=lower, limit=PAGE))
        found = [row for row in rows if _fits(view, where, row)]
    for _ in range(MAX_PARTS):
        rows = await store.runs(RunFilter(key=key, limit=PAGE, before=before))
        for row in rows:
            before = row.seq
            if _fits(view, where, row):
                found.append(row)
            if len(found) >= PAGE:
                return found, before
        if len(rows) < PAGE:
            return found, None
    return found, before


def _fits(view: View, where: RunFilter, row: RunRow) -> bool:
    return (
        view.principal.sees(row.tags)
        and (where.states is None or row.state in where.states)
        and (where.flow is None or row.flow == where.flow)
        and all(row.tags.get(key) == value for key, value in where.tags.items())
    )


async def _shown(view: View, page: list[RunRow]) -> list[ShownRun]:
    queued = [row for row in page if row.state == RunState.QUEUED]
    known = await whys_of(view.core.store, queued) if queued else {}
    whys = dict(zip(known, view.hidden(known.items()), strict=True))
    # Where tasks wait is read only where a run may have some.
    blocked_runs: Mapping[str, tuple[str, int]] = {}
    if any(row.state not in TERMINAL_RUNS and row.state != RunState.QUEUED for row in page):
        blocked_runs = (await view.work()).blocked
    found: list[ShownRun] = []
    for row in page:
        info, why = view.shown(RunInfo.of(row)), whys.get(row.seq)
        gate, blocked = blocked_runs.get(info.id, ("", 0))
        if why is not None:
            gate = why.reasons[0].gate if why.reasons else ""
        found.append(ShownRun(info, why, gate, blocked))
    return found


def _groups(rows: list[ShownRun]) -> list[tuple[str, list[ShownRun]]]:
    """By gate; first those that something blocks."""
    by_gate: dict[str, list[ShownRun]] = {}
    for row in rows:
        gate = row.gate
        if row.run.state in TERMINAL_RUNS:
            gate = "ended"
        elif not gate and row.run.state == RunState.WAITING:
            gate = "waiting"
        by_gate.setdefault(gate, []).append(row)
    return sorted(by_gate.items(), key=lambda each: (each[0] in ("", "ended"), -len(each[1])))


def _is_filter(text: str) -> bool:
    try:
        return bool(filter_of(None, pairs(text, "tags"), None, 1).tags)
    except LocktenderError:
        return False


async def search(view: View) -> Response:
    """From the search box to the run, or to the list that fits."""
    text = view.query("q")[:200]
    where = address("/runs", q=text)
    if _is_filter(text):
        where = address("/runs", tags=text)
    elif text:
        found, _ = await _searched(view, text, RunFilter(), None)
        if len(found) == 1:
            where = f"/runs/{found[0].id}"
    return RedirectResponse(where, 303, HEADERS)


async def _count(view: View, wanted: RunsFilter, states: Iterable[str]) -> tuple[int, bool]:
    """How many match, and whether there are more than were counted."""
    asked = [each for each in wanted.states or states if each in states]
    tags = view.own(wanted.pairs)
    number = 0
    async for rows in Matching(asked, tags, wanted.flow or None).slices(view.core):
        number += len(rows)
        if number >= MAX_COUNTED:
            return number, True
    return number, False


async def _bulk(
    view: View, verb: str, states: tuple[str, ...], text: str, *fields: FormField, danger: bool
) -> Response:
    wanted = RunsFilter.of(view.query)
    if not wanted.given:
        raise InvalidInput(
            "say which runs are meant.", field="status", hint="Choose a filter first."
        )
    counts = view.fragment != COMMANDS
    number, more = await _count(view, wanted, states) if counts else (1, False)
    shown = f"more than {number:,} runs" if more else plural(number, "run")
    if not number:
        raise InvalidInput(f"no run with {wanted.text()} can be changed so.", field="status")

    def commands(given: Given) -> Commands:
        if verb == "reprioritise":  # of queued runs alone: no state is named
            only, priority = replace(wanted, status=""), whole_number(given["priority"])
            return Commands(
                view.cli("queue reprioritise", priority, **only.options()),
                view.curl("POST", "/queue/priority", {**only.body(), "priority": priority}),
            )
        reason = {"reason": given["reason"]} if given.get("reason") else {}
        return Commands(
            view.cli(f"runs {verb}", **wanted.options(), **reason),
            view.curl("POST", f"/runs/{verb}", {**wanted.body(), **reason}),
        )

    return await view.dialog(
        Dialog(
            f"{verb.capitalize()} {shown}?",
            text,
            f"{verb.capitalize()} {shown}",
            f"/runs/-/{verb}",
            commands,
            danger=danger,
            fields=fields,
            hidden=wanted.fields(),
            notes=(f"All that match: {wanted.text()}.",),
        )
    )


async def ask_cancel_all(view: View) -> Response:
    text = "Active runs that match end cancelled; what runs of them is asked to stop."
    reason = FormField("reason", "Reason", hint="Kept in the history of each.")
    return await _bulk(view, "cancel", ACTIVE, text, reason, danger=True)


async def cancel_all(view: View) -> Response:
    wanted = RunsFilter.of(view.sent)
    tags = view.own(wanted.pairs)
    _named(wanted)
    asked = await view.client.runs.cancel(
        status=wanted.states, tags=tags, flow=wanted.flow or None, reason=view.sent("reason")
    )
    return await view.done(Done(requested("Cancelling {}", asked)))


async def ask_retry_all(view: View) -> Response:
    text = "Runs that match and did not succeed are queued again; steps that succeeded are not repeated."
    return await _bulk(view, "retry", RETRIED, text, danger=False)


async def retry_all(view: View) -> Response:
    wanted = RunsFilter.of(view.sent)
    tags = view.own(wanted.pairs)
    _named(wanted)
    again = await view.client.runs.retry(status=wanted.states, tags=tags, flow=wanted.flow or None)
    return await view.done(Done(f"{plural(len(again), 'run')} queued again."))


async def ask_move_all(view: View) -> Response:
    text = "Queued runs that match get this priority. Higher starts first."
    field = FormField("priority", "Priority", "number", "0", required=True)
    return await _bulk(view, "reprioritise", ("queued",), text, field, danger=False)


async def move_all(view: View) -> Response:
    wanted = RunsFilter.of(view.sent)
    tags = view.own(wanted.pairs)
    _named(wanted)
    if wanted.states and RunState.QUEUED not in wanted.states:
        raise InvalidInput("only queued runs have a place to change.", field="status")
    priority = whole_number(view.sent("priority"))
    asked = await view.client.queue.reprioritise(
        None, priority, tags=tags, flow=wanted.flow or None
    )
    return await view.done(Done(requested("Changing the priority of {}", asked)))


def _named(wanted: RunsFilter) -> None:
    """A tenant's own tags do not say which of its runs are meant."""
    if not wanted.given:
        raise InvalidInput(
            "say which runs are meant.", field="status", hint="Choose a filter first."
        )


ROUTES = (
    UiRoute("/runs", show_runs),
    UiRoute("/search", search),
    UiRoute("/runs/-/cancel", ask_cancel_all, scope="operate"),
    UiRoute("/runs/-/cancel", cancel_all, "POST", "operate"),
    UiRoute("/runs/-/retry", ask_retry_all, scope="operate"),
    UiRoute("/runs/-/retry", retry_all, "POST", "operate"),
    UiRoute("/runs/-/reprioritise", ask_move_all, scope="operate"),
    UiRoute("/runs/-/reprioritise", move_all, "POST", "operate"),
)
