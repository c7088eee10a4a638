"""`locktender` as a command of a machine whose clock is wrong: python clock_off.py SECONDS COMMAND …

The clock that tells the date is off from the start; the boot-time clock is right, as on a real machine.
"""

from __future__ import annotations

import sys

from locktender.base.clock import SECOND, SystemClock
from locktender.cli.main import main

_now = SystemClock.now


def off_by(seconds: int) -> None:
    def now(self: SystemClock) -> int:
        return _now(self) + seconds * SECOND

    SystemClock.now = now


if __name__ == "__main__":
    off_by(int(sys.argv.pop(1)))
    main()
