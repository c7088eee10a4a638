"""`locktender` on a machine whose clock is set while it runs: python clock_set.py FILE COMMAND …

The file says by how many seconds; the boot-time clock is right, as on a real machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from locktender.base.clock import SECOND, SystemClock
from locktender.cli.main import main

_now = SystemClock.now


def follow(file: Path) -> None:
    def now(self: SystemClock) -> int:
        return _now(self) + int(file.read_text() or "0") * SECOND

    SystemClock.now = now


if __name__ == "__main__":
    follow(Path(sys.argv.pop(1)))
    main()
