"""Large values beside the database: one file per content, named by its hash.

A blob is complete or absent: it is written under another name, synced, and
renamed. Two processes that store the same content write the same file.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from headgate.base.errors import NotFound

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Blobs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        if path.exists():
            return digest
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{digest}.{os.urandom(6).hex()}.draft")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
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

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
