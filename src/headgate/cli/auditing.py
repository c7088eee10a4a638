"""`audit`: the whole history against every promise, and how close to its limit each thing came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from headgate.cli.shell import Shell, command

if TYPE_CHECKING:
    from rich.table import Table

    from headgate.observe.checker import History, Peak
    from headgate.store.protocol import Store

PAGE = 10_000
SLACK_US = 2_000_000
"""How long before its commit a leader may have read the clock on a busy machine."""
MOST_SHOWN = 20


def register(app: typer.Typer) -> None:
    command(app, "audit", panel="Beside a live engine, or without one")(audit)


def audit(shell: Shell) -> int:
    """Check the whole history against every promise; exit 1 if one was broken."""
    from headgate.observe.checker import check, peaks, promises

    with shell.read() as reading:
        history = reading.call(load_history(reading.store))
    violations, highest = check(history), peaks(history)
    if shell.json:
        shell.data(
            {
                "events": len(history.events),
                "promises": sorted(promises()),
                "peaks": highest,
                "violations": violations,
            }
        )
        return 1 if violations else 0
    if highest:
        shell.out.print(peaks_table(highest))
    shell.say(
        f"{len(history.events):,} events, {len(promises())} promises: {_verdict(len(violations))}"
    )
    for violation in violations[:MOST_SHOWN]:
        shell.say(f"  [red]{escape(str(violation))}[/]")
    if len(violations) > MOST_SHOWN:
        shell.say(f"  and {len(violations) - MOST_SHOWN} more; --json has all")
    return 1 if violations else 0


def _verdict(broken: int) -> str:
    return f"[bold red]{broken} broken[/]" if broken else "[bold green]all kept[/]"


async def load_history(store: Store) -> History:
    """Everything that happened, with the graphs it refers to."""
    import msgspec

    from headgate.base.events import Event, unpack
    from headgate.base.graph import Graph
    from headgate.observe.checker import History
    from headgate.store.protocol import EventFilter

    events: list[Event] = []
    after = 0
    while rows := await store.events(EventFilter(after=after, limit=PAGE)):
        events += [event for row in rows for event in unpack(row)]
        after = rows[-1].seq
    digests = {event.data["graph"] for event in events if "graph" in event.data}
    decode: Any = msgspec.json.Decoder(Graph).decode
    graphs = {digest: decode(await store.graph(digest)) for digest in digests}
    # Only where nobody leads can nothing be on its way while this reads.
    counts = await store.counts()
    idle = not counts.queued and not counts.executing and await store.leader() is None
    return History(events, graphs, complete=idle, slack_us=SLACK_US)


def peaks_table(peaks: list[Peak]) -> Table:
    from headgate.cli.tables import table

    rows = [
        [
            escape(peak.name),
            "∞" if peak.limit < 0 else str(peak.limit),
            str(peak.peak),
            "[green]yes[/]" if peak.never_exceeded else "[bold red]NO[/]",
        ]
        for peak in peaks
    ]
    return table("what…", ">limit", ">peak", "never exceeded", rows=rows)
