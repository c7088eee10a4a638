"""`flows`: pause and resume all runs of a flow."""

from __future__ import annotations

from typing import Annotated

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.tables import shown

FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="The name of a flow.")]


def register(app: typer.Typer) -> None:
    noun = group(app, "flows", "Flows: list paused ones, pause, resume.")
    command(noun, "list")(list_)
    command(noun, "pause")(pause)
    command(noun, "resume")(resume)


def list_(shell: Context) -> None:
    """The flows that are paused, since when, by whom and why."""
    from locktender.cli.tables import ago, now, table

    with shell.connect() as client:
        found = client.flows.paused()
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say("[dim]No flow is paused.[/]")
        return
    since = now()
    rows = [
        [
            shown(each.name),
            ago(each.since, since) if each.since else "",
            shown(each.by),
            shown(each.reason),
        ]
        for each in found
    ]
    shell.out.print(table("flow…", "paused", "by…", "reason…", rows=rows))


def pause(
    shell: Context,
    flow: FlowName,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Kept in the history, shown by why.")
    ] = "",
) -> None:
    """Start nothing of a flow any more, neither runs nor tasks; what runs goes on."""
    with shell.connect(create=True) as client:
        client.flows.pause(flow, reason)
    shell.done(f"flow {shown(flow)} is paused", {"paused": flow})


def resume(shell: Context, flow: FlowName) -> None:
    """Let a paused flow go on."""
    with shell.connect() as client:
        client.flows.resume(flow)
    shell.done(f"flow {shown(flow)} goes on", {"resumed": flow})
