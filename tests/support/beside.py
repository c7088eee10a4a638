"""A SQLite file, opened beside a live engine.

sqlite3 waits five seconds for a lock. On a busy machine an engine may hold it for longer.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

BUSY_SECONDS = 60.0


def opened(path: str | os.PathLike[str]) -> closing[sqlite3.Connection]:
    """A connection for a `with`: it commits each statement by itself, and is closed at the end."""
    return closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None))
