"""Errors of SQLite and the file system as `StoreError`s that say what to do next."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from locktender.base.durations import spoken
from locktender.base.errors import DataRefused, InvalidInput, StoreBusy, StoreError

_FULL = "Free some space; the store then continues by itself."


def translate(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """The `StoreError` that stands for `error` on the file at `path`."""
    if isinstance(error, OSError):
        return StoreError(
            f"the store {path} cannot be used: {error.strerror or error}.",
            field="path",
            got=str(error.filename or path),
            hint="Check that the folder exists, is writable and has space.",
        )
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte is the primary code; the rest refines it.
    match (code & 0xFF) if isinstance(code, int) else None:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return busy(path)
        case sqlite3.SQLITE_CONSTRAINT | sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_MISMATCH:
            return refused(error)
        case sqlite3.SQLITE_FULL:
            return StoreError(f"no space is left for {path}; nothing was stored.", hint=_FULL)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return read_only(path)
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreError(
                f"{path} is not a locktender store, or it is damaged ({error}).",
                field="path",
                got=str(path),
                hint="Restore it from a backup, or name another file.",
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StoreError(
                f"the store {path} cannot be opened ({error}).",
                field="path",
                got=str(path),
                hint="Check that it is a file and that its folder is writable.",
            )
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"reading or writing {path} failed ({error}).",
                hint="Check the disk; on a network file system use PostgreSQL instead.",
            )
        case None if not isinstance(error, sqlite3.OperationalError):
            return refused(error)
        case _:
            return StoreError(
                f"the store {path} failed: {error}.",
                hint="Nothing was stored; if it happens again, report it with this message.",
            )


def refused(error: Exception) -> DataRefused:
    """A value that SQLite, or its Python module, does not take."""
    return DataRefused(f"the store refused a value: {error}.", hint="Nothing was stored.")


def busy(path: Path, holder: str = "another process", waited_us: int = 0) -> StoreBusy:
    waited = f" after {spoken(waited_us)}" if waited_us else ""
    return StoreBusy(
        f"waiting for the write lock of {path} timed out{waited}: {holder} holds it.",
        field="path",
        got=str(path),
        hint="Look for a stopped process or a long transaction in another tool.",
    )


def read_only(path: Path) -> StoreError:
    return StoreError(
        f"the store {path} is read-only.",
        field="path",
        got=str(path),
        hint="Give this user write permission to the file and its folder.",
    )


def no_file(path: str) -> InvalidInput:
    return InvalidInput(
        "the path of the store is empty or not the name of a file.",
        field="path",
        got=path,
        hint="Name a file, e.g. .locktender/locktender.db.",
    )


def no_folder(path: Path) -> StoreError:
    return StoreError(
        f"the folder {path.parent} does not exist.",
        field="path",
        got=str(path),
        hint="Name another file, or make the folder. An engine makes missing folders; a client does not.",
    )


def directory(path: Path) -> StoreError:
    return StoreError(
        f"{path} is a directory.",
        field="path",
        got=str(path),
        hint="Name a file, for example .locktender/locktender.db.",
    )


def foreign(path: Path) -> StoreError:
    return StoreError(
        f"{path} is a database of another program.",
        field="path",
        got=str(path),
        hint="Name another file: locktender keeps a file of its own.",
    )
