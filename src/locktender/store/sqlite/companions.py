"""Who may use a store's files: the owner of the database, or as many as its permissions let in.

Every user who may open a lock file may hold the lock, also with permission to read only. So a new
database is private, and files and folders beside it are open to the users that may write the database:
`chmod 660` on the database shares the store with its group. A user that may only read it cannot use the store.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from locktender.store.sqlite import faults

_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700


OUR_FOLDER = ".locktender"


def create_database(path: Path, *, folders: bool = True) -> None:
    """An empty, private file, where there is none.

    `folders`: those that are missing are made; else only one that is named as ours.
    """
    if folders or (path.parent.name == OUR_FOLDER and path.parent.parent.is_dir()):
        path.parent.mkdir(mode=_PRIVATE_FOLDER, parents=folders, exist_ok=True)
    elif not path.parent.is_dir():
        raise faults.no_folder(path)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE))


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def create_folder(folder: Path, database: Path) -> None:
    if not folder.is_dir():
        mode = _mode(database)
        # Who may read or write may enter; set apart because the umask would take from it.
        with suppress(FileExistsError):
            folder.mkdir(mode=_PRIVATE_FOLDER)
            folder.chmod(mode | (mode & 0o444) >> 2)


def open_file(path: Path, database: Path) -> int:
    """A file that is there, or a new one."""
    while True:
        with suppress(FileNotFoundError):
            return _closed_to_others(os.open(path, os.O_RDWR | os.O_CLOEXEC), database)
        # Another process may create or remove it between the two calls.
        with suppress(FileExistsError):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(path, flags, _PRIVATE_FILE)
            os.fchmod(fd, _mode(database))
            return fd


def _closed_to_others(fd: int, database: Path) -> int:
    """The database may have become private after the file was made."""
    mode = os.fstat(fd).st_mode & 0o777
    if mode & ~_mode(database) & 0o066:
        with suppress(PermissionError):  # another user's file
            os.fchmod(fd, mode & _mode(database))
    return fd


def _mode(database: Path) -> int:
    """Owner, group and others may read and write, each if it may write the database."""
    try:
        writers = database.stat().st_mode & 0o022
    except FileNotFoundError:
        return _PRIVATE_FILE
    return _PRIVATE_FILE | writers | writers << 1
