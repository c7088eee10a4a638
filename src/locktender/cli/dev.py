"""`dev`: an engine for one file in one process, which reloads the file when it is saved and shows what runs.

The engine has a loop in another thread, so that a slow import here does not
delay it. The view reads through a connection of its own for the same reason.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from locktender.cli.context import Context, command, start_logging
from locktender.cli.more_workers import Label, MaxWorkers, OwnProvisioner
from locktender.cli.run import Pool, Set


def register(app: typer.Typer) -> None:
    command(app, "dev", panel="Run flows")(dev)


def dev(
    shell: Context,
    file: Annotated[str, typer.Argument(metavar="FILE.py", help="Or package.module.")],
    pool: Pool = None,
    set_: Set = None,
    max_workers: MaxWorkers = None,
    label: Label = None,
    provisioner: OwnProvisioner = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Lines instead of a moving picture.", show_default=False, metavar=""
        ),
    ] = False,
) -> int:
    """Run an engine for a file and reload it when it changes; Ctrl-C stops.

    Runs come from elsewhere: locktender submit FILE.py:flow

    With --max-workers it starts more workers when its own cannot take what waits;
    they end themselves when they have been idle for a while, and with this.
    """
    from locktender.cli import arguments, load_flow, more_workers

    start_logging(shell)
    target = load_flow.parse(file)
    if target.flow and target.is_file:
        target = target._replace(flow="")
    overrides: dict[str, Any] = arguments.settings(set_ or ())
    if pool:
        overrides["pools"] = arguments.pools(pool)
    overrides |= more_workers.given(max_workers, label)
    from locktender.cli.dev_loop import DevLoop

    settings = shell.settings(**{"exit_when_stuck": True, **overrides})
    who = more_workers.wanted_by_dev(target, provisioner, settings)
    return DevLoop(shell, settings, target, plain=plain, who=who).run()
