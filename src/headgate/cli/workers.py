"""`workers`: who can run tasks now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from headgate.cli.shell import Shell, command, group

if TYPE_CHECKING:
    from headgate.client.views import WorkerInfo

Id = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's id, or its beginning.")]


def register(app: typer.Typer) -> None:
    noun = group(app, "workers", "Processes that run tasks.")
    command(noun, "list")(list_)
    command(noun, "show")(show)
    command(noun, "drain")(drain)


def list_(shell: Shell) -> None:
    """Workers as they last described themselves. --json: with steps and flows."""
    from headgate.cli.tables import ago, now, table

    with shell.connect() as hg:
        found = hg.workers.list()
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say("[dim]No worker is connected.[/] Start one: headgate worker FILE.py")
        return
    since = now()
    rows = [
        [
            escape(worker.id),
            _state(worker),
            str(worker.in_flight),
            _permits(worker),
            ago(worker.since, since),
            ago(worker.lease_until, since),
        ]
        for worker in found
    ]
    columns = ("worker…", "state", ">tasks", "permits~", "joined", "lease ends")
    shell.out.print(table(*columns, rows=rows))


def show(shell: Shell, worker: Id) -> None:
    """One worker: what it can run, in which version."""
    from headgate.cli.tables import ago, now, table, tags

    with shell.connect() as hg:
        found = hg.workers.get(worker)
    if shell.json:
        shell.data(found)
        return
    since = now()
    shell.say(f"worker {escape(found.id)}: {_state(found)}, {found.in_flight} tasks")
    shell.say(f"  joined {ago(found.since, since)}, lease ends {ago(found.lease_until, since)}")
    shell.say(f"  permits {_permits(found)}{f'; {tags(found.labels)}' if found.labels else ''}")
    rows = [
        [kind, escape(name), signature]
        for kind, known in (("step", found.steps), ("flow", found.flows))
        for name, signature in sorted(known.items())
    ]
    shell.out.print(table("knows", "name…", "version", rows=rows))


def _state(worker: WorkerInfo) -> str:
    if not worker.alive:
        return "[red]lost[/]"
    return "[magenta]draining[/]" if worker.draining else "[green]alive[/]"


def _permits(worker: WorkerInfo) -> str:
    return " ".join(f"{kind} {'∞' if n < 0 else n}" for kind, n in worker.permits.items())


def drain(shell: Shell, worker: Id) -> None:
    """Ask a worker to take no more tasks; what it runs may finish."""
    with shell.connect() as hg:
        asked = hg.workers.drain(worker)
    shell.done(f"drain {asked}", asked)
