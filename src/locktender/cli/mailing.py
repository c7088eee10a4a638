"""`send` and `waiting`: events for runs that wait, and who waits for which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from locktender.cli.context import Context, command
from locktender.cli.runs import Limit, RunName

if TYPE_CHECKING:
    from datetime import datetime

PANEL = "Beside a live engine, or without one"
NOBODY = "[dim]Nobody waits for an event.[/] A flow does with: wait_event(NAME)"


def register(app: typer.Typer) -> None:
    command(app, "send", panel=PANEL)(send)
    command(app, "waiting", panel=PANEL)(waiting)


def send(
    shell: Context,
    run: RunName,
    event: Annotated[str, typer.Argument(metavar="NAME", help="The event that the run waits for.")],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="What it carries, e.g. '{\"ok\": true}'.")
    ] = "null",
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="TEXT", help="A second one of the same id changes nothing."),
    ] = None,
) -> None:
    """Send an event to a run: the payload is the result of its wait_event."""
    from locktender.cli.arguments import json_value

    value = json_value(payload, "payload")
    with shell.connect() as client:
        found = client.runs.find(run)
        new = found.send(event, value, id=id)
    text = f"event {escape(event)} sent to run {found.id}"
    answer = {"run": found.id, "event": event, "new": new}
    shell.done(text if new else f"{text} before: nothing changed", answer)


def waiting(shell: Context, limit: Limit = "50") -> None:
    """Who waits for which event, since when and until when; the first that times out first."""
    from locktender.cli.arguments import whole
    from locktender.cli.tables import ago, now, shorten, table

    with shell.connect() as client:
        found = client.events.waiting(limit=whole(limit, "limit") or 0)
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say(NOBODY)
        return
    at, short = now(), shorten(each.run for each in found)
    rows = [
        [
            escape(each.event),
            short[each.run],
            escape(each.flow.rpartition(":")[2]),
            ago(each.since, at),
            _until(each.until),
            escape(", ".join(f"{key}={value}" for key, value in each.match.items())),
        ]
        for each in found
    ]
    shell.out.print(table("event…", "run", "flow…", "since", "times out", "match…", rows=rows))


def _until(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
