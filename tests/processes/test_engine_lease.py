"""B12: the lease outlives a blocked loop and follows a body that outlives its engine, or the process ends.

Bodies run until the test opens a latch; that a lease is kept is seen by its renewals in the store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from locktender import Client, connect, embedded
from locktender.testing import check_history, eventually

PATIENCE_SECONDS = 180.0
SCRIPT = """
import sys, time
from pathlib import Path
from locktender import current, embedded, flow, step

def record(word):
    with open(sys.argv[2], "a") as file:
        file.write(word + "\\n")

def until_open():
    while not Path(sys.argv[3]).exists():
        time.sleep(0.002)

@step(pool="p")
async def blocks() -> None:
    record("begin")
    until_open()
    record("end")

@step(pool="p")
def stays() -> None:
    (current(required=True).workdir / "file").write_text("x")
    record("begin")
    until_open()
    record("end")

@flow
def blocking() -> None:
    return blocks()

@flow
def staying() -> None:
    return stays()

KEPT = dict(worker_lease="10m", heartbeat="200ms", leader_lease="10m", leader_renew="200ms")
SHORT = dict(worker_lease="1200ms", heartbeat="300ms", leader_lease="900ms", leader_renew="300ms")
"""


class Script:
    """A program in a process of its own."""

    def __init__(self, folder: Path, body: str) -> None:
        self.store, self._record, self.latch = folder / "h.db", folder / "record", folder / "latch"
        (folder / "steps.py").write_text(SCRIPT + textwrap.dedent(body))
        self._out = folder / "out"
        command = [sys.executable, "steps.py", *map(str, (self.store, self._record, self.latch))]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)

    @property
    def record(self) -> list[str]:
        return self._record.read_text().split() if self._record.exists() else []

    def has_begun(self) -> bool:
        assert self.process.poll() is None, self.output
        return self.record == ["begin"]

    @property
    def output(self) -> str:
        return self._out.read_text()


@contextmanager
def running(folder: Path, body: str) -> Generator[Script]:
    script = Script(folder, body)
    try:
        yield script
    finally:
        script.process.kill()
        script.process.wait()


def renewed(client: Client, worker: str, times: int = 3) -> None:
    """Waits until a worker has renewed its lease so many times."""
    for _ in range(times):
        until = client.workers.get(worker).lease_until
        eventually(lambda before=until: client.workers.get(worker).lease_until > before)


def test_b12_an_async_step_that_blocks_the_loop_keeps_the_lease(tmp_path: Path) -> None:
    body = """
        with embedded(sys.argv[1], **KEPT) as engine:
            engine.pools.set("p", limit=1)
            engine.submit(blocking).result(timeout="150s")
        """
    with running(tmp_path, body) as script:
        eventually(script.has_begun)
        with connect(script.store) as client:
            renewed(client, client.workers.list()[0].id)
        script.latch.touch()
        assert script.process.wait(PATIENCE_SECONDS) == 0, script.output
        assert script.record == ["begin", "end"]
    check_history(tmp_path / "h.db")


def test_c3_a_thread_that_outlives_close_keeps_its_slot(tmp_path: Path) -> None:
    body = """
        first = embedded(sys.argv[1], grace="100ms", **KEPT)
        first.pools.set("p", limit=1)
        left = first.submit(staying).id
        while not any(w.in_flight for w in first.workers.list()) or not Path(sys.argv[2]).exists():
            pass
        first.close()
        record("closed")
        with embedded(sys.argv[1], **KEPT) as second:
            again = second.submit(staying)
            second.runs.get(left).wait(timeout="150s")
            again.wait(timeout="150s")
        """
    with running(tmp_path, body) as script:
        eventually(lambda: script.record == ["begin", "closed"])
        with connect(script.store) as client:
            # the second engine leads and waits for the slot; the first one's worker goes on renewing
            eventually(lambda: client.pools.get("p").waiting > 0)
            assert client.pools.get("p").used == 1
            [worker] = {
                task.worker
                for run in client.runs.list()
                for task in client.runs.get(run.id).tasks()
            } - {None}
            renewed(client, worker)
        assert script.record == ["begin", "closed"]
        script.latch.touch()
        assert script.process.wait(PATIENCE_SECONDS) == 0, script.output
        # Never two at once; the task that was left behind runs again once its thread has ended.
        assert script.record == ["begin", "closed", "end", "begin", "end", "begin", "end"], (
            script.output
        )
    check_history(tmp_path / "h.db")


def test_b12_a_thread_that_outlives_the_lease_ends_the_process(tmp_path: Path) -> None:
    body = """
        import sqlite3
        engine = embedded(sys.argv[1], exit_when_stuck=True, **SHORT)
        run = engine.submit(staying)
        while not any(w.in_flight for w in engine.workers.list()) or not Path(sys.argv[2]).exists():
            pass
        # Nobody can write any more, so nobody can renew.
        other = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
        other.execute("BEGIN IMMEDIATE")
        run.wait(timeout="150s")
        """
    with running(tmp_path, body) as script:
        assert script.process.wait(PATIENCE_SECONDS) == os.EX_TEMPFAIL, script.output
        assert script.record == ["begin"]
    # B13: nor does its work directory outlive it.
    assert not list((tmp_path / "h.db-work").rglob("file"))
    with embedded(tmp_path / "h.db") as engine:
        assert engine.runs.list()[0].state == "running"
