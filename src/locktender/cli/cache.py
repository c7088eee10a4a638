"""`cache`: results of steps that are kept for calls with the same arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.runs import Limit
from locktender.cli.tables import shown

NOTHING = '[dim]No result is cached.[/] A step caches its results with: @step(cache="7d")'
StepOption = Annotated[
    str | None, typer.Option("--step", metavar="NAME", help="Only results of this step.")
]
FlowOption = Annotated[
    str | None, typer.Option("--flow", metavar="NAME", help="Only those that this flow made.")
]


def register(app: typer.Typer) -> None:
    noun = group(app, "cache", "Cached results of steps: list, show, clear.")
    command(noun, "list")(list_)
    command(noun, "show")(show)
    command(noun, "clear")(clear)


def list_(
    shell: Context, step: StepOption = None, flow: FlowOption = None, limit: Limit = "50"
) -> None:
    """Cached results, the newest first."""
    from locktender.cli.arguments import whole
    from locktender.cli.tables import ago, now, table

    with shell.connect() as client:
        found = client.cache.list(step=step, flow=flow, limit=whole(limit, "limit") or 0)
    if shell.json:
        shell.data(found)
        return
    if not found:
        shell.say(NOTHING)
        return
    since = now()
    rows = [
        [
            each.key[:12],
            shown(each.step),
            shown(each.flow.rpartition(":")[2] if each.scope == "flow" else "everywhere"),
            ago(each.made_at, since),
            ago(each.expires_at, since),
            f"{each.size:,}",
        ]
        for each in found
    ]
    shell.out.print(table("key", "step…", "for…", "made", "expires", ">bytes", rows=rows))


def show(
    shell: Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key, or the beginning of one.")],
) -> None:
    """One cached result with its value."""
    import msgspec

    from locktender.cli.tables import ago, now

    with shell.connect() as client:
        found = client.cache.get(key)
    if shell.json:
        shell.data(found)
        return
    since = now()
    shell.say(f"[bold]{found.key}[/]")
    shell.say(f"step {shown(found.step)}, made {ago(found.made_at, since)} by task {found.task}")
    shell.say(f"flow {shown(found.flow)}, shared: {found.scope}")
    shell.say(f"expires {ago(found.expires_at, since)}")
    text = msgspec.json.encode(found.value).decode()
    cut = f"{text[:500]} … ({len(text):,} characters; --json has all)"
    shell.say(f"[bold]value[/] {shown(text if len(text) <= 500 else cut)}")


def clear(shell: Context, step: StepOption = None, flow: FlowOption = None) -> None:
    """Forget cached results: runs submitted from now on take none of them."""
    with shell.connect() as client:
        count = client.cache.clear(step=step, flow=flow)
    what = "1 cached result is" if count == 1 else f"{count:,} cached results are"
    shell.done(f"{what} forgotten", {"cleared": count})
