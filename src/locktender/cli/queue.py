"""`queue`: runs that have not started, in their order, each with what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from locktender.cli.bulk import DryRun, FlowName, Some, Tag, Yes, choose, proceeds
from locktender.cli.context import Context, command, group
from locktender.cli.runs import Limit, RunName

if TYPE_CHECKING:
    from locktender.client.views import QueueInfo
    from locktender.observe.answer import Why
    from locktender.store.protocol import Store

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
    with shell.read() as reading:
        entries, more, total = reading.call(_explained(reading.store, most))
    if shell.json:
        shell.data(
            [{"position": info.position, "run": info.run, "why": why} for info, why in entries]
        )
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
    if more:
        of = f"{total:,}" if total is not None and total > most else "more"
        shell.note(f"These are the first {len(entries):,} of {of}: queue list --limit N")


async def _explained(
    store: Store, most: int
) -> tuple[list[tuple[QueueInfo, Why]], bool, int | None]:
    """The first queued runs with what each waits for; whether there are more, and how many in all."""
    from locktender.client.views import QueueInfo, RunInfo
    from locktender.observe.rebuilt import queue_in_order
    from locktender.observe.why_queued import queued_whys

    entries = await queue_in_order(store, most + 1)
    whys, total = await queued_whys(store, entries[:most])
    infos = [QueueInfo(entry.position, RunInfo.of(entry.run)) for entry in entries[:most]]
    return list(zip(infos, whys, strict=False)), len(entries) > most, total


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
