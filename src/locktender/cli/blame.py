"""`blame` and `limits cost`: what the time of a run went into, and what each limit cost in waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from locktender.cli.context import Context, command
from locktender.cli.output import escape

if TYPE_CHECKING:
    from locktender.observe.blame import Blame
    from locktender.observe.holders import LimitCost

COLUMNS = ("gate…", ">waited", ">waits", ">each", "held by", ">for", "tags…")
PANEL = "Beside a live engine, or without one"


def register(app: typer.Typer) -> None:
    command(app, "blame", panel=PANEL)(blame)


def blame(
    shell: Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its start.")],
) -> None:
    """What the time of a run went into: own work, each gate, hand-off. They add up to its wall time.

    locktender blame 01k5

    locktender blame 01k5 --json
    """
    with shell.connect() as client:
        answer = client.runs.find(run).blame()
    if shell.json:
        shell.data(answer)
        return
    _show(shell, answer)


def _show(shell: Context, answer: Blame) -> None:
    first, *rest = answer.text().splitlines()
    shell.say(f"[bold]{escape(first)}[/]")
    for line in rest:
        bold = line.startswith(("  sum", "Critical"))
        shell.say(f"[bold]{escape(line)}[/]" if bold else escape(line))


def cost(
    shell: Context,
    last: Annotated[
        str, typer.Option("--last", metavar="TIME", help="How far back: 1h, 24h, 7d.")
    ] = "24h",
) -> None:
    """What each limit cost in waiting: how long tasks and runs waited there, and for whom.

    locktender limits cost --last 24h
    """
    with shell.connect() as client:
        costs = client.limits.cost(last)
    if shell.json:
        shell.data(costs)
        return
    if not costs:
        shell.say(
            f"[dim]No wait has ended within {last}. Waits that go on: locktender why RUN, pools list.[/]"
        )
        return
    from locktender.cli.tables import shorten, table

    short = shorten(holder.run for each in costs for holder in each.to)
    rows = [row for each in costs for row in cost_rows(each, short)]
    shell.out.print(table(*COLUMNS, rows=rows))


def cost_rows(each: LimitCost, short: Mapping[str, str]) -> Iterator[list[str]]:
    """A line for each holder, so that a line is short."""
    from locktender.base.durations import spoken
    from locktender.cli.tables import shown, tags

    average = spoken(each.us // max(1, each.waits))
    cells = [shown(each.gate), spoken(each.us), f"{each.waits:,}", average]
    for to in each.to:
        yield [*cells, shown(short[to.run]), spoken(to.us), tags(to.tags)]
        cells = [""] * len(cells)
    if not each.to:
        yield [*cells, "", "", ""]
