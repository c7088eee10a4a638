"""`queue`: runs that have not started, in their order, each with what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from locktender.cli.bulk import DryRun, FlowName, Some, Tag, Yes, choose, proceeds
from locktender.cli.context import Context, command, group
from locktender.cli.runs import Limit, RunName

if TYPE_CHECKING:
    from locktender.client.client import Client
    from locktender.observe.why import Why

QUEUED = ("queued",)
MOST_EXPLAINED = 50
"""Each answer rebuilds the ledger from rows: enough for a screen."""


def register(app: typer.Typer) -> None:
    noun = group(app, "queue", "Runs that have not started: order, reasons, priorities.")
    command(noun, "list")(list_)
    command(noun, "why")(why)
    command(noun, "cancel")(cancel)
    command(noun, "reprioritise")(reprioritise)


def list_(shell: Context, limit: Limit = "20") -> None:
    """Queued runs in their order: position, priority, tags, since when, and why."""
    from locktender.cli.arguments import whole
    from locktender.cli.tables import ago, now, shorten, table, tags

    with shell.connect() as client:
        entries = client.queue.list(whole(limit, "limit") or 0)
        reasons = [_why(client, entry.run.id) for entry in entries[:MOST_EXPLAINED]]
    reasons += [None] * (len(entries) - len(reasons))
    if shell.json:
        shell.data(
            [
                {"position": entry.position, "run": entry.run, "why": why}
                for entry, why in zip(entries, reasons, strict=True)
            ]
        )
        return
    if not entries:
        shell.say("[dim]No run is queued.[/] See: locktender runs list")
        return
    since, short = now(), shorten(entry.run.id for entry in entries)
    rows = [
        [
            str(entry.position),
            short[entry.run.id],
            escape(entry.run.flow.rpartition(":")[2]),
            str(entry.run.priority),
            ago(entry.run.queued_at, since),
            tags(entry.run.tags),
            escape(_first(why)),
        ]
        for entry, why in zip(entries, reasons, strict=True)
    ]
    columns = (">pos", "run", "flow…", ">prio", "since", "tags…", "waits for~")
    shell.out.print(table(*columns, rows=rows))


def _why(client: Client, run: str) -> Why:
    return client.why(run)


def _first(why: Why | None) -> str:
    if why is None:
        return ""
    if not why.reasons:
        return why.note if why.state == "queued" else f"{why.state} now"
    return "; ".join(reason.text for reason in why.reasons)


def why(shell: Context, run: RunName) -> None:
    """What a queued run waits for, and for how long."""
    from locktender.cli.why import show_why

    with shell.connect() as client:
        show_why(shell, client.runs.find(run).why())


def cancel(
    shell: Context,
    run: Some = None,
    tag: Tag = None,
    flow: FlowName = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Kept in the history.")
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel queued runs; one that has started by then is left alone.

    locktender queue cancel --tag tenant=acme --dry-run
    """
    with shell.connect() as client:
        chosen = choose(client, "cancel", run, None, tag, flow)
        if not proceeds(shell, client, chosen, "cancel", QUEUED, dry_run=dry_run, yes=yes):
            return
        asked = client.queue.cancel(chosen.runs, tags=chosen.tags, flow=flow, reason=reason)
    shell.done(f"cancel {asked}", asked)
    if asked.started and not shell.json:
        shell.note(f"To end what has started: locktender runs cancel {' '.join(asked.started[:3])}")


def reprioritise(
    shell: Context,
    priority: Annotated[str, typer.Argument(metavar="[RUN]... N", help="Higher goes first.")],
    rest: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    tag: Tag = None,
    flow: FlowName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give queued runs another priority: by id, or all that match a filter.

    locktender queue reprioritise 06gy8rm99095 10

    locktender queue reprioritise 10 --flow import --tag tenant=acme
    """
    from locktender.cli.arguments import whole

    *run, number = priority, *(rest or ())
    wanted = whole(number, "priority") or 0
    with shell.connect() as client:
        chosen = choose(client, "reprioritise", run, None, tag, flow)
        if not proceeds(shell, client, chosen, "reprioritise", QUEUED, dry_run=dry_run, yes=yes):
            return
        asked = client.queue.reprioritise(chosen.runs, wanted, tags=chosen.tags, flow=flow)
    shell.done(f"priority {wanted} {asked}", asked)
