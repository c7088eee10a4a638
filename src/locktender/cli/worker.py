"""`worker`: a process that runs tasks of the steps in the files it is given."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locktender.cli.context import Context, command, log_lines
from locktender.cli.run import Pool, Set

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from socket import socket

    from locktender.base.config import Settings
    from locktender.client.core import Core

PANEL = "Run many processes"

WithParent = Annotated[
    bool,
    typer.Option(
        "--with-parent",
        help="End when standard input ends, as it does when the process that started this one ends.",
        show_default=False,
        metavar="",
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "worker", panel=PANEL)(worker)


def worker(
    shell: Context,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE.py…", help="Files with steps and flows.")
    ] = None,
    app: Annotated[
        list[str] | None,
        typer.Option("--app", metavar="MODULE", help="A module with steps. Repeatable."),
    ] = None,
    lead: Annotated[
        bool,
        typer.Option(
            "--lead",
            help="Lead too if there is no leader; then no server is needed.",
            show_default=False,
            metavar="",
        ),
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="KEY=VALUE", help="What it has, e.g. gpu=a100. Repeatable."
        ),
    ] = None,
    pool: Pool = None,
    set_: Set = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="N",
            min=0,
            max=65_535,
            help="Serve /health and /metrics there; 0 picks a port that is free.",
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
            "--metrics-host",
            metavar="ADDRESS",
            help="Who may ask: 127.0.0.1 is this machine alone.",
        ),
    ] = "127.0.0.1",
    with_parent: WithParent = False,
) -> int:
    """Run tasks that a leader offers, until SIGTERM; then finish what runs, and end.

    It takes only tasks of steps it knows, in the version it has. A second SIGTERM
    does not wait: what still runs is handed back and runs again elsewhere.
    """
    from locktender.base import open_files
    from locktender.base.errors import InvalidInput
    from locktender.cli import arguments, load_flow
    from locktender.cli.shutdown import end_with_parent, freeze_own_objects

    if not files and not app:
        raise InvalidInput(
            "a worker needs steps to run.",
            field="file",
            hint="Name a file, locktender worker flows.py, or a module, --app shop.flows.",
        )
    freeze_own_objects()
    open_files.allow(open_files.FOR_BODIES)  # before user code: what that sets stays
    # Importing may take long, or hang: the parent process may end meanwhile.
    with end_with_parent() if with_parent else nullcontext():
        for text in files or ():
            load_flow.load_source(load_flow.parse(text)._replace(flow=""))
        for name in app or ():
            load_flow.load_app(name)
    overrides: dict[str, Any] = {"exit_when_stuck": True, **arguments.settings(set_ or ())}
    if overrides.get("max_workers"):
        raise InvalidInput(
            "max_workers cannot be set on a worker; set it on the server.",
            field="max_workers",
            got=overrides["max_workers"],
            hint="e.g. locktender server --spawn flows.py --max-workers 3",
        )
    if label:
        overrides["worker_labels"] = arguments.labels(label)
    if pool:
        overrides["pools"] = arguments.pools(pool)
    settings = shell.settings(**overrides)
    log_lines(shell, settings.log_level, bodies=True)
    at = None if metrics_port is None else (metrics_host, metrics_port)
    asyncio.run(_work(shell, settings, at, lead=lead, with_parent=with_parent))
    return 0


async def _work(
    shell: Context, settings: Settings, at: tuple[str, int] | None, *, lead: bool, with_parent: bool
) -> None:
    from locktender.cli.shutdown import StopRequests, serve

    stop = StopRequests()
    stop.listen(with_parent=with_parent)

    async with AsyncExitStack() as opened:
        listener = None if at is None else opened.enter_context(_listener(at))

        async def ready(core: Core) -> None:
            metrics = None
            if listener is not None:
                metrics = await opened.enter_async_context(_serving_http(core, listener))
            _say(shell, core, metrics)

        await serve(settings, stop, ready, lead=lead, work=True)
    shell.note(f"ended: {stop.reason or 'stop requested'}")


def _listener(at: tuple[str, int]) -> socket:
    from locktender.server.web import bind

    host, port = at
    return bind(host, port, option="metrics-port")


@asynccontextmanager
async def _serving_http(core: Core, listener: socket) -> AsyncGenerator[str]:
    """Serves the worker's `/health` and `/metrics`; gives the url."""
    from locktender.server.web import serving, url_of

    async with serving(core, listener, demand=False):
        yield url_of(listener)


def _say(shell: Context, core: Core, metrics: str | None) -> None:
    if core.engine is None:
        return
    row = core.engine.worker.describe()
    url = core.settings.shown_url
    if shell.json:
        steps = sorted(row.steps or ())
        shell.data(
            {"worker": row.id, "pid": row.pid, "url": url, "steps": steps, "metrics": metrics}
        )
        sys.stdout.flush()
        return
    permits = ", ".join(f"{kind} {'∞' if n < 0 else n}" for kind, n in row.permits.items())
    shell.say(f"worker {row.id} on {url}: {len(row.steps or ())} steps; {permits}")
    if metrics is not None:
        shell.say(f"  {metrics}/health  {metrics}/metrics")
