"""`send` and `waiting`: events for runs that wait, and who waits for which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from locktender.cli.context import Context, command
from locktender.cli.output import escape
from locktender.cli.runs import Limit

if TYPE_CHECKING:
    from datetime import datetime

PANEL = "Beside a live engine, or without one"
NOBODY = "[dim]No run waits for an event.[/] To wait in a flow: wait_event(NAME)"


def register(app: typer.Typer) -> None:
    command(app, "send", panel=PANEL)(send)
    command(app, "waiting", panel=PANEL)(waiting)


def send(
    shell: Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN NAME] [JSON]",
            help="The run, the event that it waits for, and what it carries, e.g. '{\"ok\": true}'."
            " With --topic or --token: JSON alone.",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="To every run that waits for this event."),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match",
            metavar="KEY=VALUE",
            help="Of a topic: only to waits with this value. Repeatable; VALUE is JSON, else text.",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", help="Answers the one wait that has this token."),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="TEXT", help="A second one of the same id changes nothing."),
    ] = None,
) -> None:
    """Send an event to a run, to all that wait for it, or to one wait: the payload is the result of wait_event.

    locktender send 06gy8rm99095 approval '{"ok": true}'

    locktender send --topic paid '{"amount": 12}' --match order=17

    locktender send --token 06gy8rm99095….5f2c '{"ok": true}'
    """
    from locktender.cli import arguments

    given = list(words or ())
    to_run = topic is None and token is None
    _check(given, topic, token, match, id, 2 if to_run else 0)
    payload = given.pop() if len(given) == (3 if to_run else 1) else "null"
    value = arguments.json_value(payload, "payload")
    with shell.connect() as client:
        if token is not None:
            # A run's id has no dot; what follows names the wait.
            answer: dict[str, object] = {"run": token.partition(".")[0]}
            new = client.events.answer(token, value)
            text = f"the wait of run {escape(token.partition('.')[0])} is answered"
        elif topic is not None:
            answer = {"topic": topic}
            new = client.events.send(topic, value, match=arguments.match(match or ()), id=id)
            text = f"event {escape(topic)} sent to every run that waits for it"
        else:
            found, event = client.runs.find(given[0]), given[1]
            answer = {"run": found.id, "event": event}
            new = found.send(event, value, id=id)
            text = f"event {escape(event)} sent to run {found.id}"
    shell.done(text if new else f"{text} before: nothing changed", answer | {"new": new})


def _check(
    given: list[str],
    topic: str | None,
    token: str | None,
    match: list[str] | None,
    id: str | None,
    least: int,
) -> None:
    from locktender.base.errors import InvalidInput

    if topic is not None and token is not None:
        raise InvalidInput(
            "--topic and --token exclude each other.",
            field="token",
            hint="A token names its wait: leave --topic out.",
        )
    if match and topic is None:
        raise InvalidInput(
            "--match is for topics.", field="match", got=match[0], hint="Add --topic NAME."
        )
    if id is not None and token is not None:
        raise InvalidInput(
            "--token takes no --id.", field="id", got=id, hint="A wait is answered once anyway."
        )
    if not least <= len(given) <= least + 1:
        wanted = "RUN NAME [JSON]" if least else "at most one JSON value"
        raise InvalidInput(
            f"send takes {wanted} here.",
            field="words",
            got=" ".join(given),
            hint="See: locktender send --help",
        )


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
