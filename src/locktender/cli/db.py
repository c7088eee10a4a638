"""`db`: the store itself: status, schema, pruning, copies, roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from locktender.cli.context import Context, command, group
from locktender.cli.db_copies import backup, copy
from locktender.cli.output import escape

if TYPE_CHECKING:
    from locktender.store.copying import Purpose
    from locktender.store.maintenance import Status


def register(app: typer.Typer) -> None:
    noun = group(app, "db", "The store: what it holds, its schema, retention, copies.")
    command(noun, "status")(status)
    command(noun, "migrate")(migrate)
    command(noun, "prune")(prune)
    command(noun, "copy")(copy)
    command(noun, "backup")(backup)
    command(noun, "grant-worker")(grant_worker)
    command(noun, "grant-submit")(grant_submit)
    command(noun, "checkpoint", hidden=True)(checkpoint)


# -- status


def status(shell: Context) -> int:
    """What the store is and holds; exit 1 if its counters disagree with its rows. Changes nothing."""
    import asyncio

    from locktender.store.open import place_for

    found = asyncio.run(place_for(shell.settings().url).status())
    if shell.json:
        shell.data(_facts(found))
        return 0 if found.counters_agree else 1
    from locktender.cli.tables import table

    rows = [[f"[dim]{name}[/]", text] for name, text in _lines(found)]
    shell.out.print(table("what", "is~", rows=rows))
    return 0 if found.counters_agree else 1


def _facts(found: Status) -> dict[str, Any]:
    from locktender.observe.checkpoint import add_up

    marks = add_up(found.remarks)
    last = marks.last
    return {
        "kind": found.kind,
        "where": found.where,
        "schema": found.schema,
        "known": found.known,
        "pending": found.pending,
        "copying": found.copying,
        "now": found.now,
        "runs": found.runs,
        "rows": found.rows,
        "estimated": found.estimated,
        "oldest": found.oldest,
        "newest": found.newest,
        "bytes": found.bytes,
        "leader": None if found.led is None else found.led.owner,
        "term": None if found.led is None else found.led.term,
        "workers": [worker.id for worker in found.workers],
        "checkpoint": None
        if last is None
        else {
            "seq": last.seq,
            "at": last.at,
            "who": last.who,
            "events": last.events,
            "violations": last.violations,
            "rules": last.rules,
        },
        "pruned": {"runs": marks.runs, "until": marks.until},
        "counters_agree": found.counters_agree,
        "server": found.server,
    }


def _lines(found: Status) -> list[tuple[str, str]]:
    from locktender.cli.audit import pruned
    from locktender.cli.tables import STATE_COLOURS, size, state
    from locktender.observe.checkpoint import add_up

    lines = [("store", escape(found.where)), ("schema", _schema(found))]
    if not found.applied:
        return lines
    marks = add_up(found.remarks)
    several = sorted(found.runs, key=list(STATE_COLOURS).index)
    runs = ", ".join(f"{found.runs[each]:,} {state(each)}" for each in several)
    about = "about " if found.estimated else ""
    rows = [
        f"{about}{found.rows['tasks']:,} tasks",
        f"{about}{found.rows['history']:,} rows of history",
    ]
    rows += [f"{found.rows[name]:,} {name}" for name in ("graphs", "blobs")]
    lines += [
        ("runs", runs or "none yet"),
        ("rows", ", ".join(rows)),
        ("oldest run", _ago(found, found.oldest)),
        ("newest run", _ago(found, found.newest)),
        ("on disk", size(found.bytes)),
        ("leader", _leader(found)),
        ("workers", ", ".join(escape(worker.id) for worker in found.workers) or "none"),
        ("counters", "agree" if found.counters_agree else "[bold red]disagree with the rows[/]"),
        ("checked", _checked(found, marks.last)),
    ]
    if marks.runs:
        lines.append(("pruned", pruned(marks)))
    if found.server is not None:
        lines.append(("server", _server(found)))
    return lines


def _schema(found: Status) -> str:
    if found.copying:
        return "[red]a copy that was not finished[/]; repeat locktender db copy: it starts over"
    if not found.applied:
        return "none yet; opening the store creates it, or locktender db migrate"
    if found.pending:
        return f"{found.schema}, [yellow]{found.pending} pending[/]; try locktender db migrate"
    if found.schema > found.known:
        return f"[red]{found.schema}, newer than this locktender's {found.known}[/]: upgrade locktender"
    return f"{found.schema}, up to date"


def _ago(found: Status, at: int | None) -> str:
    from locktender.cli.tables import ago
    from locktender.client.views import instant

    return "-" if at is None else f"queued {ago(instant(at), instant(found.now))}"


def _leader(found: Status) -> str:
    if found.led is None:
        return "none"
    return f"{escape(found.led.owner)}, term {found.led.term}"


def _checked(found: Status, last: Any) -> str:
    from locktender.cli.tables import ago
    from locktender.client.views import instant

    if last is None:
        return "no checkpoint yet"
    verdict = f"[red]{last.violations} broken[/]" if last.violations else "[green]all kept[/]"
    when = ago(instant(last.at), instant(found.now))
    return f"{last.events:,} events {when} by {escape(last.who)}: {verdict}"


def _server(found: Status) -> str:
    from locktender.base.clock import SECOND
    from locktender.base.durations import spoken

    server = found.server
    if server is None:
        return ""
    text = (
        f"PostgreSQL {server.version // 10_000}, {server.connections} of {server.most_connections}"
        f" connections in use, {server.ours} by locktender"
    )
    if server.lag_us > SECOND:
        text += (
            f"; [yellow]an open transaction delays audit and pruning by {spoken(server.lag_us)}[/]"
        )
    return text


# -- migrate


def migrate(
    shell: Context,
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; exit 1 if something is pending.", metavar=""),
    ] = False,
) -> int:
    """Bring the schema up to date, beside engines that work: locks are short and given up again."""
    import asyncio

    from locktender.base.errors import NotFound
    from locktender.store.open import place_for

    place = place_for(shell.settings().url)
    if check:
        try:
            found = asyncio.run(place.status())
            applied, known = found.schema, found.known
        except NotFound:
            applied, known = 0, 1
        pending = applied < known
        text = f"schema {applied}: " + ("something is pending" if pending else "up to date")
        shell.done(text, {"schema": applied, "known": known, "pending": pending})
        return 1 if pending else 0
    done = asyncio.run(place.migrate())
    moved = done.before != done.after
    text = f"schema {done.before} → {done.after}" if moved else f"schema {done.after}: up to date"
    shell.done(text, {"from": done.before, "to": done.after})
    return 0


# -- prune


def prune(
    shell: Context,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="TIME", help="Runs that ended so long ago; else `retention`."
        ),
    ] = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="N", help="Leave the newest N ended runs.")
    ] = "0",
    batch: Annotated[
        str, typer.Option("--batch", metavar="N", help="Runs removed in one transaction.")
    ] = "500",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go.", metavar="")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where the history breaks a promise.", metavar=""),
    ] = False,
) -> None:
    """Remove runs that ended long ago, beside a live engine. The history is checked first."""
    from locktender.base import names
    from locktender.base.durations import microseconds
    from locktender.base.errors import InvalidInput
    from locktender.cli.arguments import duration, whole
    from locktender.observe.prune import Forget, Forgotten, forget

    settings = shell.settings()
    age = settings.retention_us
    if older_than is not None:
        age = microseconds(duration(older_than), "older-than", minimum=0)
    if age is None:
        raise InvalidInput(
            "--older-than is not given.",
            field="older-than",
            hint="e.g. --older-than 30d, or the setting retention.",
        )
    kept = names.count(whole(keep, "keep"), "keep", minimum=0)
    size = names.count(whole(batch, "batch"), "batch", maximum=10_000)
    with shell.read() as reading:

        async def work() -> Forgotten:
            before = await reading.store.now() - age
            wanted = Forget(before, reading.core.who, kept, size, dry_run=dry_run, force=force)
            return await forget(reading.store, wanted)

        done = reading.call(work())
    if shell.json:
        shell.data({**_counts(done), "dry_run": dry_run, "checkpoint": done.checkpoint})
        return
    if not done.runs:
        shell.say("[dim]No run is that old.[/]")
        return
    rows = f"{done.tasks:,} tasks and {done.history:,} rows of history"
    if dry_run:
        shell.say(f"{done.runs:,} runs would be removed, with {rows}.")
        return
    if done.checkpoint is not None:
        shell.say(_found(done.checkpoint))
    left = f", {done.graphs:,} graphs and {done.blobs:,} large values that no run refers to"
    shell.say(
        f"removed {done.runs:,} runs, with {rows}{left if done.graphs or done.blobs else ''}."
    )


def _counts(done: Any) -> dict[str, int]:
    rows = {name: getattr(done, name) for name in ("runs", "tasks", "graphs", "blobs")}
    return {**rows, "history": done.history}


def _found(checkpoint: Any) -> str:
    verdict = "[bold green]all kept[/]"
    if checkpoint.violations:
        rules = ", ".join(f"{rule} {count}" for rule, count in checkpoint.rules.items())
        verdict = f"[bold red]{checkpoint.violations} broken[/] ({rules})"
    return f"checked {checkpoint.events:,} events up to seq {checkpoint.seq}: {verdict}"


def checkpoint(
    shell: Context,
    before: Annotated[
        str, typer.Option("--before", metavar="INSTANT", help="Also remove rows of no run.")
    ] = "0",
) -> None:
    """Check the history and store the result, as retention does before it prunes."""
    from locktender.base import names
    from locktender.cli.arguments import whole
    from locktender.observe.checkpoint import Checkpoint, write_checkpoint
    from locktender.observe.prune import thin_out

    until = names.count(whole(before, "before"), "before", minimum=0, maximum=2**62)
    with shell.read() as reading:

        async def work() -> Checkpoint:
            found = await write_checkpoint(reading.store, reading.core.who)
            while until and await thin_out(reading.store, until, found.seq, reading.core.who):
                pass
            return found

        found = reading.call(work())
    shell.done(_found(found), found)


# -- roles


_Role = Annotated[str, typer.Argument(metavar="ROLE", help="A role of the PostgreSQL server.")]
_Revoke = Annotated[bool, typer.Option("--revoke", help="Take the rights back.", metavar="")]
_Print = Annotated[
    bool,
    typer.Option("--print", help="Only show the SQL, for psql; connects to nothing.", metavar=""),
]


def grant_worker(
    shell: Context, role: _Role, revoke: _Revoke = False, print_: _Print = False
) -> None:
    """Give a PostgreSQL role what a worker needs and nothing else. Again after an upgrade."""
    _grant(shell, "worker", role, revokes=revoke, prints=print_)


def grant_submit(
    shell: Context, role: _Role, revoke: _Revoke = False, print_: _Print = False
) -> None:
    """Let a PostgreSQL role submit runs in its own transactions, and nothing else."""
    _grant(shell, "submit", role, revokes=revoke, prints=print_)


def _grant(shell: Context, purpose: Purpose, role: str, *, revokes: bool, prints: bool) -> None:
    import asyncio

    from locktender.store.open import place_for

    place = place_for(shell.settings().url)
    if prints:
        script = place.grant_script(purpose, role, revokes=revokes)
        if shell.json:
            shell.data({"sql": script})
        else:
            print(script)
        return
    asyncio.run(place.grant(purpose, role, revokes=revokes))
    done = {"role": role, "purpose": purpose, "granted": not revokes}
    what = "do a worker's work" if purpose == "worker" else "submit runs in its transactions"
    may = "may no longer" if revokes else "may now"
    shell.done(f"the role {escape(role)} {may} {what} in {escape(place.where)}", done)
