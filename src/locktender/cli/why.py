"""`why`: what waits for what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locktender.cli.context import Context, command
from locktender.cli.output import escape

if TYPE_CHECKING:
    from locktender.observe.why import Why

PANEL = "Beside a live engine, or without one"
LONGEST_TASK_NUMBER = 19
WATCH_SECONDS = 1.0


def register(app: typer.Typer) -> None:
    command(app, "why", panel=PANEL)(why)


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
    from locktender.base.errors import InvalidInput, NotFound

    with shell.connect() as client:
        try:
            found = _subject(client, subject)
        except (InvalidInput, NotFound):
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
    shell.say(f"[bold]{escape(first)}[/]")
    for line in rest:
        style = _style(line)
        shell.say(f"[{style}]{escape(line)}[/]" if style else escape(line))


def _style(line: str) -> str:
    text = line.strip()
    if text.startswith("- "):
        return "red" if "never" in text else "yellow"
    if text.startswith(("held by", "and ")):
        return "dim"
    if " running; " in text and "asked to stop" in text:
        return "red"
    return "cyan" if text.endswith("running") else ""
