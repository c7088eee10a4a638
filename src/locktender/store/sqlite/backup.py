"""A back-up of a SQLite store beside live engines: the database as of one instant, and the blobs it refers to.

SQLite's backup in one step reads within one read transaction. In WAL mode that blocks no writer, and what
is written meanwhile is not in the copy.

Blobs are files of their own, stored before the row that refers to them and removed after it. They are copied
before the database and once more after it: one that a row of the copy refers to was there the first time, or was
put since, and a blob that was just put stays for `pruning.BLOB_GRACE_US`.

The copy is made under another name and gets its own when it was checked, so a back-up that was interrupted is
never taken for one. A link is made and not a rename: it refuses a name that exists.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.errors import InvalidInput, NotFound, StoreError
from locktender.store.migrate import COPYING
from locktender.store.sqlite import faults, pruning
from locktender.store.sqlite.blobs import Blobs
from locktender.store.sqlite.companions import beside, create_database
from locktender.store.sqlite.session import connect, resolved

BUSY_TIMEOUT_US = 30 * SECOND
PAGE = 2_000


@dataclass(frozen=True, slots=True)
class BackedUp:
    file: str
    bytes: int
    runs: int
    history: int
    """Rows of it; one may hold several events."""
    blobs: int
    blobs_folder: str
    """Empty: the store has no blobs."""
    elsewhere: int = 0
    """Blobs that the copy refers to and that stay where they are, at `blob_url`."""


def back_up(
    source: str | Path,
    target: str | Path,
    clock: Clock | None = None,
    is_elsewhere: Callable[[str], bool] = lambda _: False,
) -> BackedUp:
    """Copies the store into a new file. Refuses to overwrite one.

    `is_elsewhere`: whether a blob is at `blob_url`; those are not copied.
    """
    clock = SystemClock() if clock is None else clock
    path, file = resolved(source), resolved(target)
    if not path.exists():
        raise NotFound(f"there is no store at {path}.", field="url", got=str(path))
    if not file.parent.is_dir():
        raise NotFound(f"there is no folder {file.parent}.", field="file", got=str(file))
    for each in (file, beside(file, "-wal"), beside(file, "-blobs")):
        if each.exists():
            raise _taken(each)
    draft = file.with_name(f"{file.name}.{os.urandom(4).hex()}.part")
    try:
        create_database(draft)
        copied = _copy_blobs(Blobs(path, clock), Blobs(draft, clock), set())
        _copy_database(path, draft, clock)
        copied = _copy_blobs(Blobs(path, clock), Blobs(draft, clock), copied)
        runs, history, elsewhere = _check(draft, copied, clock, is_elsewhere)
        _give_name(draft, file)
    except (sqlite3.Error, OSError) as error:
        raise faults.translate(error, path) from error
    finally:
        for end in ("", "-wal", "-shm"):
            beside(draft, end).unlink(missing_ok=True)
        shutil.rmtree(beside(draft, "-blobs"), ignore_errors=True)
    folder = str(beside(file, "-blobs")) if copied else ""
    size = file.stat().st_size
    return BackedUp(str(file), size, runs, history, len(copied), folder, elsewhere)


def _give_name(draft: Path, file: Path) -> None:
    """The blobs first: a file that is there is complete. Neither call replaces what another back-up made."""
    blobs, named = beside(draft, "-blobs"), beside(file, "-blobs")
    renamed = blobs.exists()
    if renamed:
        try:
            blobs.rename(named)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _taken(named) from None
            raise
    try:
        file.hardlink_to(draft)
    except FileExistsError:
        if renamed:
            named.rename(blobs)
        raise _taken(file) from None


def _taken(file: Path) -> InvalidInput:
    return InvalidInput(
        f"{file} exists.",
        field="file",
        got=str(file),
        hint="A back-up overwrites nothing: name another file, or remove this one.",
    )


def _copy_database(path: Path, draft: Path, clock: Clock) -> None:
    source = connect(path, clock, BUSY_TIMEOUT_US, write=False)
    try:
        if "migration" not in {row[0] for row in source.all("table_names")}:
            raise faults.foreign(path)
        if COPYING in {row[0] for row in source.all("migration_list")}:
            raise StoreError(f"{path} is itself a copy that was not finished.", field="url")
        copy = sqlite3.connect(draft)
        try:
            source.db.backup(copy)
        finally:
            copy.close()
    finally:
        source.db.close()
    fd = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_blobs(source: Blobs, target: Blobs, copied: set[str]) -> set[str]:
    found = set(copied)
    for name in source.names():
        if name in found:
            continue
        with suppress(NotFound):  # removed since: no row refers to it
            if target.put(source.get(name)) == name:
                found.add(name)
            else:
                raise StoreError(f"the file of blob {name} has other content.", field="blob")
    return found


def _check(
    draft: Path, blobs: set[str], clock: Clock, is_elsewhere: Callable[[str], bool]
) -> tuple[int, int, int]:
    """The pages, and that every blob a row refers to is there; how many runs and rows of history it has,
    and blobs elsewhere."""
    copy = connect(draft, clock, BUSY_TIMEOUT_US, write=False)
    try:
        faults_found = [row[0] for row in copy.all("integrity") if row[0] != "ok"]
        if faults_found:
            raise StoreError(f"the copy is damaged: {faults_found[0]}.", hint="So is the store.")
        after = 0
        elsewhere: set[str] = set()
        while True:
            named = pruning.references(copy, after, PAGE)
            missing = named.blobs - blobs - elsewhere
            elsewhere |= {name for name in missing if is_elsewhere(name)}
            missing -= elsewhere
            if missing:
                raise StoreError(
                    f"{len(missing)} large values that runs refer to are missing, the first {min(missing)}.",
                    hint="The store lacks them too: the folder -blobs beside it.",
                )
            after = named.after
            if not after:
                break
        counts = copy.row("copy_count_run")[0], copy.row("copy_count_event")[0]
        return *counts, len(elsewhere)
    finally:
        copy.db.close()
