"""`events`: what happened, and what happens."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locktender.cli.context import Context, command
from locktender.cli.output import escape

if TYPE_CHECKING:
    from locktender.client.history import HistoryEvent

PANEL = "Beside a live engine, or without one"
TERSE = 60


def register(app: typer.Typer) -> None:
    command(app, "events", panel=PANEL)(events)


def events(
    shell: Context,
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Only of this run; else the latest of all."),
    ] = None,
    limit: Annotated[
        str, typer.Option("--limit", "-n", metavar="N", help="How many at most.")
    ] = "50",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until an interrupt.")
    ] = False,
    of_run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="The same as RUN.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="CURSOR", help="Behind this event; start, or now."),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(
            "--consumer", metavar="NAME", help="Go on where the last one of this name ended."
        ),
    ] = None,
    skip_pruned: Annotated[
        bool, typer.Option("--skip-pruned", help="Go on where events were pruned.", metavar="")
    ] = False,
) -> None:
    """The history: every change of state, in order.

    With --json and --follow, --after or --consumer each event is one line with its cursor. A new
    consumer begins with the first event that is kept; its cursor is stored when it has written
    what came before, so that after a crash the last lines may come again and none is missed.

    locktender events 06gy8rm99095 --follow

    locktender events --follow --json --after eyJh…

    locktender events --follow --json --consumer billing
    """
    from locktender.base import names
    from locktender.cli.arguments import whole

    run = of_run or run
    most = names.count(whole(limit, "limit"), "limit", maximum=100_000)
    if follow or after is not None or reader is not None:
        _follow(shell, run, after, reader, waits=follow, skip_pruned=skip_pruned)
        return
    if run is not None:
        with shell.connect() as client:
            found = client.runs.find(run).events()
        lines = [
            _line(
                each.at, each.actor, each.subject, _step(each), each.before, each.after, each.data
            )
            for each in found[-most:]
        ]
        if shell.json:
            shell.data(found[-most:])
            return
    else:
        with shell.connect() as client:
            latest = client.events.latest(most)
        if shell.json:
            shell.data(latest)
            return
        from locktender.client.views import instant

        lines = [
            _line(instant(each.at), each.actor, each.subject, _number(each), each.before, each.after,
                  each.data)
            for each in latest
        ]  # fmt: skip
    if not lines:
        shell.say("[dim]Nothing has happened yet.[/]")
        return
    from locktender.cli.tables import table

    shell.out.print(table("when", "what…", "change", "by", "details…", rows=lines))


def _follow(
    shell: Context,
    run: str | None,
    after: str | None,
    reader: str | None,
    *,
    waits: bool,
    skip_pruned: bool,
) -> None:
    """One line for each event, as JSON with `--json`."""
    from contextlib import closing

    from locktender.cli.answers import as_json

    with shell.connect() as client:
        found = None if run is None else client.runs.find(run).id
        following = client.events.follow(
            found, after=after, reader=reader, wait=waits, skip_pruned=skip_pruned
        )
        with closing(following):
            for event in following:
                if shell.json:
                    sys.stdout.write(as_json(event).decode() + "\n")
                else:
                    shell.out.print("  ".join(_followed(event)), soft_wrap=True)
                # Before the next one is asked for: that says that this one was taken.
                sys.stdout.flush()


def _followed(event: HistoryEvent) -> list[str]:
    return _line(event.at, event.actor, event.subject, _number(event), event.before, event.after,
                 event.data)  # fmt: skip


def _step(event: Any) -> str:
    if event.name is None:
        return event.subject
    return event.name if event.index is None else f"{event.name}[{event.index}]"


def _number(event: Any) -> str:
    if event.task:
        return f"task {event.task}"
    return f"run #{event.run}" if event.run else event.subject


def _line(
    at: Any, actor: str, subject: str, what: str, before: str, after: str, data: Any
) -> list[str]:
    from locktender.cli.tables import state

    change = f"found waiting: {escape(after)}" if subject == "wait" else state(after)
    if subject == "wait" and "held" in data:
        change = f"holders of {escape(after)}"
    if "cached" in data:
        change = state("cached")
    if subject in {"run", "task"} and before not in {"new", after}:
        change = f"{before} → {change}"
    who = actor.split(":", maxsplit=1)[0]
    shown = " ".join(
        f"{key}={_short(value)}" for key, value in data.items() if value not in (None, "")
    )
    return [at.strftime("%H:%M:%S.%f")[:-3], escape(what), change, who, escape(shown)]


def _short(value: Any) -> str:
    from locktender.cli.output import width_of

    text = str(value)
    return text if len(text) <= TERSE or width_of(sys.stdout) else f"{text[:TERSE]}…"
