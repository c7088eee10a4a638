"""`completion`: words, options and verbs for the Tab key of a shell."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from locktender.cli.context import COMPLETE, Context, command

SHELLS = ("bash", "zsh", "fish")


def register(app: typer.Typer) -> None:
    command(app, "completion", panel="Run flows")(completion)


def completion(
    shell: Context,
    kind: Annotated[
        str, typer.Argument(metavar="SHELL", help="bash, zsh or fish; else the one of SHELL.")
    ] = "",
) -> None:
    """Print what a shell needs to complete commands and options.

    source <(locktender completion bash)

    locktender completion fish > ~/.config/fish/completions/locktender.fish
    """
    import os

    import typer.completion

    from locktender.base.errors import InvalidInput
    from locktender.base.names import did_you_mean

    wanted = kind or os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 — a word, not a file
    if wanted not in SHELLS:
        raise InvalidInput(
            "completion is for bash, zsh and fish.",
            field="shell",
            got=wanted,
            hint=did_you_mean(wanted, SHELLS) or "e.g. locktender completion bash",
        )
    shells: Any = typer.completion
    script: str = shells.get_completion_script(
        prog_name="locktender", complete_var=COMPLETE, shell=wanted
    )
    if shell.json:
        shell.data({"shell": wanted, "script": script})
    else:
        sys.stdout.write(script + "\n")
