"""`db copy` and `db backup`: a whole store in another place, checked there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from locktender.cli.context import Context
from locktender.cli.output import escape

NAMES = {
    "event": "rows of history",
    "task": "tasks",
    "run": "runs",
    "graph": "graphs",
    "blob": "blobs",
}


def copy(
    shell: Context,
    source: Annotated[str, typer.Argument(metavar="FROM", help="A SQLite file or postgresql://…")],
    target: Annotated[str, typer.Argument(metavar="TO", help="An empty one.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Also while FROM is in use.", metavar=""),
    ] = False,
) -> int:
    """Copy a whole store into an empty one, then check the copy. An interrupted copy starts over."""
    import asyncio

    from locktender.base.errors import InvalidInput
    from locktender.store.copying import Copied, check_source
    from locktender.store.copying import copy as copy_store
    from locktender.store.open import place_for

    if _same(source, target):
        raise InvalidInput(
            "FROM and TO are the same store.",
            field="to",
            hint="A copy goes into a new file, or into a schema of its own: ?schema=NAME in the url.",
        )
    asyncio.run(_check_exists(source))
    reported: dict[str, int] = {}

    def progress(table: str, done: int) -> None:
        if done - reported.get(table, 0) >= 100_000:
            reported[table] = done
            shell.note(f"[dim]{done:,} {NAMES.get(table, table)}[/]")

    async def work() -> Copied:
        origin = place_for(source)
        await check_source(origin, force=force)
        return await copy_store(origin, place_for(target), progress)

    copied = asyncio.run(work())
    violations = _check_copy(shell, target)
    if shell.json:
        shell.data(
            {
                "rows": copied.rows,
                "renumbered": copied.renumbered,
                "violations": len(violations),
            }
        )
        return 1 if violations else 0
    rows = ", ".join(f"{copied.rows[table]:,} {name}" for table, name in NAMES.items())
    shell.say(f"copied {rows}")
    if where := shell.settings().blob_url:
        shell.say(f"large values at {escape(where)} are not copied: the copy reads them there")
    if copied.renumbered:
        shell.say(
            "[dim]rows of history have numbers of their own in the copy, in the same order[/]"
        )
    _say_checked(shell, violations)
    return 1 if violations else 0


def _say_checked(shell: Context, violations: list[Any]) -> None:
    verdict = f"[bold red]{len(violations)} broken[/]" if violations else "[bold green]all kept[/]"
    shell.say(f"checked the copy: {verdict}")
    for violation in violations[:5]:
        shell.say(f"  [red]{escape(str(violation))}[/]")


def backup(
    shell: Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that does not exist yet.")],
) -> int:
    """Copy a SQLite store into a new file beside live engines, then check the copy."""
    from dataclasses import asdict
    from shlex import quote

    from locktender.base.errors import InvalidInput
    from locktender.cli.tables import size
    from locktender.store.open import is_server, needs_database
    from locktender.store.sqlite.backup import back_up

    settings = shell.settings()
    url = settings.url
    if is_server(url):
        raise needs_database("db backup", settings.shown_url)
    if "://" in url:
        from locktender.store.postgres.options import parse

        options = parse(url)
        raise InvalidInput(
            "db backup copies a SQLite file; this store is in PostgreSQL.",
            field="url",
            got=options.shown,
            hint=f"pg_dump --format=custom --schema={options.schema} --file={quote(file)}"
            f" {quote(options.dump_url)}",
        )
    if settings.blob_url:
        from locktender.store.blob_url import BlobPlace

        done = back_up(url, file, None, BlobPlace(settings.blob_url).has)
    else:
        done = back_up(url, file)
    violations = _check_copy(shell, done.file)
    if shell.json:
        shell.data({**asdict(done), "violations": len(violations)})
        return 1 if violations else 0
    shell.say(
        f"wrote {escape(done.file)}: {size(done.bytes)}, {done.runs:,} runs,"
        f" {done.history:,} rows of history"
    )
    if done.blobs:
        shell.say(f"wrote {escape(done.blobs_folder)}: {done.blobs:,} large values; keep it beside")
    if done.elsewhere:
        shell.say(
            f"{done.elsewhere:,} large values stay at {escape(settings.blob_url)}: keep them too"
        )
    _say_checked(shell, violations)
    return 1 if violations else 0


async def _check_exists(url: str) -> None:
    """Refuses a store that does not exist yet, without making it."""
    from locktender.store.migrate import no_store
    from locktender.store.open import is_server, place_for

    if is_server(url):
        return  # opening it reports the error
    place = place_for(url)
    if not await place.exists():
        raise no_store(place.where, "Check FROM: it must name a store that exists.")


def _same(source: str, target: str) -> bool:
    """Whether two urls name one store, by their text; of files, by the file system."""
    if "://" in source or "://" in target:
        return source == target
    return Path(source).resolve() == Path(target).resolve()


def _check_copy(shell: Context, target: str) -> list[Any]:
    from msgspec.structs import replace

    from locktender.observe.checkpoint import audit

    with replace(shell, url=target).read() as reading:
        return reading.call(audit(reading.store, full=True)).violations
