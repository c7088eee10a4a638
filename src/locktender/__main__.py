"""`locktender`, and `python -m locktender`: the command line."""

from __future__ import annotations

import gc
import sys
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
    code = main()
    gc.freeze()  # nothing of it is looked at once more before the memory is given back
    sys.exit(code)


if __name__ == "__main__":
    start()
