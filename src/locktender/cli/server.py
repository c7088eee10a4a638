"""`server`: a process that leads if there is no leader, and serves its state over HTTP."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from locktender.cli.context import Context, NumberCommand, command, log_lines
from locktender.cli.http_options import AllowedHost, AuthOption, TlsCert, TlsKey, TrustedProxy
from locktender.cli.more_workers import Label, MaxWorkers, OwnProvisioner, Wanted
from locktender.cli.run import Pool, Set
from locktender.cli.worker import PANEL, WithParent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from locktender.cli.shutdown import StopRequests
    from locktender.client.core import Core
    from locktender.store.postgres.local import LocalPostgres

PORT = 8470
FOLDER = ".locktender/postgres"
_LOCAL = "--local-postgres"
ELECTION_SECONDS = 2.0
"""How long the first line of output may wait for an election."""


class _ServerCommand(NumberCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--local-postgres` may stand alone."""
        given = list(args)
        for index, each in enumerate(given):
            if each == _LOCAL and (index + 1 == len(given) or given[index + 1].startswith("-")):
                given[index] = f"{_LOCAL}={FOLDER}"
        return super().parse_args(ctx, given)


def register(app: typer.Typer) -> None:
    command(app, "server", panel=PANEL)(server)
    app.registered_commands[-1].cls = _ServerCommand


def server(
    shell: Context,
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65_535, help="0 picks one that is free."),
    ] = PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Who may ask: 127.0.0.1 is this machine alone."
        ),
    ] = "127.0.0.1",
    no_api: Annotated[
        bool,
        typer.Option("--no-api", help="Serve only /health, /ready, /metrics and /api/v1/demand."),
    ] = False,
    auth: AuthOption = None,
    allowed_host: AllowedHost = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    trusted_proxy: TrustedProxy = None,
    local_postgres: Annotated[
        str | None,
        typer.Option(
            _LOCAL,
            metavar="[DIR]",
            help=f"Run PostgreSQL here too, with its data in DIR ({FOLDER}), and use it as the store.",
            show_default=False,
        ),
    ] = None,
    spawn: Annotated[
        list[str] | None,
        typer.Option(
            "--spawn",
            metavar="FILE.py",
            help="Start workers with this file when tasks wait for nothing but a worker. Repeatable.",
        ),
    ] = None,
    max_workers: MaxWorkers = None,
    label: Label = None,
    provisioner: OwnProvisioner = None,
    pool: Pool = None,
    set_: Set = None,
    with_parent: WithParent = False,
) -> int:
    """Lead if there is no leader, until SIGTERM. Workers run the tasks.

    Start two on one store and the second takes over when the first dies. Each
    serves the HTTP API, /health, /ready and /metrics, whether it leads or not.
    With --spawn it also starts workers for what overflows; they end when idle.
    """
    from locktender.base.errors import InvalidInput
    from locktender.cli import arguments, more_workers

    if local_postgres is not None and shell.url is not None:
        raise InvalidInput(
            f"{_LOCAL} and --url cannot be used together: each names a store.",
            field="url",
            hint="Leave one of them out.",
        )
    overrides = arguments.settings(set_ or ())
    if pool:
        overrides["pools"] = arguments.pools(pool)
    overrides |= more_workers.given(max_workers, label)
    # Wrong settings are refused before anything is started.
    settings = shell.settings(**overrides)
    wanted = more_workers.wanted(spawn, provisioner, settings)
    more_workers.check_wanted(wanted, settings)
    log_lines(shell, settings.log_level)
    folder = None if local_postgres is None else Path(local_postgres)
    reached: dict[str, Any] = {
        "auth": auth,
        "allowed_hosts": allowed_host or (),
        "proxies": trusted_proxy or (),
        "tls_cert": tls_cert,
        "tls_key": tls_key,
    }
    asyncio.run(
        _serve(
            shell,
            overrides,
            folder,
            (host, port),
            wanted,
            with_parent=with_parent,
            api=not no_api,
            reached=reached,
        )
    )
    return 0


async def _serve(
    shell: Context,
    overrides: dict[str, Any],
    folder: Path | None,
    at: tuple[str, int],
    wanted: Wanted,
    *,
    with_parent: bool,
    api: bool,
    reached: dict[str, Any],
) -> None:
    from locktender.cli.http_options import check_tokens
    from locktender.cli.more_workers import started
    from locktender.cli.shutdown import StopRequests, serve
    from locktender.server.connections import allow_files
    from locktender.server.options import http_options
    from locktender.server.web import bind, is_loopback, serving, url_of

    allow_files()
    stop = StopRequests()
    stop.listen(with_parent=with_parent)
    async with AsyncExitStack() as opened:
        listener = opened.enter_context(bind(*at))
        options = http_options(loopback=not api or is_loopback(listener), **reached)
        if not api and not is_loopback(listener):
            shell.note("Anyone who reaches this address can read what is served there.")
        database: LocalPostgres | None = None
        if folder is not None:
            database = await opened.enter_async_context(_postgres(shell, folder))
            shell = msgspec.structs.replace(shell, url=database.url)
        settings = shell.settings(**overrides)
        if options.auth == "tokens":
            await check_tokens(shell, settings)

        async def ready(core: Core) -> None:
            await opened.enter_async_context(
                serving(core, listener, demand=True, api=api, options=options)
            )
            await _elected(core, stop)
            await _say(shell, core, url_of(listener, options.scheme), listener, database)

        more = started(wanted, settings)
        await serve(settings, stop, ready, lead=True, work=False, more=more)
    shell.note(f"ended: {stop.reason or 'stop requested'}")


@asynccontextmanager
async def _postgres(shell: Context, folder: Path) -> AsyncGenerator[LocalPostgres]:
    """PostgreSQL on `folder`, until the last process that uses it ends."""
    from locktender.base.errors import InvalidInput

    try:
        from locktender.store.postgres import local
    except ImportError as error:
        raise InvalidInput(
            f"{_LOCAL} needs what is not installed.",
            field="local_postgres",
            hint="Try: pip install 'locktender[local-postgres]'",
        ) from error
    database = await asyncio.to_thread(local.start, folder)
    try:
        yield database
    finally:
        if not await asyncio.to_thread(database.stop):
            shell.note(f"PostgreSQL in {folder} keeps running: other processes use it.")


async def _elected(core: Core, stop: StopRequests) -> None:
    """Returns when there is a leader, this process or another: the first line of output names it."""
    from locktender.base.errors import StoreError

    engine = core.engine
    if engine is None or engine.election is None:
        return
    until = asyncio.get_running_loop().time() + ELECTION_SECONDS
    while asyncio.get_running_loop().time() < until and not stop.reason:
        try:
            leader = await core.store.leader()
        except StoreError:
            leader = None
        if engine.metrics.term or leader not in (None, engine.election.owner):
            return
        await asyncio.sleep(0.02)


async def _say(
    shell: Context, core: Core, http: str, listener: Any, database: LocalPostgres | None
) -> None:
    from locktender.server.web import port_of

    leader = await core.store.leader()
    election = None if core.engine is None else core.engine.election
    leads = leader is not None and election is not None and leader == election.owner
    port = port_of(listener)
    store = core.settings.shown_url if database is None else database.url
    if shell.json:
        shell.data(
            {
                "pid": os.getpid(),
                "url": http,
                "port": port,
                "store": store,
                "leads": leads,
                "leader": leader,
            }
        )
        sys.stdout.flush()
        return
    role = "it leads" if leads else "another process leads; this one stands by"
    if leader is None:
        role = "no process leads yet"
    shell.say(f"server on {http}, store {store}: {role}")
    shell.say(f"  {http}/health  {http}/metrics  {http}/api/docs")
    if database is not None:
        shell.say(
            f"  workers on this machine: locktender worker FILE.py --url {shlex.quote(store)}"
        )
