"""A user that may not write a database can neither open nor lock the files beside it, and so blocks no write."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender.store.sqlite import SqliteStore
from locktender.testing.conformance.world import join, submitted

NOBODY = 65_534

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """It was there before the database, and every user may enter it."""
    made = Path(tempfile.mkdtemp(prefix="locktender-test-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def as_nobody(folder: Path) -> set[str]:
    """What another user could open or lock of the files in `folder`, while it holds all it got."""
    read, write = os.pipe()
    files = [each for each in folder.rglob("*") if each.is_file()]
    folders = [each for each in folder.rglob("*") if each.is_dir()]
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = "\n".join(sorted(_reached(files) | _listed(folders)))
        except BaseException as error:  # noqa: BLE001 — the test sees it
            said = f"the child failed: {error!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return set(said.splitlines())


def _reached(files: list[Path]) -> set[str]:
    found: set[str] = set()
    for file in files:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            try:
                fd = os.open(file, flags)
            except PermissionError:
                continue
            found.add(f"opened {file.name}")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.add(f"locked {file.name}")
            except BlockingIOError:
                pass
    return found


def _listed(folders: list[Path]) -> set[str]:
    found: set[str] = set()
    for folder in folders:
        try:
            list(folder.iterdir())
        except PermissionError:
            continue
        found.add(f"listed {folder.name}")
    return found


async def _use(path: Path, look: bool = True) -> set[str]:
    """A store that works, and what another user reaches meanwhile."""
    store = SqliteStore(path)
    await store.open()
    try:
        await store.put_blob(b"large")
        await join(store, "worker")
        await submitted(store)
        found = as_nobody(path.parent) if look else set[str]()
        await submitted(store)
    finally:
        await store.close()
    return found


def test_nobody_else_reaches_a_new_store_in_an_old_folder(folder: Path):
    assert asyncio.run(_use(folder / "locktender.db")) == set()
    names = {each.name for each in folder.rglob("*")}
    assert {"locktender.db-q.lock", "locktender.db-w.lock"} <= names  # there was something to reach


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_user_that_may_only_read_locks_nothing(folder: Path, mode: int):
    path = folder / "locktender.db"
    path.touch()
    path.chmod(mode)
    reached = asyncio.run(_use(path))
    own = {
        "locktender.db",
        "locktender.db-wal",
        "locktender.db-shm",
    }  # SQLite's: it never uses flock
    assert {each for each in reached if each.split()[1] not in own} == set()


def test_files_that_were_open_to_all_are_closed(folder: Path):
    path = folder / "locktender.db"
    asyncio.run(_use(path, look=False))
    for each in folder.glob("*.lock"):
        each.chmod(0o666)
    assert asyncio.run(_use(path)) == set()


def test_a_database_that_all_may_write_is_shared(folder: Path):
    path = folder / "locktender.db"
    path.touch()
    path.chmod(0o666)
    assert "opened locktender.db-q.lock" in asyncio.run(_use(path))
