"""`flows`: those that are announced, and pause and resume of all runs of one."""

from __future__ import annotations

from typing import Annotated

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.tables import shown

FlowName = Annotated[str, typer.Argument(metavar="FLOW", help="The name of a flow.")]


def register(app: typer.Typer) -> None:
    noun = group(app, "flows", "Flows: list, pause, resume.")
    command(noun, "list")(list_)
    command(noun, "pause")(pause)
    command(noun, "resume")(resume)


def list_(shell: Context) -> None:
    """Flows that workers have announced, and paused ones: since when, by whom and why.

    locktender flows list --json
    """
    from locktender.cli.tables import ago, now, table

    with shell.connect() as client:
        found = client.flows.list()
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say("[dim]No worker has announced a flow.[/] Start one: locktender worker FILE.py")
        return
    since = now()
    rows = [
        [
            shown(each.name),
            "open" if each.state == "open" else f"[magenta]{each.state}[/]",
            ago(each.paused_since, since) if each.paused_since else "",
            shown(each.paused_by or ""),
            shown(each.reason),
        ]
        for each in found
    ]
    shell.out.print(table("flow…", "state", "since", "by…", "reason…", rows=rows))


def pause(
    shell: Context,
    flow: FlowName,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Kept in the history, shown by why.")
    ] = "",
) -> None:
    """Start nothing of a flow any more, neither runs nor tasks; what runs goes on.

    locktender flows pause import --reason "the source is down"
    """
    with shell.connect() as client:
        client.flows.pause(flow, reason)
    shell.done(f"flow {shown(flow)} is paused", {"paused": flow})


def resume(shell: Context, flow: FlowName) -> None:
    """Let a paused flow go on.

    locktender flows resume import
    """
    with shell.connect() as client:
        client.flows.resume(flow)
    shell.done(f"flow {shown(flow)} goes on", {"resumed": flow})
