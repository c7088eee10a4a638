"""What local workers print, and by whose lock it is known that they live.

Who meets here: every process that starts workers on this machine for one store.
A worker's log is locked, by a descriptor that the worker alone keeps open: the
kernel lets go of it when the worker is gone, however it ended, and not before.
So others see who lives without asking whoever started it, which may be gone.
The file has its name only once it is locked: nobody takes a worker that is about
to start for one that has ended. The lock is not inherited by programs that
a step starts, so what they leave behind is not taken for the worker.
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

MOST_LOGS = 50
LARGEST_LOG = 8 << 20
TAIL = 64 << 10
LAST_LINES = 8
LONGEST_WORDS = 800
TOLD = "error: "
RAISED = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The line below a traceback: the exception and its message."""


class WorkerLogs:
    def __init__(self, folder: Path, store: str) -> None:
        """One folder per store: workers of another are none of ours."""
        self.folder: Path = folder / hashlib.sha256(store.encode()).hexdigest()[:8]

    @contextmanager
    def begun(self, name: str) -> Generator[tuple[Path, int, int]]:
        """(path, where to print, the lock) of a worker that is started within; nothing is left if it is not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, nameless = self.folder / f"{name}.log", self.folder / f"{name}.starting"
        out = os.open(nameless, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            lock = os.open(nameless, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                nameless.rename(path)
                yield path, out, lock
            except BaseException:
                for each in (nameless, path):
                    each.unlink(missing_ok=True)
                raise
            finally:
                os.close(lock)
        finally:
            os.close(out)

    def others(self, known: Collection[str]) -> Iterator[tuple[str, Path, bool]]:
        """(name, path, whether it lives) of all that are not known."""
        for path in self.folder.glob("*.log"):
            if path.stem not in known:
                with suppress(FileNotFoundError):
                    yield path.stem, path, locked(path)

    def tidy(self, known: Collection[str]) -> None:
        """Logs of workers that failed are kept, up to a number."""
        logs = sorted(self.folder.glob("*.log"), key=_changed)
        for path in logs[:-MOST_LOGS]:
            with suppress(FileNotFoundError):
                if path.stem not in known and not locked(path):
                    path.unlink()


def locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        return file.read(TAIL)


def last_words(path: Path, *, told: bool) -> str:
    """What it said last; `told`: and where, for whoever wants to read more."""
    try:
        text = _tail(path).decode(errors="replace")
    except OSError:
        return ""
    words = error_in(text)[:LONGEST_WORDS]
    where = f" (log: {path})" if told else ""
    return f": {words}{where}" if words else f" without a word{where}"


def error_in(text: str) -> str:
    """The error that a program told last, without the way there.

    That is what was raised and what our own command line says about it; else the last line.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip(" \t^~")][-LAST_LINES:]
    told = [line.removeprefix(TOLD) for line in lines if line.startswith(TOLD)][-1:]
    raised = [
        line for before, line in pairwise(lines) if before[0].isspace() and RAISED.match(line)
    ][-1:]
    if told and raised and raised[0] in told[0]:
        raised = []
    return "; ".join(raised + told or [line.strip() for line in lines[-1:]])


def shorten(path: Path) -> None:
    """A log that has grown too large keeps its end. The worker appends, so it goes on behind that."""
    try:
        if path.stat().st_size <= LARGEST_LOG:
            return
        end = _tail(path)
        os.truncate(path, 0)
        with path.open("ab") as file:
            file.write(end)
    except OSError as error:
        log.warning("the log %s is not shortened: %s", path, error)
