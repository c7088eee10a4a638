"""`queue`: runs that have not started, in their order, each with what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from locktender.cli.bulk import DryRun, FlowName, Some, Tag, Yes, choose, proceeds
from locktender.cli.context import Context, command, group
from locktender.cli.output import escape
from locktender.cli.runs import Limit, RunName

if TYPE_CHECKING:
    from locktender.observe.answer import Why

QUEUED = ("queued",)


def register(app: typer.Typer) -> None:
    noun = group(app, "queue", "Runs that have not started: order, reasons, priorities.")
    command(noun, "list")(list_)
    command(noun, "why")(why)
    command(noun, "cancel")(cancel)
    command(noun, "reprioritise")(reprioritise)


def list_(shell: Context, limit: Limit = "20") -> None:
    """Queued runs in their order: position, priority, tags, since when, and why."""
    from locktender.base import names
    from locktender.cli.arguments import whole
    from locktender.cli.tables import ago, now, shorten, table, tags

    most = names.count(whole(limit, "limit"), "limit", maximum=100_000)
    with shell.connect() as client:
        found = client.queue.explained(most)
    entries = [(each, each.why) for each in found.queue]
    if shell.json:
        shell.data(found.queue)
    elif not entries:
        shell.say("[dim]No run is queued.[/] See: locktender runs list")
    else:
        since, short = now(), shorten(info.run.id for info, _ in entries)
        rows = [
            [
                str(info.position),
                short[info.run.id],
                escape(info.run.flow.rpartition(":")[2]),
                str(info.run.priority),
                ago(info.run.queued_at, since),
                tags(info.run.tags),
                escape(_first(why)),
            ]
            for info, why in entries
        ]
        columns = (">pos", "run", "flow…", ">prio", "since", "tags…", "waits for~")
        shell.out.print(table(*columns, rows=rows))
    if found.more:
        of = f"{found.total:,}" if found.total is not None and found.total > most else "more"
        shell.note(f"These are the first {len(entries):,} of {of}: queue list --limit N")


def _first(why: Why) -> str:
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
    priority: Annotated[list[str], typer.Argument(metavar="[RUN]... N", help="Higher goes first.")],
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

    *run, number = priority
    wanted = whole(number, "priority", "locktender queue reprioritise RUN 20") or 0
    with shell.connect() as client:
        chosen = choose(client, "reprioritise", run, None, tag, flow)
        if not proceeds(shell, client, chosen, "reprioritise", QUEUED, dry_run=dry_run, yes=yes):
            return
        asked = client.queue.reprioritise(chosen.runs, wanted, tags=chosen.tags, flow=flow)
    shell.done(f"priority {wanted} {asked}", asked)
