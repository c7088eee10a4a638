"""Files as values: a step returns a `StoredFile`, another one opens it. Content goes in pieces.

In rows it is a reference, `{"$locktender.blob_file": {"digest": …, "size": …}}`, by which a file
is kept as long as a run names it. A body needs no connection to the store, only `blob_url`.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import BinaryIO, cast

import msgspec

from locktender.base import config
from locktender.base.errors import InvalidInput
from locktender.store.blob_url import BlobPlace, WrongContent

VARIABLE = "LOCKTENDER_BLOB_URL"
_places: dict[tuple[int, str], BlobPlace] = {}


class FileRef(msgspec.Struct, frozen=True):
    digest: str
    size: int


class StoredFile(msgspec.Struct, frozen=True):
    """A file that was stored at `blob_url`: an argument or a result like any other."""

    ref: FileRef = msgspec.field(name="$locktender.blob_file")

    @classmethod
    def store(cls, source: str | os.PathLike[str] | BinaryIO) -> StoredFile:
        """Stores a file, or what is left of an open one that can seek. Blocks: in an async step use a thread."""
        place = _place()
        if isinstance(source, str | os.PathLike):
            with Path(source).open("rb") as file:
                return cls(FileRef(*place.put_file(file)))
        return cls(FileRef(*place.put_file(source)))

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.ref.size

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return self.ref.digest

    @contextmanager
    def open(self) -> Generator[BinaryIO]:
        """A local copy of it, checked, open for reading; removed afterwards."""
        with TemporaryFile(prefix="locktender-") as file:
            self._copy_to(cast("BinaryIO", file))
            file.seek(0)
            yield cast("BinaryIO", file)

    def save(self, target: str | os.PathLike[str]) -> Path:
        """Writes it to a file, which is complete or not there."""
        path = Path(target)
        with NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".draft", delete=False
        ) as file:
            draft = Path(file.name)
            try:
                self._copy_to(cast("BinaryIO", file))
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
        draft.replace(path)
        return path

    def _copy_to(self, file: BinaryIO) -> None:
        size = _place().copy_out(self.ref.digest, file)
        if size != self.ref.size:
            raise WrongContent(
                f"file {self.ref.digest} has {size:,} bytes, not {self.ref.size:,}.", field="blob"
            )


def use(blob_url: str) -> None:
    """Bodies of this process, and of those that it starts for them, store and read files there."""
    config.FOR_BODIES[VARIABLE] = blob_url


def _place() -> BlobPlace:
    url = config.FOR_BODIES.get(VARIABLE) or config.load(Path.cwd(), os.environ, {}).blob_url
    if not url:
        raise InvalidInput(
            "files need blob_url: where they are stored.",
            field="blob_url",
            hint='e.g. blob_url = "s3://bucket/folder" in locktender.toml, or LOCKTENDER_BLOB_URL',
        )
    # By process: what a package has open must not be used after a fork.
    key = os.getpid(), url
    if key not in _places:
        _places.clear()
        _places[key] = BlobPlace(url)
    return _places[key]
