"""`locktender`, and `python -m locktender`: the command line."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

YOUNG = 200_000
"""Objects that are made between two collections. What a command imports stays, and to look at it again and again
took a fifth of its time."""


def start() -> NoReturn:
    """Runs the command line of this process, and ends it."""
    usual = gc.get_threshold()
    gc.set_threshold(YOUNG, *usual[1:])
    from locktender.cli.main import main, runs_bodies

    if runs_bodies(sys.argv[1:]):
        # The user's code is collected as Python does it elsewhere.
        gc.set_threshold(*usual)
        sys.exit(main())
    _end(main())


def _end(code: int) -> NoReturn:
    """Ends the process without taking the interpreter apart, which takes a short command a twelfth of its time.

    Nothing is left to do: each command closes its store and its threads before it returns.
    """
    for stream in (sys.stdout, sys.stderr):
        # `main` has told what went wrong with the output, if it did; None: closed by the caller.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    start()
