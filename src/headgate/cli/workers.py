"""`workers`: who can run tasks now."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from headgate.cli.shell import Shell, command, group


def register(app: typer.Typer) -> None:
    noun = group(app, "workers", "Processes that run tasks.")
    command(noun, "list")(list_)
    command(noun, "drain")(drain)


def list_(shell: Shell) -> None:
    """Workers as they last described themselves."""
    from headgate.cli.tables import ago, now, table

    with shell.connect() as hg:
        found = hg.workers.list()
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say("[dim]No worker is connected.[/] Start one: headgate dev FILE.py")
        return
    since = now()
    rows = [
        [
            escape(worker.id),
            "[magenta]draining[/]"
            if worker.draining
            else "[green]alive[/]"
            if worker.alive
            else "[red]lost[/]",
            str(worker.in_flight),
            " ".join(f"{kind} {'∞' if n < 0 else n}" for kind, n in worker.permits.items()),
            ago(worker.since, since),
            ago(worker.lease_until, since),
        ]
        for worker in found
    ]
    columns = ("worker…", "state", ">tasks", "permits~", "joined", "lease ends")
    shell.out.print(table(*columns, rows=rows))


def drain(
    shell: Shell,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="A worker's id.")],
) -> None:
    """Ask a worker to take no more tasks; what it runs may finish."""
    with shell.connect() as hg:
        asked = hg.workers.drain(worker)
    shell.done(f"drain {asked}", asked)
