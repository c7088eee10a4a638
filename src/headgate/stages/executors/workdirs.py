"""Work directories: one per attempt, never shared, none left behind.

    base / 7 / <task> / <token>

Several workers may share `base`. Each takes a number of its own and holds a
lock on it for as long as it lives; its child processes inherit the lock's
descriptor, so that the number is taken until the last of them is gone too. A
worker that starts removes the trees of every number nobody holds. All this
happens under one lock on `base`, so that no sweep can meet a number that was
just taken. Only names that are numbers are ever removed, each level is opened
without following links, so that nothing outside of `base` can be reached.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

log: logging.Logger = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class WorkRoot:
    """A worker's own part of `base`, held until `close`."""

    def __init__(self, base: Path) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self._base = base.resolve()
        with _lock(self._base):
            held = _sweep(self._base)
            number = next(n for n in range(len(held) + 1) if n not in held)
            self.lock_fd: int = os.open(
                _lock_file(self._base, number), os.O_CREAT | os.O_RDWR, 0o600
            )
            """Give it to child processes: while one of them lives the tree is not swept."""
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path: Path = self._base / str(number)
            self.path.mkdir(exist_ok=True)

    def close(self) -> None:
        with _lock(self._base):
            # A child that still lives shares the lock: what it uses is left for the next sweep.
            _remove_under(self._base, self.path.name)
            os.close(self.lock_fd)
            _sweep(self._base)

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
            _remove_tree(str(token), task_fd)
            # Another attempt of the same task may still have its own beside it.
            with suppress(OSError):
                os.rmdir(str(task), dir_fd=root_fd)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("work directory %s/%s/%s is not removed: %s", root, task, token, error)


def exists(root: Path, task: int, token: int) -> bool:
    return (root / str(task) / str(token)).exists()


def _sweep(base: Path) -> set[int]:
    """Remove what dead owners left; the numbers of those alive."""
    held: set[int] = set()
    for name in sorted({entry.name.removesuffix(".lock") for entry in base.iterdir()}):
        if not name.isdecimal():
            continue
        lock_path = _lock_file(base, int(name))
        fd = os.open(lock_path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.add(int(name))
            continue
        finally:
            os.close(fd)
        _remove_under(base, name)
        lock_path.unlink(missing_ok=True)
    return held


def _remove_under(base: Path, name: str) -> None:
    try:
        with _opened(base) as fd:
            _remove_tree(name, fd)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("work directory %s/%s is not removed: %s", base, name, error)


def _remove_tree(name: str, dir_fd: int) -> None:
    def unlock(_function: Any, _path: Any, error: Any) -> None:
        if isinstance(error[1], FileNotFoundError):
            return
        raise error[1]

    if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=dir_fd)  # a body put a file or a link in its place
        return
    try:
        shutil.rmtree(name, dir_fd=dir_fd, onerror=unlock)
    except PermissionError:
        # A body may have taken its own rights away (a checked out repository, an unpacked archive).
        _give_rights(name, dir_fd)
        shutil.rmtree(name, dir_fd=dir_fd, onerror=unlock)


def _give_rights(name: str, dir_fd: int) -> None:
    os.chmod(name, 0o700, dir_fd=dir_fd)
    with _opened(name, dir_fd) as fd:
        for entry in os.listdir(fd):  # noqa: PTH208 — by descriptor, which no link can redirect
            if stat.S_ISDIR(os.stat(entry, dir_fd=fd, follow_symlinks=False).st_mode):
                _give_rights(entry, fd)


def _lock_file(base: Path, number: int) -> Path:
    return base / f"{number}.lock"


@contextmanager
def _opened(path: Path | str, dir_fd: int | None = None) -> Generator[int]:
    fd = os.open(path, _DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _lock(base: Path) -> Generator[None]:
    with _opened(base) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
