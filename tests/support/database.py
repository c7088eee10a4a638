"""A PostgreSQL of a test's own, whose postmaster may be killed and started again on the same data."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from locktender.store.postgres import local
from locktender.testing import eventually

END_SECONDS = 90.0


class Database:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = local.start(folder)
        self.url: str = self._started.url

    def kill(self) -> None:
        """SIGKILL of the postmaster. Returns when its backends have noticed and are gone too."""
        master = psutil.Process(self._started.pid)
        children = master.children(recursive=True)
        os.kill(master.pid, signal.SIGKILL)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                if child.status() == psutil.STATUS_STOPPED:
                    child.kill()
        _, left = psutil.wait_procs([master, *children], END_SECONDS)
        assert not left, left

    def stop_flushing(self) -> None:
        """From now on, until it is killed, only those who commit flush what they wrote."""
        [writer] = eventually(self._log_writers, what="the process that writes the log")
        writer.suspend()

    def _log_writers(self) -> list[psutil.Process]:
        """A process of a server that has just started may not have its name yet, or be gone again."""
        found: list[psutil.Process] = []
        for child in psutil.Process(self._started.pid).children():
            with suppress(psutil.NoSuchProcess):
                if re.search("wal ?writer", " ".join(child.cmdline())):
                    found.append(child)
        return found

    def start(self) -> float:
        """Starts it again on the same data and socket; seconds it took, with what it had to recover."""
        began = time.monotonic()
        server: Any = self._started._server  # pyright: ignore[reportPrivateUsage]
        server.ensure_postgres_running()
        return time.monotonic() - began

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._started.pid).children():
                child.resume()
        self._started.stop()


@contextmanager
def own_database() -> Generator[Database]:
    """Durable, as PostgreSQL is by default: what it has answered survives its death."""
    folder = Path(tempfile.mkdtemp(prefix="locktender-pg-"))
    database = Database(folder / "data")
    try:
        yield database
    finally:
        database.close()
        shutil.rmtree(folder)
