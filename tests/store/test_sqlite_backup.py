"""A back-up of a SQLite store beside a live engine: complete, checked, and never over another file."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from locktender import InvalidInput, NotFound, connect, embedded, flow, step
from locktender.base.clock import SystemClock
from locktender.base.errors import StoreError
from locktender.store.sqlite.backup import back_up
from locktender.store.sqlite.blobs import Blobs

BIG = 200_000


@step
async def large(number: int) -> str:
    return f"{number}" * BIG


@flow
def larger(number: int) -> str:
    return large(number)


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "locktender", *words], capture_output=True, text=True, timeout=120
    )


def test_a_copy_beside_a_live_engine_under_load_is_whole(url: Path, tmp_path: Path):
    copy = tmp_path / "copies" / "copy.db"
    copy.parent.mkdir()
    done = threading.Event()
    runs: list[Any] = []
    with embedded(url, blob_over="100kB") as engine:

        def load() -> None:
            while not done.is_set():
                runs.append(engine.submit(larger, len(runs) % 10))
                runs[-1].wait(60)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            while len(runs) < 5:
                runs and runs[-1].wait(60)
            before = len(runs) - 1
            answer = cli("db", "backup", str(copy), "--url", str(url), "--json")
        finally:
            done.set()
            thread.join()
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    assert said["file"] == str(copy)
    assert said["bytes"] == copy.stat().st_size
    assert said["violations"] == 0
    assert said["runs"] >= before
    assert said["blobs"] == len(list((tmp_path / "copies" / "copy.db-blobs").glob("??/*"))) > 0
    assert not list(copy.parent.glob("*.part*"))
    assert cli("audit", "--url", str(copy)).returncode == 0
    with connect(copy) as client:
        found = client.runs.list(status="succeeded", limit=1_000)
        assert len(found) >= before - 1
        for each in found[-5:]:
            assert len(client.runs.get(each.id).result(10)) == BIG


def test_a_back_up_overwrites_nothing(url: Path, tmp_path: Path):
    with embedded(url):
        copy = tmp_path / "copy.db"
        back_up(url, copy)
        before = copy.read_bytes()
        with pytest.raises(InvalidInput, match="exists"):
            back_up(url, copy)
        with pytest.raises(InvalidInput, match="exists"):
            back_up(url, url)
        assert copy.read_bytes() == before
        with pytest.raises(NotFound, match="no folder"):
            back_up(url, tmp_path / "nowhere" / "copy.db")
        with pytest.raises(NotFound, match="no store"):
            back_up(tmp_path / "none.db", tmp_path / "other.db")
        assert not list(tmp_path.glob("*.part*"))


def test_a_blob_that_is_missing_fails_the_back_up(url: Path, tmp_path: Path):
    with embedded(url, blob_over="100kB") as engine:
        engine.submit(larger, 1).wait(60)
        blobs = Blobs(url, SystemClock())
        for name in list(blobs.names()):
            blobs.remove(name, 2**62)
        with pytest.raises(StoreError, match="large values that runs refer to are missing"):
            back_up(url, tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy.db*"))


def test_a_file_that_is_no_store_is_refused(tmp_path: Path):
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(StoreError, match="not"):
        back_up(tmp_path / "other.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_on_postgresql_the_command_for_a_dump_is_named():
    url = "postgresql://me:secret@pooler:6432/app?schema=mine&pooled=true&listen=db:5432&sslmode=require"
    answer = cli("db", "backup", "my file.dump", "--url", url)
    assert answer.returncode == 2
    said = " ".join(answer.stderr.replace("│", " ").split())
    assert "pg_dump --format=custom --schema=mine --file='my file.dump'" in said
    assert "postgresql://me@db:5432/app?sslmode=require" in said.replace("' ", "'")
    assert "secret" not in answer.stderr


def test_two_back_ups_to_one_name_leave_one_whole_copy(url: Path, tmp_path: Path):
    copy = tmp_path / "copy.db"
    with embedded(url, blob_over="100kB") as engine:
        engine.submit(larger, 1).wait(60)

        async def both() -> list[Any]:
            tries = [asyncio.to_thread(back_up, url, copy) for _ in range(2)]
            return await asyncio.gather(*tries, return_exceptions=True)

        done = asyncio.run(both())
    refused = [each for each in done if isinstance(each, BaseException)]
    assert [type(each) for each in refused] == [InvalidInput]
    with connect(copy) as client:
        [run] = client.runs.list()
        assert len(client.runs.get(run.id).result(10)) == BIG
    assert not list(tmp_path.glob("*.part*"))
