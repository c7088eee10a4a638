"""`pools`: named resources whose slots all runs share, and which tasks hold them now."""

from __future__ import annotations

from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locktender.cli.context import Context, Expected, command, group
from locktender.cli.output import escape
from locktender.cli.tables import ago, shorten, table

if TYPE_CHECKING:
    from locktender.base.errors import InvalidInput
    from locktender.client.client import Client
    from locktender.client.pool_holders import PoolHolder
    from locktender.client.views import PoolInfo


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="db, api\\[acme], or api[*] for every key.")
]
NONE = "[dim]No pools yet.[/] Set one: locktender pools set db 4"


def register(app: typer.Typer) -> None:
    noun = group(app, "pools", "Shared resources: limits, slots in use, their holders.")
    command(noun, "list")(list_)
    command(noun, "info")(info)
    command(noun, "set")(set_)
    command(noun, "reset")(reset)
    command(noun, "pause")(pause)
    command(noun, "resume")(resume)
    command(noun, "delete")(delete)


def list_(shell: Context) -> None:
    """All pools that were set or that a task needs now."""
    with shell.connect() as client:
        pools = client.pools.list()
    if shell.json:
        shell.data(pools)
    elif not pools:
        shell.say(NONE)
    else:
        columns = ("pool…", ">used", ">limit", ">waiting", "lease", "rate", "state", "set by")
        shell.out.print(table(*columns, rows=[_row(pool) for pool in pools]))


def _row(pool: PoolInfo) -> list[str]:
    from locktender.base.durations import spoken

    full = pool.limit is not None and pool.used >= pool.limit
    used = f"[{'red' if full else 'green'}]{pool.used}[/]" if pool.used else "0"
    rate = "-" if pool.rate is None else f"{pool.rate} burst {pool.burst}"
    return [
        escape(pool.name),
        used,
        "∞" if pool.limit is None else str(pool.limit),
        f"[yellow]{pool.waiting}[/]" if pool.waiting else "0",
        "-" if pool.lease is None else spoken(round(pool.lease * 1_000_000)),
        rate,
        "[magenta]paused[/]" if pool.paused else "[red]full[/]" if full else "open",
        {"live": "operator", "declared": "code/config"}.get(pool.source, "nobody"),
    ]


def info(shell: Context, name: Name) -> None:
    """One pool, with the tasks that hold slots of it."""
    with shell.connect() as client:
        pool = client.pools.get(name)
        found = client.pools.holders(name)
    holders, now = found.holders, found.now
    if shell.json:
        import msgspec

        shown: dict[str, Any] = msgspec.to_builtins(pool)
        shell.data({**shown, "holders": holders})
        return

    columns = ("pool…", ">used", ">limit", ">waiting", "lease", "rate", "state", "set by")
    shell.out.print(table(*columns, rows=[_row(pool)]))
    if pool.paused_by:
        shell.say(f"Paused by {escape(pool.paused_by)} {ago(pool.paused_at, now)}.")
    if holders:
        short = shorten(holder.run for holder in holders)
        titles = ("run", "step…", ">task", ">slots", "held since", "state", "lease ends")
        shell.out.print(
            table(*titles, rows=[_holder_row(each, short[each.run], now) for each in holders])
        )
    else:
        shell.say("[dim]No slot is held now.[/]")


def _holder_row(holder: PoolHolder, run: str, now: datetime) -> list[str]:
    return [
        run,
        escape(holder.step),
        str(holder.task),
        str(holder.slots),
        ago(holder.since, now),
        f"[red]{holder.state}[/]" if holder.state in ("dead", "stalled") else holder.state,
        ago(holder.lease_until, now),
    ]


def set_(
    shell: Context,
    name: Name,
    limit: Annotated[
        str | None, typer.Argument(metavar="[LIMIT]", help="Slots; -1 is unlimited.")
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease", metavar="TIME", help="Keep a dead holder's slots so long; none: no longer."
        ),
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/TIME", help="Grants over time, e.g. 100/1m.")
    ] = None,
    burst: Annotated[
        str | None, typer.Option("--burst", metavar="N", help="Grants at once under a rate.")
    ] = None,
    expected: Expected = None,
) -> None:
    """Set a pool's limit, lease or rate. In force at once; survives restarts.

    locktender pools set db 4

    locktender pools set db 6 --if 4

    locktender pools set api --rate 100/1m --burst 5
    """
    from locktender.cli.arguments import duration, number, whole

    if limit is None and lease is None and rate is None and burst is None:
        raise _nothing_to_set(name)
    given: dict[str, Any] = {}
    if limit is not None:
        given["limit"] = number(limit)
    if lease is not None:
        given["lease"] = None if lease == "none" else duration(lease)
    if rate is not None:
        given["rate"] = None if rate == "none" else rate
    if burst is not None:
        given["burst"] = number(burst)
    with shell.connect(create=True) as client:
        client.pools.set(name, **given, expected=whole(expected, "if"))
        _show_in_force(shell, client, name, "is set to")


def _nothing_to_set(name: str) -> InvalidInput:
    from locktender.base.errors import InvalidInput
    from locktender.base.limits import pool_name

    pool = pool_name(name)
    return InvalidInput(
        f"say what to set for pool {pool!r}.",
        field="limit",
        hint=f"Try: locktender pools set {quote(pool)} 4 (-1 is unlimited).",
    )


def reset(shell: Context, name: Name) -> None:
    """Back to what code or configuration declares."""
    with shell.connect() as client:
        client.pools.reset(name)
        _show_in_force(shell, client, name, "is back to")


def pause(shell: Context, name: Name) -> None:
    """Start nothing more that needs the pool; tasks that hold slots finish."""
    with shell.connect() as client:
        client.pools.pause(name)
        _show_in_force(shell, client, name, "is paused at")


def resume(shell: Context, name: Name) -> None:
    """Let a paused pool go on."""
    with shell.connect() as client:
        client.pools.resume(name)
        _show_in_force(shell, client, name, "goes on with")


def delete(shell: Context, name: Name) -> None:
    """Delete a pool, until code or configuration declares it again."""
    with shell.connect() as client:
        client.pools.delete(name)
    shell.done(f"pool {escape(repr(name))} is deleted", {"deleted": name})


def _show_in_force(shell: Context, client: Client, name: str, verb: str) -> None:
    """What is in force now, and what it means for the tasks in it."""
    from locktender.base.errors import NotFound

    try:
        pool = client.pools.get(name)
    except NotFound:  # reset where nothing was declared
        text = f"pool {escape(repr(name))} is unlimited again"
        shell.done(text, {"name": name, "limit": None})
        return
    if shell.json:
        shell.data(pool)
        return
    rate = "" if pool.rate is None else f", rate {pool.rate} burst {pool.burst}"
    text = (
        f"pool {escape(repr(name))} {verb} {pool.limit_text}{rate};"
        f" {pool.used} in use, {pool.waiting} waiting"
    )
    if pool.limit is not None and pool.used > pool.limit:
        text += "; nothing new starts until use is below the limit"
    shell.say(text)
