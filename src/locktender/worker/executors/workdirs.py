"""Work directories: one per attempt, never shared, none left behind.

    base / locktender-3f9c2a7b51d0e684       / <task> / <token>
    base / locktender-3f9c2a7b51d0e684.lock

Each worker makes a root under a new name in `base`, and holds the lock beside it while it lives. Its
child processes inherit the lock's descriptor: the lock is held until the last of them is gone. The
lock file names its kind and its machine; that is written last, when the lock is held and the root
exists. So a lock that can be taken and read belongs to a worker that is gone.

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
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType

from locktender.base.errors import InvalidSettings

log: logging.Logger = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LOCK_NAME = re.compile(r"(locktender-[0-9a-f]{16})\.lock", re.ASCII)
_KIND = "locktender work directory"
_MAX_MARK_BYTES = 1000
SWEEP_SECONDS = 0.1
"""How long a worker that starts waits for the sweep, which goes on by itself."""
MAX_ROUNDS = 10
"""How often a directory is emptied in which a body that still runs makes files."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class WorkRoot:
    """A worker's own part of `base`, held until `close`."""

    def __init__(self, base: Path) -> None:
        try:
            base.mkdir(parents=True, exist_ok=True)
            self._base = base.resolve()
            name, lock = _take(self._base)
        except OSError as error:
            raise _unusable(base, error) from error
        self.lock_fd: int = lock
        """Give it to child processes: while one of them lives the tree is not swept."""
        self.path: Path = self._base / name
        # The start does not wait for long: dead workers may have left a hundred thousand files.
        sweeper = threading.Thread(
            target=_sweep, args=(self._base, os.fstat(self.lock_fd).st_uid), daemon=True
        )
        sweeper.start()
        sweeper.join(SWEEP_SECONDS)

    def empty(self, within: float) -> None:
        """Remove all that is in it: this process is about to end, with bodies that still run.

        The lock is held on: what they make in their last moment, and what takes longer than `within`
        seconds to remove, is found by it.
        """
        # Not by the caller itself: a file system that does not answer must not keep the process.
        remover = threading.Thread(
            target=_remove_under, args=(self._base, self.path.name), daemon=True
        )
        remover.start()
        remover.join(within)

    def close(self) -> None:
        _remove_under(self._base, self.path.name)
        os.close(self.lock_fd)
        # A child that still lives shares the lock: what it uses is left for the next sweep.
        inherit(self.path)

    def __enter__(self) -> WorkRoot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def create(root: Path, task: int, token: int) -> Path:
    path = root / str(task) / str(token)
    path.mkdir(parents=True, exist_ok=True)
    return path


def remove(root: Path, task: int, token: int) -> None:
    """Remove an attempt's directory, if it has one. What cannot be removed is logged and swept later."""
    try:
        with _opened(root) as root_fd, _opened(str(task), root_fd) as task_fd:
            _remove(str(token), task_fd)
            # Another attempt of the same task may still have its own beside it.
            with suppress(OSError):
                os.rmdir(str(task), dir_fd=root_fd)
    except FileNotFoundError:
        return
    except (OSError, RecursionError) as error:
        log.warning("work directory %s/%s/%s is not removed: %s", root, task, token, error)


def exists(root: Path, task: int, token: int) -> bool:
    return (root / str(task) / str(token)).exists()


def inherit(root: Path) -> bool:
    """Remove the root of a worker that is gone, and its lock. False while something of it still lives."""
    try:
        with _opened(root.parent) as base_fd:
            return _remove_dead(root.parent, base_fd, root.name)
    except OSError as error:
        log.warning("work directory %s is not removed: %s", root, error)
        return True


# -- roots and their locks -----------------------------------------------------------------------------


def _take(base: Path) -> tuple[str, int]:
    """Make a root: (its name, the lock that is held on it)."""
    name = f"locktender-{os.urandom(8).hex()}"
    with _opened(base) as base_fd:
        made = os.O_CREAT | os.O_EXCL | os.O_RDWR
        lock = os.open(f"{name}.lock", made, 0o600, dir_fd=base_fd)
        try:
            # Not refused at once: a sweep holds every lock for the moment in which it reads it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.mkdir(name, dir_fd=base_fd)  # fails where something is: what is there is not ours
            try:
                os.write(lock, "\n".join([_KIND, *_here(), ""]).encode())
            except OSError:
                os.rmdir(name, dir_fd=base_fd)  # without that text no worker would ever remove it
                raise
        except OSError:
            os.unlink(f"{name}.lock", dir_fd=base_fd)
            os.close(lock)
            raise
    return name, lock


def _sweep(base: Path, user: int) -> None:
    """Remove what dead workers left."""
    try:
        with _opened(base) as base_fd:
            for entry in os.listdir(base_fd):  # noqa: PTH208 — by descriptor, which no link can redirect
                if (named := _LOCK_NAME.fullmatch(entry)) is not None:
                    _remove_dead(base, base_fd, named[1], user)
    except OSError as error:
        log.warning("what is left in %s is not looked for: %s", base, error)


def _remove_dead(base: Path, base_fd: int, name: str, user: int | None = None) -> bool:
    """Remove a root whose lock is free; `user`: only if it is that user's, and of this machine.

    False while the lock is held.
    """
    try:
        lock = os.open(f"{name}.lock", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=base_fd)
    except OSError:
        return True  # gone meanwhile, a link, or another user's
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Read only now: a worker writes it last, and holds the lock by then.
        if _is_ours(lock, user) and _remove_under(base, name):
            os.unlink(f"{name}.lock", dir_fd=base_fd)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("work directory %s/%s is not removed: %s", base, name, error)
    finally:
        os.close(lock)
    return True


def _is_ours(lock: int, user: int | None) -> bool:
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode) or user not in (None, found.st_uid):
        return False
    kind, *where = os.pread(lock, _MAX_MARK_BYTES, 0).decode(errors="replace").splitlines() or [""]
    here = zip(where, _here(), strict=False)
    return kind == _KIND and (user is None or any(each == ours for each, ours in here if each))


@cache
def _here() -> tuple[str, str]:
    """This machine by its name, which it keeps, and by what all its containers have in common."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def _unusable(base: Path, error: OSError) -> InvalidSettings:
    said = f"cannot be used: {error.strerror or error}"
    if error.errno == errno.EEXIST:
        said = "is no directory"
    return InvalidSettings(
        f"work_dir {base} {said}.",
        field="work_dir",
        got=str(base),
        hint="Set it to a directory in which this process may make files, best on a local disk;"
        " it is made if it is missing.",
    )


# -- removing ------------------------------------------------------------------------------------------


def _remove_under(base: Path, name: str) -> bool:
    """Whether the root is gone; else it is logged why not."""
    try:
        with _opened(base) as fd:
            _remove_tree(name, fd)
    except FileNotFoundError:
        return True
    except (OSError, RecursionError) as error:
        log.warning("work directory %s/%s is not removed: %s", base, name, error)
        return False
    return True


def _remove(name: str, dir_fd: int) -> None:
    try:
        _remove_tree(name, dir_fd)
    except NotADirectoryError:
        os.unlink(name, dir_fd=dir_fd)  # a body put a file or a link in its place


def _remove_tree(name: str, dir_fd: int) -> None:
    """Remove a directory with all that is in it."""
    for _ in range(MAX_ROUNDS):
        try:
            # First: where something is mounted this fails with EBUSY, and the mount is not ours to empty.
            os.rmdir(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise OSError(errno.EBUSY, "something is mounted there", name) from error
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
def _opened_to_empty(name: str, dir_fd: int) -> Generator[int]:
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
def _opened(path: Path | str, dir_fd: int | None = None) -> Generator[int]:
    fd = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)
