"""Large values beside the database: one file per content, named by its hash.

A blob is complete or absent: it is written under another name, synced, and
renamed. Two processes that store the same content write the same file.

A file's time is when it was last put, by the store's clock: one that was just
put may not be referred to yet, and is not taken for an orphan.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from locktender.base.clock import Clock
from locktender.base.errors import NotFound
from locktender.store.sqlite.companions import beside, create_folder, open_file

_OF_ALL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""Errors of the process or the machine; any other concerns the one file."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    def __init__(self, database: Path, clock: Clock) -> None:
        self._database = database
        self._folder = beside(database, "-blobs")
        self._clock = clock

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        with suppress(FileNotFoundError):
            self._date(path)
            return digest
        create_folder(self._folder, self._database)
        create_folder(path.parent, self._database)
        draft = path.with_name(f"{digest}.{os.urandom(6).hex()}.draft")
        try:
            with os.fdopen(open_file(draft, self._database), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._date(draft)
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        # The names must survive a crash as well: the file's, and its folder's if that is new.
        _sync(path.parent)
        _sync(self._folder)
        return digest

    def get(self, digest: str) -> bytes:
        if not _DIGEST.fullmatch(digest):
            raise NotFound(f"{digest!r} is not the name of a blob.", field="blob", got=digest)
        try:
            return self._path(digest).read_bytes()
        except FileNotFoundError:
            raise NotFound(
                f"no blob {digest} is stored.",
                field="blob",
                got=digest,
                hint=f"It should be in {self._folder}; was the folder left behind in a copy?",
            ) from None
        except OSError as error:
            if error.errno in _OF_ALL:
                raise
            raise NotFound(
                f"blob {digest} cannot be read: {error.strerror or error}.",
                field="blob",
                got=digest,
                hint=f"Look at its file in {self._folder}.",
            ) from error

    def put_before(self, instant: int) -> Iterator[str]:
        """Blobs that were last put before `instant`."""
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                if _DIGEST.fullmatch(path.name) and _put_at(path) < instant:
                    yield path.name

    def sizes(self) -> Iterator[int]:
        """How many bytes each blob has."""
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                if _DIGEST.fullmatch(path.name):
                    yield path.stat().st_size

    def names(self) -> Iterator[str]:
        for path in sorted(self._folder.glob("??/*")):
            if _DIGEST.fullmatch(path.name):
                yield path.name

    def remove(self, digest: str, put_before: int) -> bool:
        """Removes it unless it was put again."""
        path = self._path(digest)
        aside = path.with_name(f"{digest}.{os.urandom(6).hex()}.gone")
        try:
            # Renamed before its time is read: a put from here on writes a new file.
            path.rename(aside)
        except FileNotFoundError:
            return False
        if _put_at(aside) >= put_before:
            aside.rename(path)
            return False
        aside.unlink()
        return True

    def clear(self) -> None:
        """Removes every blob: what is left of a copy that was not finished."""
        for path in self._folder.glob("??/*"):
            path.unlink(missing_ok=True)

    def _date(self, path: Path) -> None:
        now = self._clock.now() * 1_000
        os.utime(path, ns=(now, now))

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


def _put_at(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
