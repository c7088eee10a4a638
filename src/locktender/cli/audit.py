"""`audit`: the history against every promise, and how close to its limit each thing came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from locktender.cli.context import Context, command
from locktender.cli.output import escape

if TYPE_CHECKING:
    from locktender.base.errors import NotFound
    from locktender.base.model import HeldUp
    from locktender.cli.tables import TextTable
    from locktender.client.bridge import StoreReader
    from locktender.observe.checker import Peak
    from locktender.observe.checkpoint import AuditScope, HistoryMarks
    from locktender.observe.history_reader import AuditBegin

MAX_SHOWN = 20
LAG_SHOWN_US = 1_000_000


def register(app: typer.Typer) -> None:
    command(app, "audit", panel="Beside a live engine, or without one")(audit)


def audit(
    shell: Context,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Read everything, not only what is new since the last audit.", metavar=""
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Only what was broken since then: 1h, or a moment."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="Only what was broken in this run.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="POOL", help="Only what was broken at this pool."),
    ] = None,
) -> int:
    """Check the history against every promise; exit 1 if one was broken.

    The whole history is checked, from where the last audit ended; the options select what is shown and counted.
    """
    from locktender.observe.checker import promises
    from locktender.observe.checkpoint import audit

    with shell.read() as reading:
        scope = reading.call(_scope(reading, since, run, pool))
        done = reading.call(audit(reading.store, full=full))
        limits, _ = reading.call(reading.store.limits())
        violations = reading.call(scope.select(reading.store, done.violations))
        held_up = reading.call(reading.store.held_up())
    highest, marks = done.peaks, done.marks
    if scope.bounded:
        # A peak is of a limit and of all times: of those that are asked for, a pool alone has one.
        highest = [peak for peak in highest if peak.name == f"pool:{pool}"]
    if pool is not None and pool not in limits.pools and not highest:
        peaks = (peak.name.removeprefix("pool:") for peak in done.peaks if peak.name[:5] == "pool:")
        raise _unknown_pool(pool, {*limits.pools, *peaks})
    if shell.json:
        shell.data(
            {
                "events": done.events,
                "began": done.began,
                "promises": sorted(promises()),
                "peaks": highest,
                "violations": violations,
                "lag_seconds": held_up.lag_us / 1_000_000,
                "pruned": {
                    "runs": marks.runs,
                    "until": marks.until,
                    "checked": marks.checked,
                    "violations": marks.forced,
                },
            }
        )
        return 1 if violations else 0
    if highest:
        shell.out.print(peaks_table(highest))
    shell.say(f"{done.events:,} events, {len(promises())} promises: {_verdict(len(violations))}")
    if others := len(done.violations) - len(violations):
        shell.say(f"[yellow]{others} more broken outside of what was asked for.[/]")
    if done.began.seq:
        shell.say(f"[dim]{_began(done.began)}[/]")
    if marks.runs:
        shell.say(pruned(marks))
    if held_up.lag_us > LAG_SHOWN_US:
        shell.say(f"[yellow]{lag(held_up)}[/]")
    for violation in violations[:MAX_SHOWN]:
        shell.say(f"  [red]{escape(str(violation))}[/]")
    if len(violations) > MAX_SHOWN:
        shell.say(f"  and {len(violations) - MAX_SHOWN} more; --json has all")
    return 1 if violations else 0


async def _scope(
    reading: StoreReader, since: str | None, run: str | None, pool: str | None
) -> AuditScope:
    from locktender.base.durations import instant_text, microseconds
    from locktender.base.errors import InvalidInput
    from locktender.cli.arguments import duration
    from locktender.client.runs_async import resolve
    from locktender.observe.checkpoint import AuditScope

    at, number = None, None
    if since is not None:
        try:
            at = await reading.store.now() - microseconds(duration(since), "since")
        except InvalidInput:
            try:
                at = instant_text(since, "since")
            except InvalidInput:
                raise InvalidInput(
                    "--since must be a duration, or a moment with a time zone.",
                    field="since",
                    got=since,
                    hint="e.g. --since 1h, or --since 2031-05-01T09:00+02:00",
                ) from None
    if run is not None:
        number = (await reading.core.row(await resolve(reading.core, run))).seq
    return AuditScope(at, number, pool)


def _unknown_pool(pool: str, known: set[str]) -> NotFound:
    from locktender.base.errors import NotFound
    from locktender.base.names import did_you_mean

    return NotFound(
        f"no rule and no peak of a pool {pool!r} is known.",
        field="pool",
        got=pool,
        hint=did_you_mean(pool, sorted(known)) or "`locktender pools list` shows them.",
    )


def _began(began: AuditBegin) -> str:
    from locktender.client.views import instant

    at = instant(began.at).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"From the audit of {at} on (seq {began.seq}): {began.events:,} of them are new."
        " --full reads everything."
    )


def lag(held_up: HeldUp) -> str:
    """What is said of the end of the history, where it cannot be checked yet."""
    from locktender.base.durations import spoken

    who = " ".join(escape(each.text()) for each in held_up.sessions if each.holds == "history")
    return (
        f"The last {spoken(held_up.lag_us)} are not checked: a transaction is open. {who}".rstrip()
    )


def pruned(marks: HistoryMarks) -> str:
    """The note on the part that was removed."""
    from locktender.client.views import instant

    until = instant(marks.until).strftime("%Y-%m-%d %H:%M:%S")
    broken = f", [yellow]{marks.forced} broken promises passed over[/]" if marks.forced else ""
    return f"{marks.runs:,} runs up to {until} were checked before and pruned{broken}."


def _verdict(broken: int) -> str:
    return f"[bold red]{broken} broken[/]" if broken else "[bold green]all kept[/]"


def peaks_table(peaks: list[Peak]) -> TextTable:
    from locktender.cli.tables import table

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
