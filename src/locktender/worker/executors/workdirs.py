"""Work directories: one per attempt, never shared, none left behind.

    base / locktender-3f9c2a7b51d0e684       / <task> / <token>
    base / locktender-3f9c2a7b51d0e684.lock

Each worker makes a root under a new name in `base`, and holds the lock beside it while it lives. Its
child processes inherit the lock's descriptor: the lock is held until the last of them is gone. The
lock file names its kind and its machine; that is written last, when the lock is held and the root
exists. So a lock that is free and can be read belongs to a worker that is gone.

A worker that starts removes the roots of such locks and nothing else: other files in `base` and roots
of other users or machines stay. Directories are opened without following links, and what is mounted
inside is left alone.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from locktender.base.background import start_thread
from locktender.base.errors import InvalidSettings

log: logging.Logger = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LOCK_NAME = re.compile(r"locktender-[0-9a-f]{16}\.lock", re.ASCII)
_KIND = "locktender work directory"
_MAX_MARK_BYTES = 1000
SWEEP_SECONDS = 0.1
"""How long a worker that starts waits for the sweep: dead workers may have left a hundred thousand files."""
MAX_ROUNDS = 10
"""How often a directory is emptied in which a body that still runs makes files."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class WorkRoot:
    """A worker's own part of `base`, held until `close`."""

    def __init__(self, base: Path) -> None:
        try:
            base.mkdir(parents=True, exist_ok=True)
            root, lock = _make_root(base.resolve())
        except OSError as error:
            raise _unusable(base, error) from error
        self.path: Path = root
        self.lock_fd: int = lock
        """Give it to child processes: while one of them lives the tree is not swept."""
        self._closed = False
        _in_thread(lambda: _sweep(self.path.parent), SWEEP_SECONDS)

    def empty(self, within: float) -> None:
        """Removes all that is in it: this process is about to end, with bodies that still run.

        The lock is kept: the next sweep finds by it what they still make, and what takes longer than
        `within` seconds to remove.
        """
        _in_thread(lambda: _remove_root(self.path), within)

    def close(self) -> None:
        if self._closed:
            return
        # Once: the number may be another descriptor's by now.
        self._closed = True
        _remove_root(self.path)
        os.close(self.lock_fd)
        # A child that still lives shares the lock: what it uses is left for the next sweep.
        _remove_if_dead(_lock_of(self.path))

    def __enter__(self) -> WorkRoot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create(root: Path, task: int, token: int) -> Path:
    path = root / str(task) / str(token)
    path.mkdir(parents=True, exist_ok=True)
    return path


def remove(root: Path, task: int, token: int) -> None:
    """Removes an attempt's directory, if it has one. What cannot be removed is logged and swept later."""
    folder = root / str(task)
    try:
        with _opened(folder) as task_fd:
            _remove(str(token), task_fd)
        # Another attempt of the same task may still have its own beside it.
        with suppress(OSError):
            folder.rmdir()
    except FileNotFoundError:
        return
    except (OSError, RecursionError) as error:
        log.warning("failed to remove work directory %s/%s: %s", folder, token, error)


def exists(root: Path, task: int, token: int) -> bool:
    return (root / str(task) / str(token)).exists()


def _in_thread(work: Callable[[], object], seconds: float) -> None:
    """Waits at most `seconds` for `work`, which goes on: a file system may not answer."""
    start_thread(work, "locktender-workdirs").join(seconds)


# -- roots and their locks -----------------------------------------------------------------------------


def _lock_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.lock")


def _make_root(base: Path) -> tuple[Path, int]:
    """A new root, and the lock that is held on it."""
    root = base / f"locktender-{os.urandom(8).hex()}"
    lock = os.open(_lock_of(root), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        # Not refused at once: a sweep holds every lock for the moment in which it reads it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        root.mkdir()  # fails where something is: what is there is not ours
        try:
            os.write(lock, "\n".join([_KIND, *_machine(), ""]).encode())
        except OSError:
            root.rmdir()  # without that text no worker would ever remove it
            raise
    except OSError:
        _lock_of(root).unlink()
        os.close(lock)
        raise
    return root, lock


def _sweep(base: Path) -> None:
    """Removes what dead workers left."""
    try:
        for entry in base.iterdir():
            if _LOCK_NAME.fullmatch(entry.name):
                _remove_if_dead(entry)
    except OSError as error:
        log.warning("failed to look for work directories of dead workers in %s: %s", base, error)


def _remove_if_dead(lock: Path) -> None:
    """Removes a root and its lock if the lock is free, this user's, and of this machine."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # gone meanwhile, a link, or another user's
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Read only now: a worker writes it last, and holds the lock by then.
        if _is_ours(fd) and _remove_root(lock.with_suffix("")):
            lock.unlink(missing_ok=True)
    except BlockingIOError:
        return  # its worker, or a child of it, lives
    except OSError as error:
        log.warning("failed to remove work directory %s: %s", lock.with_suffix(""), error)
    finally:
        os.close(fd)


def _is_ours(lock: int) -> bool:
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return False
    kind, *where = os.pread(lock, _MAX_MARK_BYTES, 0).decode(errors="replace").splitlines() or [""]
    here = zip(where, _machine(), strict=False)
    return kind == _KIND and any(each == ours for each, ours in here if each)


@cache
def _machine() -> tuple[str, str]:
    """This machine by its name, which it keeps, and by what all its containers have in common."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def _unusable(base: Path, error: OSError) -> InvalidSettings:
    reason = f"cannot be used: {error.strerror or error}"
    if error.errno == errno.EEXIST:
        reason = "is not a directory"
    return InvalidSettings(
        f"work_dir {base} {reason}.",
        field="work_dir",
        got=str(base),
        hint="Set it to a directory in which this process may make files, best on a local disk;"
        " it is made if it is missing.",
    )


# -- removing ------------------------------------------------------------------------------------------


def _remove_root(root: Path) -> bool:
    """Whether the root is gone; else it is logged why not."""
    try:
        _remove_tree(root)
    except FileNotFoundError:
        return True
    except (OSError, RecursionError) as error:
        log.warning("failed to remove work directory %s: %s", root, error)
        return False
    return True


def _remove(name: str, dir_fd: int) -> None:
    try:
        _remove_tree(name, dir_fd)
    except NotADirectoryError:
        os.unlink(name, dir_fd=dir_fd)  # a body put a file or a link in its place


def _remove_tree(name: str | Path, dir_fd: int | None = None) -> None:
    """Removes a directory with all that is in it."""
    for _ in range(MAX_ROUNDS):
        try:
            # First: where something is mounted this fails with EBUSY, and the mount is not ours to empty.
            os.rmdir(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise OSError(errno.EBUSY, "something is mounted there", str(name)) from error
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return
        with _opened_to_empty(name, dir_fd) as fd:
            _empty(fd)
    os.rmdir(name, dir_fd=dir_fd)


def _empty(fd: int) -> None:
    """What cannot be removed does not keep the rest."""
    failed: OSError | None = None
    with os.scandir(fd) as found:
        entries = list(found)
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                _remove_tree(entry.name, fd)
            else:
                os.unlink(entry.name, dir_fd=fd)
        except FileNotFoundError:
            continue  # its body may still run
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed


@contextmanager
def _opened_to_empty(name: str | Path, dir_fd: int | None) -> Generator[int]:
    """A body may have taken its own rights away (a checked out repository, an unpacked archive)."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        os.chmod(name, stat.S_IRWXU, dir_fd=dir_fd)
        fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    try:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(fd, stat.S_IRWXU)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened(path: Path) -> Generator[int]:
    fd = os.open(path, _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
