"""`why` and `events`: what waits for what, and what happened."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from locktender.cli.context import Context, command

if TYPE_CHECKING:
    from locktender.client.bridge import StoreReader
    from locktender.observe.answer import Why

PANEL = "Beside a live engine, or without one"
LONGEST_TASK_NUMBER = 19
TERSE = 60
WATCH_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    command(app, "why", panel=PANEL)(why)
    command(app, "events", panel=PANEL)(events)


def why(
    shell: Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_TASK",
            help="A run's id (or its start), a task's number, a schedule's name.",
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again each second, until it has ended.")
    ] = False,
) -> None:
    """What a run or a task waits for now, who holds it, and for how long; of a schedule its next tick."""
    from locktender.base.errors import NotFound

    with shell.connect() as client:
        try:
            found = _subject(client, subject)
        except NotFound:
            info = next((each for each in client.schedules.list() if each.name == subject), None)
            if info is None:
                raise
            shell.done(f"schedule {escape(subject)}: {escape(info.why)}", info)
            return
        show_why(shell, answer := client.why(found))
        while watch and not answer.over:
            time.sleep(WATCH_SECONDS)
            before, answer = answer, client.why(found)
            if answer.without_times() != before.without_times():
                shell.say("")
                show_why(shell, answer)


def _subject(client: Any, text: str) -> str | int:
    """A run's id may be all digits; a task's number is only one if no run's id begins with it."""
    from locktender.base.errors import NotFound

    try:
        return client.runs.find(text).id
    except NotFound:
        if text.isdecimal() and len(text) <= LONGEST_TASK_NUMBER:
            return int(text)
        raise


def show_why(shell: Context, answer: Why) -> None:
    if shell.json:
        shell.data(answer)
        return
    first, *rest = answer.text().splitlines()
    shell.out.print(Text(first, style="bold"), soft_wrap=True)
    for line in rest:
        shell.out.print(Text(line, style=_style(line)), soft_wrap=True)


def _style(line: str) -> str:
    text = line.strip()
    if text.startswith("- "):
        return "red" if "never" in text else "yellow"
    if text.startswith(("held by", "and ")):
        return "dim"
    if " running; " in text and "asked to stop" in text:
        return "red"
    return "cyan" if text.endswith("running") else ""


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
) -> None:
    """The history: every change of state, in order."""
    from locktender.base import names
    from locktender.cli.arguments import whole

    most = names.count(whole(limit, "limit"), "limit", maximum=100_000)
    if follow:
        _follow(shell, run)
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
        with shell.read() as reading:
            latest = reading.call(_latest(reading, most))
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


def _follow(shell: Context, run: str | None) -> None:
    """Every event from now on, or of one run from its beginning: one line each, as JSON with `--json`."""
    import msgspec

    from locktender.client.views import instant

    if run is not None:
        with shell.connect() as client:
            run = client.runs.find(run).id
    with shell.read() as reading:
        for event in _following(reading, run):
            if shell.json:
                shell.out.print(msgspec.json.encode(event).decode(), soft_wrap=True, markup=False)
                continue
            cells = _line(instant(event.at), event.actor, event.subject, _number(event), event.before,
                          event.after, event.data)  # fmt: skip
            shell.out.print("  ".join(cells), soft_wrap=True)


def _following(reading: StoreReader, run_id: str | None) -> Iterator[Any]:
    from locktender.base.clock import SECOND
    from locktender.base.events import unpack
    from locktender.base.states import TERMINAL_RUNS
    from locktender.store.protocol import BEGINNING, Follow

    store, mark = reading.store, -1
    run = None if run_id is None else reading.call(reading.core.row(run_id)).seq
    cursor = BEGINNING if run is not None else reading.call(store.load()).cursor
    while True:
        found = reading.call(store.follow(Follow(cursor, run)))
        cursor = found.cursor
        for row in found.events:
            yield from unpack(row)
        if found.events:
            continue
        if run_id is not None and reading.call(reading.core.row(run_id)).state in TERMINAL_RUNS:
            return
        mark = reading.call(store.wait(SECOND, mark))


async def _latest(reading: StoreReader, most: int) -> list[Any]:
    """The last events of all runs; a row holds at least one, so that as many rows are enough."""
    from locktender.base.events import unpack
    from locktender.store.protocol import EventFilter

    where = EventFilter(limit=most, newest=True)
    found = [event for row in await reading.store.events(where) for event in unpack(row)]
    return found[-most:]


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
    if subject in {"run", "task"} and before not in {"new", after}:
        change = f"{before} → {change}"
    who = actor.split(":", maxsplit=1)[0]
    shown = " ".join(
        f"{key}={_short(value)}" for key, value in data.items() if value not in (None, "")
    )
    return [at.strftime("%H:%M:%S.%f")[:-3], escape(what), change, who, escape(shown)]


def _short(value: Any) -> str:
    from locktender.cli.tables import width_of

    text = str(value)
    return text if len(text) <= TERSE or width_of(sys.stdout) else f"{text[:TERSE]}…"
