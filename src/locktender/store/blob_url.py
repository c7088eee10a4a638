"""Large values outside the store, at a url: `s3://bucket/folder`, `gs://…`, `file:///…` (fsspec).

An object is complete or absent. Its path has the hash of its content and a number of its
own, `ab/abc…/<number>`: a value that is stored again while its old object may be swept gets
a new object, so the sweep can remove the old one without a look at who stores what. That is
why it is safe beside live engines:

    put       reuses an object only if it is younger than half of the grace
    commit    of the row that names the hash follows within the other half
    sweep     removes objects older than the grace whose hash no row names

A folder has one owner, the store whose rows name its objects: another store (a copy of it, say)
would take them for garbage, so it removes nothing.

Credentials come from the environment of each process, as fsspec's packages read them.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from locktender.base.clock import Clock, SystemClock
from locktender.base.errors import InvalidInput, NotFound, StoreError, StoreUnreachable

OWNER = "owner"
DRAFT = ".draft"
MAX_SWEPT = 5
"""How often the folder of a new object may be removed before its first byte."""
CHUNK_BYTES = 1 << 20
PART_BYTES = 8 << 20
"""Of an object that is read or written in pieces; S3 allows 10,000 of at least 5 MB."""
HALF_GRACE_US = 1_800_000_000
"""Half of `pruning.BLOB_GRACE_US`."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
}

DRIVERS = (
    "botocore",
    "aiobotocore",
    "aiohttp",
    "s3fs",
    "gcsfs",
    "google",
    "adlfs",
    "azure",
    "fsspec",
)
"""Packages whose errors say that the place, and not this code, failed."""


class WrongContent(NotFound):
    code = "wrong_content"


class BlobPlace:
    """Synchronous: call it in a thread."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url: str = url
        self._clock = clock or SystemClock()
        self._fs, self._root = _filesystem(url)
        self._is_local = _scheme(url) in ("file", "local")

    # -- values ------------------------------------------------------------------------------------

    def put(self, data: bytes) -> str:
        """Stores `data` under its hash, which it returns."""
        digest = hashlib.sha256(data).hexdigest()
        with _failures("store", self.url, digest):
            if not self._is_fresh(digest, len(data)):
                path = self._new_path(digest)
                if self._is_local:
                    with _draft(path) as draft:
                        draft.write(data)
                else:
                    self._fs.pipe_file(path, data)
        return digest

    def put_file(self, source: BinaryIO) -> tuple[str, int]:
        """Stores what is left of a file, in pieces: twice read, never held. Its hash and size."""
        start = source.tell()
        hashed = hashlib.sha256()
        size = 0
        while chunk := source.read(CHUNK_BYTES):
            hashed.update(chunk)
            size += len(chunk)
        digest = hashed.hexdigest()
        with _failures("store", self.url, digest):
            if not self._is_fresh(digest, size):
                source.seek(start)
                self._copy_in(source, digest, size)
        return digest, size

    def get(self, digest: str) -> bytes:
        with _failures("read", self.url, digest):
            path, _ = self._find(digest)
            data: bytes = self._fs.cat_file(path)
        if hashlib.sha256(data).hexdigest() != digest:
            raise _changed(digest, self.url)
        return data

    def copy_out(self, digest: str, target: BinaryIO) -> int:
        """Writes the content to `target`, in pieces; raises if it is not what was stored. Its size."""
        hashed = hashlib.sha256()
        size = 0
        with _failures("read", self.url, digest):
            path, _ = self._find(digest)
            with self._fs.open(path, "rb", block_size=PART_BYTES) as source:
                while chunk := source.read(CHUNK_BYTES):
                    hashed.update(chunk)
                    size += len(chunk)
                    target.write(chunk)
        if hashed.hexdigest() != digest:
            raise _changed(digest, self.url)
        return size

    def has(self, digest: str) -> bool:
        with _failures("list", self.url, digest):
            return bool(self._objects(digest))

    # -- upkeep ------------------------------------------------------------------------------------

    def put_before(self, instant: int) -> Iterator[str]:
        """Hashes with an object that was stored before `instant`, or a draft that was left then."""
        with _failures("list", self.url):
            for info in self._all(drafts=True):
                if _put_at(info) < instant:
                    yield _digest_of(info)

    def remove(self, digest: str, put_before: int) -> bool:
        """Removes objects of this hash that were stored before `put_before`, and drafts of then."""
        removed = False
        with _failures("remove", self.url, digest):
            for info in self._objects(digest, drafts=True):
                if _put_at(info) < put_before:
                    with suppress(FileNotFoundError):
                        self._fs.rm_file(info["name"])
                    removed = removed or _is_object(info)
            if self._is_local:
                with suppress(OSError):  # it is not empty, or another process has removed it
                    Path(self._folder(digest)).rmdir()
        return removed

    def sizes(self) -> list[int]:
        with _failures("list", self.url):
            return [info["size"] for info in self._all()]

    def owner(self, identity: str) -> str:
        """The store that may remove objects here: the first that stored one."""
        path = f"{self._root}/{OWNER}"
        with _failures("read", self.url):
            try:
                return self._fs.cat_file(path).decode()
            except FileNotFoundError:
                self._fs.makedirs(self._root, exist_ok=True)
                self._fs.pipe_file(path, identity.encode())
                return self._fs.cat_file(path).decode()

    # -- objects -----------------------------------------------------------------------------------

    def _is_fresh(self, digest: str, size: int) -> bool:
        """Whether an object is there, not cut off, that no sweep will remove before a row can name it."""
        since = self._clock.now() - HALF_GRACE_US
        found = self._objects(digest)
        return any(_put_at(info) > since and info["size"] == size for info in found)

    def _find(self, digest: str) -> tuple[str, int]:
        if not _DIGEST.fullmatch(digest):
            raise NotFound(f"{digest!r} is not the name of a blob.", field="blob", got=digest)
        found = self._objects(digest)
        if not found:
            raise FileNotFoundError(digest)
        newest = max(found, key=_put_at)
        return newest["name"], newest["size"]

    def _objects(self, digest: str, *, drafts: bool = False) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self._fs.ls(self._folder(digest), detail=True)
        except FileNotFoundError:
            return []
        return [info for info in found if _is_object(info, drafts=drafts)]

    def _all(self, *, drafts: bool = False) -> Iterator[dict[str, Any]]:
        try:
            found = self._fs.ls(self._root, detail=True)
        except FileNotFoundError:
            return
        for folder in sorted(each["name"] for each in found if each["type"] == "directory"):
            files: dict[str, dict[str, Any]] = self._fs.find(folder, detail=True)
            yield from (info for info in files.values() if _is_object(info, drafts=drafts))

    def _folder(self, digest: str) -> str:
        return f"{self._root}/{digest[:2]}/{digest}"

    def _new_path(self, digest: str) -> str:
        return f"{self._folder(digest)}/{os.urandom(8).hex()}"

    def _copy_in(self, source: BinaryIO, digest: str, size: int) -> None:
        path = self._new_path(digest)
        if self._is_local:
            with _draft(path) as draft:
                _copy(source, draft, digest, size)
            return
        with self._fs.open(path, "wb", block_size=PART_BYTES) as target:
            try:
                _copy(source, target, digest, size)
            except BaseException:
                # Not closed in the usual way: that would complete the object.
                with suppress(Exception):
                    target.discard()
                target.closed = True
                raise


class _draft:  # noqa: N801 — used as a function
    """A local file that has its name only once it is complete and on disk."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __enter__(self) -> BinaryIO:
        fd, self._name = _new_draft(self._path.parent)
        self._file = os.fdopen(fd, "wb")
        return self._file

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
        if kind is None:
            Path(self._name).rename(self._path)
        else:
            Path(self._name).unlink(missing_ok=True)


def _new_draft(folder: Path) -> tuple[int, str]:
    for _ in range(MAX_SWEPT):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a sweep has removed the folder, which was empty
            return tempfile.mkstemp(prefix=".", suffix=DRAFT, dir=folder)
    raise FileNotFoundError(f"the folder {folder} is removed again and again")


def _copy(source: BinaryIO, target: BinaryIO, digest: str, size: int) -> None:
    hashed = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        hashed.update(chunk)
        target.write(chunk)
    if hashed.hexdigest() != digest:
        raise StoreError(
            f"the file changed while it was stored ({size:,} bytes at first).", field="file"
        )


class _failures:  # noqa: N801 — used as a function
    """What fsspec and its packages raise, as errors of a store."""

    def __init__(self, what: str, url: str, digest: str = "") -> None:
        self._what, self._url, self._digest = what, url, digest

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if (
            error is None
            or isinstance(error, StoreError | NotFound)
            or not (isinstance(error, OSError) or _package(error) in DRIVERS)
        ):
            return
        if isinstance(error, FileNotFoundError) and self._what == "read":
            raise NotFound(
                f"no blob {self._digest} is stored.",
                field="blob",
                got=self._digest,
                hint=f"It should be at {self._url}; is blob_url the same everywhere?",
            ) from error
        text = " ".join(str(error).split())[:300] or type(error).__name__
        message = f"failed to {self._what} a large value at {self._url}: {text}"
        if isinstance(error, PermissionError | FileNotFoundError):
            raise StoreError(
                message, field="blob_url", hint="Check the bucket and the credentials."
            ) from error
        raise StoreUnreachable(message, field="blob_url") from error


def check_blob_url(url: str) -> None:
    """Refuses a url that cannot be used here."""
    parts = urlsplit(url)
    if not parts.scheme:
        raise InvalidInput(
            "blob_url must be a url.",
            field="blob_url",
            got=url,
            hint="e.g. s3://bucket/locktender, or file:///srv/locktender/values",
        )
    if parts.username or parts.password:
        raise InvalidInput(
            "blob_url must not hold credentials.",
            field="blob_url",
            got=f"{parts.scheme}://…",
            hint="Set them in the environment, e.g. AWS_ACCESS_KEY_ID.",
        )


def _filesystem(url: str) -> tuple[Any, str]:
    check_blob_url(url)
    scheme = _scheme(url)
    try:
        fsspec: Any = import_module("fsspec")
        # Listings that are kept would hide what other processes stored.
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        package = "" if error.name == "fsspec" else PACKAGES.get(scheme, "")
        raise InvalidInput(
            f"blob_url {scheme}:// needs a package that is not installed.",
            field="blob_url",
            got=f"{scheme}://…",
            hint=f"Try: pip install 'locktender[blobs]'{f' {package}' if package else ''}",
        ) from error
    except ValueError as error:
        raise InvalidInput(
            f"blob_url: {error}.",
            field="blob_url",
            got=f"{scheme}://…",
            hint="e.g. s3://bucket/folder",
        ) from error
    return fs, str(root).rstrip("/")


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _scheme(url: str) -> str:
    return urlsplit(url).scheme


def _digest_of(info: dict[str, Any]) -> str:
    return info["name"].rstrip("/").split("/")[-2]


def _is_object(info: dict[str, Any], *, drafts: bool = False) -> bool:
    """`drafts`: also what a process left that ended while it wrote."""
    parts = info["name"].split("/")
    return (
        info["type"] == "file"
        and len(parts) > 2
        and (not parts[-1].startswith(".") or (drafts and parts[-1].endswith(DRAFT)))
        and _DIGEST.fullmatch(parts[-2]) is not None
    )


def _put_at(info: dict[str, Any]) -> int:
    """When an object was stored, in microseconds, by the clock of the place."""
    for key in ("LastModified", "last_modified", "updated", "mtime", "created"):
        value = info.get(key)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1_000_000)
        if isinstance(value, str):
            return int(datetime.fromisoformat(value).timestamp() * 1_000_000)
        if isinstance(value, int | float):
            return int(value * 1_000_000)
    # Its age is not known: it counts as new, and stays.
    return 1 << 62


def _changed(digest: str, url: str) -> WrongContent:
    return WrongContent(
        f"blob {digest} has other content than was stored.",
        field="blob",
        got=digest,
        hint=f"Look at it at {url}.",
    )
