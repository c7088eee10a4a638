"""`locktender demo`: four limits at work, a worker killed on the way, and the proof that all of them held."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from locktender.cli.context import Context, command


def register(app: typer.Typer) -> None:
    command(app, "demo", panel="Run flows")(demo)


def demo(
    shell: Context,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the store, to look into it after.", show_default=False, metavar=""
        ),
    ] = False,
) -> int:
    """See it work: limits, a killed worker and its recovery, in under 20 seconds."""
    import shutil
    import tempfile

    from locktender.cli.demo_story import DemoStory

    folder = Path(tempfile.mkdtemp(prefix="locktender-demo-"))
    try:
        return DemoStory(shell, folder, keep=keep).tell()
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
