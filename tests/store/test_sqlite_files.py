# ruff: noqa: ASYNC240
"""Files that cannot be used, and what is said about them; a store that fails and recovers."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender.base.clock import SystemClock
from locktender.base.errors import InvalidInput, StoreBusy, StoreError
from locktender.store.protocol import RunFilter
from locktender.store.sqlite import SqliteStore
from locktender.store.sqlite.session import SqliteSession
from locktender.store.sqlite.write_lock import WriteLock
from locktender.testing.conformance.world import (
    SceneLeader,
    expire_passed,
    join,
    new_run,
    set_ceiling,
    submit,
    submitted,
)

NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locktender.db"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="locktender-test-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


async def refused(path: Path, **options: int) -> StoreError:
    store = SqliteStore(path, **options)
    with pytest.raises(StoreError) as error:
        await store.open()
    assert error.value.hint
    assert "sqlite3" not in type(error.value).__module__
    return error.value


async def test_the_file_and_its_folders_are_made_on_first_use(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "locktender.db"
    store = SqliteStore(path)
    await store.open()
    await submitted(store)
    await store.close()
    assert path.is_file()


async def _modes(path: Path) -> set[str]:
    """The permissions of everything a store that worked has left: folders, then files."""
    store = SqliteStore(path)
    await store.open()
    await store.put_blob(b"large")
    await join(store, "worker")
    await submitted(store)
    found = {
        f"{'d' if each.is_dir() else 'f'}{each.stat().st_mode & 0o777:o}"
        for each in path.parent.rglob("*")
        if not each.is_socket()
    }
    await store.close()
    return found


async def test_nobody_else_may_open_a_stores_files(tmp_path: Path) -> None:
    """A lock that a foreign user may open is a lock that it may keep."""
    path = tmp_path / "new" / "locktender.db"
    assert await _modes(path) == {"d700", "f600"}
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_files_beside_a_shared_database_are_shared_like_it(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    path.touch()
    path.chmod(0o660)
    assert await _modes(path) == {"d770", "f660"}


def _open_files() -> list[str]:
    """What each file descriptor stands for; nothing where the platform does not tell."""
    return sorted(str(fd.readlink()) for fd in Path("/proc/self/fd").glob("*") if fd.is_symlink())


async def test_nothing_is_left_behind(path: Path) -> None:
    threads = threading.active_count()
    open_files = _open_files()
    store = SqliteStore(path)
    for _ in range(3):
        await store.open()
        await submitted(store)
        await store.wait(0)
        await store.close()
        await store.close()
    assert threading.active_count() <= threads
    assert list(path.with_name(path.name + "-wake").iterdir()) == []
    assert not path.with_name(path.name + "-wal").exists()
    assert Counter(_open_files()) <= Counter(open_files)


async def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="not open"):
        await store.runs(RunFilter())
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await submitted(store)


async def test_what_was_handed_in_before_closing_is_done(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    work = [asyncio.ensure_future(submitted(store)) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert [run.outcome for run in await asyncio.gather(*work)] == ["created"] * 50


@pytest.mark.parametrize("path", [":memory:", "", "file:x?mode=memory"])
def test_memory_is_no_file(path: str) -> None:
    with pytest.raises(InvalidInput):
        SqliteStore(path)


async def test_a_directory(tmp_path: Path) -> None:
    assert "directory" in str(await refused(tmp_path))


async def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    await refused(tmp_path / "file" / "locktender.db")


async def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"This is not a database. " * 200)
    assert "damaged" in str(await refused(path))
    assert path.read_bytes().startswith(b"This is not")


async def test_a_database_of_another_program(path: Path) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE users (name)")
    db.close()
    assert "another program" in str(await refused(path))


async def test_a_damaged_file(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await set_ceiling(store, -1)
    await submit(store, *(new_run() for _ in range(500)))
    await store.close()
    data = bytearray(path.read_bytes())
    for page in range(4_096, len(data), 4_096):
        data[page : page + 64] = b"\xff" * 64
    path.write_bytes(data)
    assert "damaged" in str(await refused(path))


async def test_a_file_locked_by_another_tool(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_us=100_000)
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        await submitted(store)
    assert isinstance(await refused(path, busy_timeout_us=100_000), StoreBusy)
    other.execute("ROLLBACK")
    other.close()
    assert (await submitted(store)).outcome == "created"
    await store.close()


async def test_a_process_stopped_while_writing_blocks_nobody(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_us=100_000)
    await store.open()
    stopped = WriteLock(path, SystemClock(), 1)
    stopped.enter()
    with pytest.raises(StoreBusy):
        await submitted(store)
    stopped.leave()
    stopped.close()
    assert (await submitted(store)).outcome == "created"
    await store.close()


def as_nobody(path: Path) -> str:
    """What opening `path` says to a user without rights; '' if it works."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "the child failed"
        try:
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            said = asyncio.run(_what_is_said(path))
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    said = os.read(read, 10_000).decode()
    os.close(read)
    return said


async def _what_is_said(path: Path) -> str:
    store = SqliteStore(path)
    try:
        await store.open()
        await submitted(store)
        await store.close()
    except StoreError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_read_only_file(shared: Path) -> None:
    path = shared / "locktender.db"
    asyncio.run(_what_is_said(path))
    for each in shared.iterdir():
        each.chmod(0o777 if each.is_dir() else 0o666)
    path.chmod(0o444)
    assert "read-only" in as_nobody(path)
    path.chmod(0o666)
    assert as_nobody(path) == ""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_read_only_folder(shared: Path) -> None:
    shared.chmod(0o555)
    said = as_nobody(shared / "locktender.db")
    shared.chmod(0o777)
    assert "writable" in said


def _limit_pages(session: SqliteSession, spare: int) -> None:
    pages = session.db.execute("PRAGMA page_count").fetchone()[0]
    session.db.execute(f"PRAGMA max_page_count = {pages + spare}").fetchall()


async def test_a_full_disk_fails_the_verb_and_nothing_else(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await set_ceiling(store, -1)
    writer = store._opened.writer
    await writer.call(lambda session: _limit_pages(session, 3), outside=True)
    large = [new_run(params={"x": "y" * 50_000}) for _ in range(4)]
    small = [new_run() for _ in range(4)]
    results = await asyncio.gather(
        *(submit(store, run) for pair in zip(large, small, strict=True) for run in pair),
        return_exceptions=True,
    )
    failed = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(error, StoreError) and "space" in str(error) for error in failed)
    assert len(failed) >= 4
    stored = {row.id for row in await store.runs(RunFilter())}
    told = {r[0].id for r in results if not isinstance(r, BaseException)}
    assert stored == told
    assert (await store.counts()).active[""] == len(told)
    await writer.call(lambda session: _limit_pages(session, 100_000), outside=True)
    assert [r.outcome for r in await submit(store, *large)] == ["created"] * 4
    await store.close()


async def test_companions_that_were_deleted_stop_nobody(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    shutil.rmtree(path.with_name(path.name + "-wake"))
    shutil.rmtree(path.with_name(path.name + "-live"), ignore_errors=True)
    assert (await submitted(store)).outcome == "created"
    led = await SceneLeader.stand(store)
    await join(store)
    assert await expire_passed(store, led.term, led.actor) == []
    assert (await submitted(store)).outcome == "created"
    await store.close()


async def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / ("name" * 30)
    store, other = SqliteStore(path), SqliteStore(path)
    await store.open()
    await other.open()
    mark = await store.wait(0)
    await submitted(other)
    assert await store.wait(30_000_000, mark) > mark
    await store.close()
    await other.close()


async def test_a_relative_path_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("locktender.db")
    await store.open()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    digest = await store.put_blob(b"x")
    await submitted(store)
    await store.close()
    await store.open()
    assert await store.get_blob(digest) == b"x"
    assert len(await store.runs(RunFilter())) == 1
    await store.close()


async def test_a_blob_is_whole_or_absent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    await store.open()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space"):
            await store.put_blob(b"data")
    blobs = path.with_name(path.name + "-blobs")
    assert [each for each in blobs.rglob("*") if each.is_file()] == []
    digest = await store.put_blob(b"data")
    assert await store.get_blob(digest) == b"data"
    await store.close()
