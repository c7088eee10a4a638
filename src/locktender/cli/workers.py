"""`workers`: the processes that run tasks now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.output import escape

if TYPE_CHECKING:
    from datetime import datetime

    from locktender.client.views import Requested, WorkerInfo

Id = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's id, or its beginning.")]


def register(app: typer.Typer) -> None:
    noun = group(app, "workers", "Processes that run tasks.")
    command(noun, "list")(list_)
    command(noun, "show")(show)
    command(noun, "drain")(drain)
    command(noun, "undrain")(undrain)


def list_(shell: Context) -> None:
    """Workers as they last described themselves. --json: everything that `show` has."""
    from locktender.cli.tables import ago, now, table, tags

    with shell.connect() as client:
        found = client.workers.list()
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say("[dim]No worker is connected.[/] Start one: locktender worker FILE.py")
        return
    since = now()
    # Without labels, the ids have more room.
    labelled = any(worker.labels for worker in found)
    rows = [
        [
            escape(worker.id),
            _state(worker),
            str(worker.in_flight),
            _count(worker.free),
            _share(worker.memory),
            *([tags(worker.labels)] if labelled else []),
            ago(worker.since, since),
            ago(worker.lease_until, since),
        ]
        for worker in found
    ]
    # An id is not cut: it is what `show` and `drain` are called with.
    labels = ["labels~"] if labelled else []
    columns = ["worker~", "state", ">tasks", ">free", ">mem", *labels, "joined", "lease"]
    shell.out.print(table(*columns, rows=rows))


def show(shell: Context, worker: Id) -> None:
    """One worker: its machine, its pressure, its steps and their versions."""
    from locktender.cli.tables import table

    with shell.connect() as client:
        found = client.workers.get(worker)
    if shell.json:
        shell.data(found)
        return
    facts = [[f"[dim]{name}[/]", text] for name, text in _facts(found)]
    shell.out.print(table("what", "is~", rows=facts))
    shell.say("")
    rows = [
        [kind, escape(name), signature]
        for kind, known in (("step", found.steps), ("flow", found.flows))
        for name, signature in sorted(known.items())
    ]
    shell.out.print(table("knows", "name~", "signature", rows=rows))


def _facts(worker: WorkerInfo) -> list[tuple[str, str]]:
    from locktender.base.clock import SECOND
    from locktender.cli.tables import ago, now, stop_note, tags
    from locktender.kernel.explain_workers import pressures

    since = now()
    held_back = "" if worker.share == 100 else f", at {worker.share}% of its permits"
    why = ", ".join(pressures(worker.pressed, worker.memory, round(worker.p99 * SECOND)))
    unstopped = [
        ("", f"[red]task {each.task} ({escape(each.step)}) {escape(stop_note(each, since))}[/]")
        for each in worker.unstopped
    ]
    return [
        ("worker", escape(worker.id)),
        ("state", _state(worker)),
        *([("offers", _silence(worker, since))] if worker.unanswered else []),
        ("host", f"{escape(worker.host)}, process {worker.pid}"),
        ("locktender", escape(worker.version)),
        ("joined", ago(worker.since, since)),
        ("lease ends", ago(worker.lease_until, since)),
        ("tasks", str(worker.in_flight)),
        *unstopped,
        ("free", f"{_count(worker.free)}{held_back}"),
        *([("held back by", escape(why))] if why else []),
        ("claim", "no bound" if worker.claim < 0 else f"up to {worker.claim} until its next beat"),
        ("permits", _permits(worker)),
        ("nearly full", escape(", ".join(worker.full)) or "nothing"),
        ("memory", _share(worker.memory)),
        ("p99", _seconds(worker.p99)),
        ("loop lag", _seconds(worker.loop_lag)),
        ("labels", tags(worker.labels) or "none"),
        ("provision", escape(worker.provision) or "started by hand"),
        *([("unreadable", escape(worker.unreadable))] if worker.unreadable else []),
    ]


def _state(worker: WorkerInfo) -> str:
    if worker.unreadable:
        return "[red]unreadable[/]"
    if worker.stalled:
        return "[red]stalled[/]"
    if not worker.alive:
        return "[red]lost[/]"
    if worker.ending:
        return "[magenta]ending[/]"
    if worker.draining:
        return "[magenta]draining[/]"
    return "[red]silent[/]" if worker.unanswered else "[green]alive[/]"


def _silence(worker: WorkerInfo, since: datetime) -> str:
    from locktender.base.text import counted
    from locktender.cli.tables import ago

    again = worker.passed_over_until
    paused = f"; gets no more until {ago(again, since)}" if again and again > since else ""
    return f"[red]left {counted(worker.unanswered, 'offer')} unanswered{paused}[/]"


def _count(number: int) -> str:
    return "∞" if number < 0 else str(number)


def _permits(worker: WorkerInfo) -> str:
    several = {**worker.permits, "total": worker.total_permits}
    return ", ".join(f"{kind} {_count(n)}" for kind, n in several.items())


def _share(of_one: float) -> str:
    return f"{of_one:.0%}" if of_one else "-"


def _seconds(seconds: float) -> str:
    from locktender.base.clock import SECOND
    from locktender.base.durations import spoken

    return spoken(round(seconds * SECOND)) if seconds else "-"


def drain(shell: Context, worker: Id) -> None:
    """Ask a worker to take no more tasks; what it runs may finish."""
    with shell.connect() as client:
        asked = client.workers.drain(worker)
    _done(shell, f"worker {asked.ids[0]} is asked to drain", asked)


def undrain(shell: Context, worker: Id) -> None:
    """Take a drain back: the worker gets tasks again."""
    with shell.connect() as client:
        asked = client.workers.undrain(worker)
    _done(shell, f"worker {asked.ids[0]} is asked to take tasks again", asked)


def _done(shell: Context, text: str, asked: Requested) -> None:
    if not asked.leader:
        text += "; no engine runs now: it is carried out when one starts"
    shell.done(text, asked)
