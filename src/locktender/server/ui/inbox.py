"""The inbox: events and approvals that runs wait for, with a form to answer each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from locktender.base.errors import InvalidInput
from locktender.base.model import RunRow
from locktender.client.mailing import EventWaitInfo
from locktender.client.parts import MAX_EXAMINED, waits_in_parts
from locktender.client.run import AsyncRun
from locktender.client.views import RunInfo
from locktender.server.api.reading import number
from locktender.server.ui.dialogs import Commands, Dialog, Given
from locktender.server.ui.pages import Done, UiRoute, View
from locktender.server.ui.schema_form import form_fields, form_value
from locktender.server.ui.words import address
from locktender.store.protocol import WaitPlace

WAITS_SHOWN = 50
WAITS_READ = 2_000
MAX_BYTES, MAX_CHARS = 4_000, 160
"""Of arguments that are shown in a row, as they are stored and as they are shown."""


class AboutRun(msgspec.Struct, frozen=True):
    """What tells a run from the others of its flow."""

    key: str | None
    tags: Mapping[str, str]
    arguments: str

    @classmethod
    def of(cls, view: View, row: RunRow) -> AboutRun:
        return cls(view.shown(RunInfo.of(row)).key, row.tags, arguments_text(row.params))


def arguments_text(params: bytes) -> str:
    """`order=4711, to="acme"`; empty where there are none, or too many to be shown."""
    if len(params) > MAX_BYTES:
        return ""
    try:
        given = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError):
        return ""
    text = ", ".join(f"{name}={bytes(value).decode()}" for name, value in given.items())
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} …"


async def show_inbox(view: View) -> Response:
    event, after = view.query("event"), _place(view)
    rows, place = await waits_in_parts(
        view.core, view.principal.tags, WAITS_READ, after, MAX_EXAMINED
    )
    names = sorted({row.name for row in rows} | ({event} if event else set()))
    mine = [row for row in rows if not event or row.name == event]
    if len(mine) > WAITS_SHOWN:
        place = WaitPlace(mine[WAITS_SHOWN - 1].until, mine[WAITS_SHOWN - 1].task)
    shown = [EventWaitInfo.of(row) for row in mine[:WAITS_SHOWN]]
    return await view.page(
        "inbox.html",
        waits=shown,
        about={
            each: AboutRun.of(view, await view.core.row(each))
            for each in {wait.run for wait in shown}
        },
        next=""
        if place is None
        else address("/inbox", event=event, until=place.until, task=place.task),
        first=address("/inbox", event=event) if after else "",
        names=names[:20],
        event=event,
    )


def _place(view: View) -> WaitPlace | None:
    """Behind which wait this page begins; None: it is the first."""
    until, task = view.query("until"), view.query("task")
    if not until and not task:
        return None
    if not (until.isdecimal() and task.isdecimal() and max(len(until), len(task)) < 19):
        raise InvalidInput(
            "this is not a place in the inbox.", field="until", got=until, hint="/inbox"
        )
    return WaitPlace(int(until), int(task))


async def _wait(view: View) -> tuple[AsyncRun[Any], EventWaitInfo, dict[str, Any]]:
    """The wait that the path names, and the schema of its payload."""
    run, info = await view.run()
    task = number(view.path("task"), "task")
    wait = next((each for each in await run.waits() if each.task == task), None)
    if wait is None:
        raise InvalidInput(
            f"run {info.id} does not wait there any more.",
            field="task",
            got=task,
            hint="It was answered, it timed out, or its run has ended.",
        )
    graph = await run.graph()
    nodes = [node for node in graph.nodes if node.event == wait.event]
    standing = [node for node in nodes if node.tasks.get("requested")] or nodes
    return run, wait, dict(standing[0].schema) if standing else {}


async def ask_answer(view: View) -> Response:
    run, wait, schema = await _wait(view)
    several = sum(each.event == wait.event for each in await run.waits()) > 1

    def commands(given: Given) -> Commands:
        payload = form_value(schema, given)
        text = json.dumps(payload, ensure_ascii=False)
        if several:  # an event of that name might answer another wait of the run
            return Commands(
                view.cli("send", text, token=wait.token),
                view.curl("POST", "/waits/answer", {"token": wait.token, "payload": payload}),
            )
        return Commands(
            view.cli("send", run.id, wait.event, text),
            view.curl("POST", f"/runs/{run.id}/events", {"event": wait.event, "payload": payload}),
        )

    matched = ", ".join(f"{key}={value}" for key, value in wait.match.items())
    return await view.dialog(
        Dialog(
            f"Send {wait.event}",
            f"Run {run.id[:12]} of {wait.flow} goes on with this payload as the result of its wait.",
            "Send",
            f"/inbox/{run.id}/{wait.task}",
            commands,
            fields=form_fields(schema),
            notes=(f"It waits for events that match {matched}.",) if matched else (),
        )
    )


async def answer(view: View) -> Response:
    run, wait, schema = await _wait(view)
    payload = form_value(schema, view.form)
    new = await view.client.events.answer(wait.token, payload)
    text = f"{wait.event} was sent." if new else f"{wait.event} was sent before: nothing changed."
    return await view.done(Done(text, f"/runs/{run.id}"))


ROUTES = (
    UiRoute("/inbox", show_inbox),
    UiRoute("/inbox/{run}/{task}", ask_answer, "GET", "submit"),
    UiRoute("/inbox/{run}/{task}", answer, "POST", "submit"),
)
