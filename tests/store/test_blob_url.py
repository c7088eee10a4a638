"""Large values at `blob_url`, in files, on an S3 and a GCS server: stored, read, swept, never the wrong ones."""

from __future__ import annotations

import io
import re
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import msgspec
import pytest
from tests.support.gcs_server import gcs_server
from tests.support.s3_server import s3_server

from locktender.base.clock import SystemClock
from locktender.base.codec import blob_ref
from locktender.base.config import FOR_BODIES, load
from locktender.base.errors import InvalidInput, NotFound, StoreError
from locktender.store.blob_url import HALF_GRACE_US, BlobPlace
from locktender.store.open import store_for
from locktender.store.protocol import Discard
from locktender.store.pruning import BLOB_GRACE_US, sweep
from locktender.store.sqlite.backup import back_up
from locktender.store.stored_files import FileRef, StoredFile
from locktender.testing.conformance.world import new_run, submit

pytest_plugins = ["locktender.testing.postgres"]
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs does
BUCKET = "values"
HOUR = 3_600_000_000
LARGE = b"x" * 3_000_000


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server(BUCKET) as variables:
        yield variables


@pytest.fixture(scope="module")
def gs() -> Iterator[dict[str, str]]:
    with gcs_server(BUCKET) as variables:
        yield variables


@pytest.fixture(params=["file", "s3", pytest.param("gs", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/values"
    for name, value in request.getfixturevalue(request.param).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    fsspec.filesystem(request.param).clear_instance_cache()
    return f"{request.param}://{BUCKET}/{tmp_path.name}"


class LaterClock(SystemClock):
    """Ahead of the clock of the place."""

    def __init__(self, ahead_us: int) -> None:
        self._ahead_us = ahead_us

    def now(self) -> int:
        return super().now() + self._ahead_us


def objects(place: Any, digest: str) -> list[dict[str, Any]]:
    return place._objects(digest)


def test_a_value_comes_back_as_it_was_stored(url: str):
    place = BlobPlace(url)
    digest = place.put(LARGE)
    assert BlobPlace(url).get(digest) == LARGE
    assert place.put(LARGE) == digest
    assert len(objects(place, digest)) == 1
    assert place.get(place.put(b"")) == b""
    for missing in ("0" * 64, "../owner", ""):
        with pytest.raises(NotFound):
            place.get(missing)


def test_content_that_was_changed_is_refused(url: str):
    place = BlobPlace(url)
    digest = place.put(LARGE)
    [info] = objects(place, digest)
    fs, _ = fsspec.core.url_to_fs(url)
    fs.pipe_file(info["name"], b"y" * len(LARGE))
    with pytest.raises(NotFound, match="other content"):
        place.get(digest)
    with pytest.raises(NotFound, match="other content"):
        place.copy_out(digest, io.BytesIO())


def test_a_value_that_was_cut_off_is_stored_anew(url: str):
    place = BlobPlace(url)
    digest = place.put(LARGE)
    [cut] = objects(place, digest)
    fs, _ = fsspec.core.url_to_fs(url)
    fs.pipe_file(cut["name"], LARGE[:-1])
    assert place.put(LARGE) == digest
    fs.rm_file(cut["name"])
    assert place.get(digest) == LARGE


def test_nothing_is_left_of_values_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No folder without a value, and no draft of a process that ended while it wrote."""
    place = BlobPlace(f"file://{tmp_path}/values")
    digest = place.put(LARGE)
    folder = Path(objects(place, digest)[0]["name"]).parent
    draft = folder / ".abc.draft"
    draft.write_bytes(b"a part")
    later = SystemClock().now() + HOUR
    assert list(place.put_before(0)) == []
    assert set(place.put_before(later)) == {digest}
    assert not place.remove(digest, 0)
    assert draft.exists()
    assert place.remove(digest, later)
    assert not folder.exists()
    # A draft alone is found too, and is no value.
    folder.mkdir()
    draft.write_bytes(b"a part")
    assert not place.has(digest)
    assert (list(place.put_before(later)), place.remove(digest, later)) == ([digest], False)
    assert not folder.exists()

    # The folder goes between its making and the first byte of the next value.
    made = tempfile.mkstemp

    def swept(**options: Any) -> tuple[int, str]:
        monkeypatch.setattr(tempfile, "mkstemp", made)
        assert not place.remove(digest, later)
        return made(**options)

    monkeypatch.setattr(tempfile, "mkstemp", swept)
    assert place.put(LARGE) == digest
    assert place.get(digest) == LARGE


def test_a_value_stored_again_survives_the_old_ones_sweep(url: str):
    """The sweep has decided by the old object; it is stored again before that is removed."""
    digest = BlobPlace(url).put(LARGE)
    now = SystemClock().now()
    later = BlobPlace(url, LaterClock(HALF_GRACE_US + HOUR))
    [old] = objects(later, digest)
    assert list(later.put_before(now + HOUR)) == [digest]
    assert later.put(LARGE) == digest
    fresh = [info for info in objects(later, digest) if info["name"] != old["name"]]
    assert len(fresh) == 1
    # By their ages the sweep removes the old one alone; both have the same age on this machine.
    later._fs.rm_file(old["name"])
    assert later.get(digest) == LARGE


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_the_sweep_removes_what_no_row_names(
    url: str, database: str, tmp_path: Path, request: pytest.FixtureRequest
):
    where = (
        str(tmp_path / "a.db") if database == "sqlite" else request.getfixturevalue("postgres_url")
    )
    settings = load(overrides={"url": where, "blob_url": url})
    store = store_for(settings)
    await store.open()
    try:
        digest, kept = await store.put_blob(LARGE), await store.put_blob(LARGE + b"kept")
        file = BlobPlace(url).put_file(io.BytesIO(b"file"))
        named = msgspec.json.encode(
            {"a": msgspec.Raw(blob_ref(kept, 1)), "b": StoredFile(FileRef(*file))}
        )
        await submit(store, msgspec.structs.replace(new_run(), params=named))
        now = SystemClock().now()
        assert (await sweep(store, now)).blobs == 0
        assert await store.get_blob(digest) == LARGE
        assert (await sweep(store, now + BLOB_GRACE_US + HOUR)).blobs == 1
        assert await store.get_blob(kept) == LARGE + b"kept"
        assert BlobPlace(url).get(file[0]) == b"file"
        with pytest.raises(NotFound, match="is blob_url the same everywhere"):
            await store.get_blob(digest)
    finally:
        await store.close()


async def test_a_store_that_is_not_the_owner_removes_nothing(url: str, tmp_path: Path):
    first = store_for(load(overrides={"url": str(tmp_path / "a.db"), "blob_url": url}))
    copy = store_for(load(overrides={"url": str(tmp_path / "b.db"), "blob_url": url}))
    for store in (first, copy):
        await store.open()
    try:
        digest = await first.put_blob(LARGE)
        later = SystemClock().now() + BLOB_GRACE_US + HOUR
        assert (await sweep(copy, later)).blobs == 0
        assert (await copy.discard(Discard([], [digest], 0, later))).blobs == 0
        assert await copy.get_blob(digest) == LARGE
        assert (await sweep(first, later)).blobs == 1
    finally:
        for store in (first, copy):
            await store.close()


async def test_values_from_before_blob_url_are_still_read(tmp_path: Path):
    where = str(tmp_path / "a.db")
    before = store_for(load(overrides={"url": where}))
    await before.open()
    digest = await before.put_blob(LARGE)
    await before.close()
    after = store_for(load(overrides={"url": where, "blob_url": f"file://{tmp_path}/values"}))
    await after.open()
    try:
        assert await after.get_blob(digest) == LARGE
    finally:
        await after.close()


class Pieces(io.RawIOBase):
    """A file of zeros that is nowhere."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def read(self, size: int = -1) -> bytes:
        n = min(size, self._size - self._at)
        self._at += n
        return b"\0" * n

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset
        return offset


def test_files_go_in_and_out_in_pieces(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file of 80 MB takes less memory than half of it."""
    monkeypatch.setenv("LOCKTENDER_BLOB_URL", url)
    monkeypatch.delitem(FOR_BODIES, "LOCKTENDER_BLOB_URL", raising=False)
    size = 80 << 20
    StoredFile.store(io.BytesIO(b"first: what is imported and opened"))
    tracemalloc.start()
    try:
        stored = StoredFile.store(_binary(Pieces(size)))
        saved = stored.save(tmp_path / "copy")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert saved.stat().st_size == stored.size == size
    assert peak < size // 2
    with stored.open() as file:
        assert file.read(10) == b"\0" * 10


def _binary(file: Any) -> BinaryIO:
    return file


def test_a_file_that_changes_while_it_is_stored_is_refused(url: str):
    class Changing(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            self.getbuffer()[0:1] = b"!"
            return super().seek(offset, whence)

    place = BlobPlace(url)
    with pytest.raises(StoreError, match="changed while it was stored"):
        place.put_file(Changing(b"a" * (6 << 20)))
    assert list(place.put_before(1 << 61)) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("values", "must be a url"),
        ("s3://key:secret@bucket", "must not hold credentials"),
        ("az://container", "locktender\\[blobs\\]' adlfs"),
        ("nowhere://x", "blob_url"),
    ],
)
def test_a_wrong_blob_url_is_refused(wrong: str, says: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)  # as where it is not installed
    with pytest.raises(InvalidInput) as refused:
        BlobPlace(wrong)
    assert re.search(says, f"{refused.value} {refused.value.hint}")
    assert "secret" not in str(refused.value)


def test_a_place_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(StoreError, match="failed to store a large value at s3://b"):
        BlobPlace("s3://b/x").put(LARGE)


async def test_a_back_up_names_values_elsewhere_and_misses_none(url: str, tmp_path: Path):
    where = str(tmp_path / "a.db")
    store = store_for(load(overrides={"url": where, "blob_url": url}))
    await store.open()
    digest = await store.put_blob(LARGE)
    named = msgspec.structs.replace(new_run(), params=blob_ref(digest, len(LARGE)))
    await submit(store, named)
    await store.close()
    place = BlobPlace(url)
    done = back_up(where, tmp_path / "copy.db", None, place.has)
    assert (done.blobs, done.elsewhere) == (0, 1)
    place.remove(digest, 1 << 61)
    with pytest.raises(StoreError, match="1 large values that runs refer to are missing"):
        back_up(where, tmp_path / "other.db", None, place.has)
