"""B12: the lease outlives a blocked loop and follows a body that outlives its engine, or the process ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from locktender import embedded
from locktender.testing import check_history

SCRIPT = """
import sys, time
from locktender import current, embedded, flow, step

def record(word):
    with open(sys.argv[2], "a") as file:
        file.write(word + "\\n")

@step(pool="p")
async def blocks(seconds: float) -> float:
    record("begin")
    time.sleep(seconds)
    record("end")
    return seconds

@step(pool="p")
def stays(seconds: float) -> float:
    (current(required=True).workdir / "file").write_text("x")
    record("begin")
    time.sleep(seconds)
    record("end")
    return seconds

@flow
def blocking(seconds: float) -> float:
    return blocks(seconds)

@flow
def staying(seconds: float) -> float:
    return stays(seconds)

LEASE = dict(worker_lease="1200ms", heartbeat="300ms", leader_lease="900ms", leader_renew="300ms")
"""


def run_script(tmp_path: Path, body: str) -> tuple[int, str, list[str]]:
    script, record = tmp_path / "steps.py", tmp_path / "record"
    script.write_text(SCRIPT + textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "h.db"), str(record)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    return done.returncode, done.stdout + done.stderr, record.read_text().split()


def test_b12_an_async_step_that_blocks_the_loop_past_the_lease_keeps_it(tmp_path: Path) -> None:
    code, output, record = run_script(
        tmp_path,
        """
        with embedded(sys.argv[1], **LEASE) as engine:
            engine.pools.set("p", limit=1)
            print(engine.submit(blocking, 3.0).result(timeout="30s"))
        """,
    )
    assert (code, record) == (0, ["begin", "end"]), output
    check_history(tmp_path / "h.db")


def test_c3_a_thread_that_outlives_close_keeps_its_slot_until_it_ends(tmp_path: Path) -> None:
    code, output, record = run_script(
        tmp_path,
        """
        first = embedded(sys.argv[1], grace="100ms", **LEASE)
        first.pools.set("p", limit=1)
        first.submit(staying, 2.5)
        while "begin" not in open(sys.argv[2], "a+").read() and not first.workers.list()[0].in_flight:
            pass
        first.close()
        with embedded(sys.argv[1], **LEASE) as second:
            second.submit(staying, 0.1).result(timeout="30s")
            [run.wait(timeout="30s") for run in map(second.runs.get, (r.id for r in second.runs.list()))]
        """,
    )
    # Never two at once; the task that was left behind runs again once its thread has ended.
    assert code == 0, output
    assert record == ["begin", "end"] * 3, output
    check_history(tmp_path / "h.db")


def test_b12_a_process_whose_thread_outlives_a_lost_lease_ends_hard(tmp_path: Path) -> None:
    code, output, record = run_script(
        tmp_path,
        """
        import sqlite3
        engine = embedded(sys.argv[1], exit_when_stuck=True, **LEASE)
        run = engine.submit(staying, 30.0)
        while not engine.workers.list()[0].in_flight:
            pass
        # Nobody can write any more, so nobody can renew.
        other = sqlite3.connect(sys.argv[1], isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        run.wait(timeout="20s")
        """,
    )
    assert code == 75, output
    assert record == ["begin"]
    # B13: nor does its work directory outlive it.
    assert not list((tmp_path / "h.db-work").rglob("file"))
    with embedded(tmp_path / "h.db") as engine:
        assert engine.runs.list()[0].state == "running"
