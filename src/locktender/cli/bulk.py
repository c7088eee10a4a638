"""Runs that a command changes: by id, or all that match a filter, counted first and asked about."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from locktender.cli.context import Context

if TYPE_CHECKING:
    from locktender.client.client import Client
    from locktender.client.run import Run

Some = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids; or give a filter.")
]
Status = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        "--status",
        metavar="STATE",
        help="queued, running, failed …; active: has not ended.",
    ),
]
Tag = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Only with this tag.")
]
FlowName = Annotated[str | None, typer.Option("--flow", metavar="NAME", help="Only of this flow.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say how many runs match.", metavar="")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it.", metavar="")]


class ChosenRuns(NamedTuple):
    """Runs that were typed, or a filter. As keywords of the client's methods: `filters()`."""

    runs: list[Run[Any]] | None
    status: list[str] | None
    tags: dict[str, str]
    flow: str | None

    def filters(self) -> dict[str, Any]:
        return {"status": self.status, "tags": self.tags, "flow": self.flow}


def choose(
    client: Client,
    verb: str,
    run: list[str] | None,
    status: list[str] | None,
    tag: list[str] | None,
    flow: str | None,
) -> ChosenRuns:
    """What the command line names. Refuses none at all, and ids beside a filter."""
    from locktender.base.errors import InvalidInput
    from locktender.cli import arguments

    tags = arguments.tags(tag or ())
    filtered = bool(status or tags or flow)
    if run and filtered:
        raise InvalidInput(
            f"give ids of runs to {verb}, or a filter, not both.",
            field="run",
            got=" ".join(run),
            hint="A filter is --state, --tag and --flow together; runs list takes the same.",
        )
    if not run and not filtered:
        raise InvalidInput(
            f"say which runs to {verb}.",
            field="run",
            hint="Give ids of runs, or a filter: --state queued --tag tenant=acme --flow NAME",
        )
    found = [client.runs.find(each) for each in run] if run else None
    return ChosenRuns(found, status or None, tags, flow)


def proceeds(
    shell: Context,
    client: Client,
    chosen: ChosenRuns,
    verb: str,
    states: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
) -> bool:
    """Whether to go on. `states`: those that the command means where no --state is given.

    It counts for --dry-run, and before it asks: of a filter, at a terminal, without --yes.
    """
    asks = chosen.runs is None and not yes and not shell.json and sys.stdin.isatty()
    if not dry_run and not asks:
        return True
    if chosen.runs is not None:
        number = len(chosen.runs)
    else:
        number = client.runs.count(chosen.status or states, chosen.tags, chosen.flow)
    count = f"{number:,} run{'s' if number != 1 else ''}"
    if dry_run:
        shell.done(
            f"{count} would be asked to {verb}", {"matching": number, "verb": verb, "dry_run": True}
        )
        return False
    return number > 0 and typer.confirm(f"{verb} {count}?", err=True)
