"""The log of each local worker, and the lock on it that says whether the worker lives.

Every process that starts workers on this machine for one store shares the folder.
A worker's log is locked through a descriptor that only the worker keeps open: the
kernel releases the lock when the worker has ended, and not before. So any process
sees which workers live, also when the process that started them is gone. The file
gets its name only once it is locked, so a worker that is about to start is not taken
for one that has ended. Programs that a step starts do not inherit the lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

log: logging.Logger = logging.getLogger(__name__)

MAX_LOGS_KEPT = 50
MAX_LOG_BYTES = 8 << 20
TAIL_BYTES = 64 << 10
LAST_LINES = 8
MAX_ERROR_LENGTH = 800
CLI_ERROR = "error: "
RAISED = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The line below a traceback: the exception and its message."""


class WorkerLogs:
    def __init__(self, folder: Path, store: str) -> None:
        """One folder per store, so that workers of other stores are not listed."""
        self.folder: Path = folder / hashlib.sha256(store.encode()).hexdigest()[:8]

    @contextmanager
    def begun(self, name: str) -> Generator[tuple[Path, int, int]]:
        """(path, descriptor for output, lock) of a worker started within; removed if it is not started."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, unnamed = self.folder / f"{name}.log", self.folder / f"{name}.starting"
        out = os.open(unnamed, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            lock = os.open(unnamed, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                unnamed.rename(path)
                yield path, out, lock
            except BaseException:
                for each in (unnamed, path):
                    each.unlink(missing_ok=True)
                raise
            finally:
                os.close(lock)
        finally:
            os.close(out)

    def others(self, known: Collection[str]) -> Iterator[tuple[str, Path, bool]]:
        """(name, path, whether it lives) of each worker that is not in `known`."""
        for path in self.folder.glob("*.log"):
            if path.stem not in known:
                with suppress(FileNotFoundError):
                    yield path.stem, path, _is_locked(path)

    def tidy(self, known: Collection[str]) -> None:
        """Removes the oldest logs of workers that ended."""
        logs = sorted(self.folder.glob("*.log"), key=_changed_at)
        for path in logs[:-MAX_LOGS_KEPT]:
            with suppress(FileNotFoundError):
                if path.stem not in known and not _is_locked(path):
                    path.unlink()


def last_error(path: Path, *, with_path: bool) -> str:
    """The last error in a log, to follow the exit code."""
    try:
        text = _tail(path).decode(errors="replace")
    except OSError:
        return ""
    error = error_in(text)[:MAX_ERROR_LENGTH]
    where = f" (log: {path})" if with_path else ""
    return f": {error}{where}" if error else f" without output{where}"


def error_in(text: str) -> str:
    """The error that a program printed last, without its traceback.

    That is the exception and what our own command line says about it; else the last line.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip(" \t^~")][-LAST_LINES:]
    said = [line.removeprefix(CLI_ERROR) for line in lines if line.startswith(CLI_ERROR)][-1:]
    raised = [
        line for before, line in pairwise(lines) if before[0].isspace() and RAISED.match(line)
    ][-1:]
    if said and raised and raised[0] in said[0]:
        raised = []
    return "; ".join(raised + said or [line.strip() for line in lines[-1:]])


def shorten(path: Path) -> None:
    """A log that is too large keeps its end. The worker appends, so it continues after that."""
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return
        end = _tail(path)
        os.truncate(path, 0)
        with path.open("ab") as file:
            file.write(end)
    except OSError as error:
        log.warning("failed to shorten the log %s: %s", path, error)


def _is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES)
