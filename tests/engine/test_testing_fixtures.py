"""What users' tests are given: the fixtures, the recorder, the checks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from locktender import Client, NotFound, flow, step
from locktender.store.sqlite import SqliteStore
from locktender.testing import (
    Engines,
    HistoryViolated,
    MaxConcurrent,
    Overlap,
    VirtualClock,
    check_history,
    eventually,
    recording,
)

pytest_plugins = ["locktender.testing.plugin"]

A_USERS_TEST = """
import asyncio
import pytest
from locktender import flow, step
from locktender.testing import recording

pytest_plugins = ["locktender.testing.plugin"]

@step(pool="db")
async def query(item: int) -> int:
    with recording("db"):
        await asyncio.sleep(0.01)
    return item

@flow
def queries(items: list[int]) -> list[int]:
    return query.map(items)

@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_limit_holds(engine, assert_max_concurrent, limit):
    engine.pools.set("db", limit=limit)
    assert engine.submit(queries, list(range(8))).result("60s") == list(range(8))
    assert_max_concurrent("db", limit, exactly=True)

def test_time(engine, engine_clock):
    run = engine.submit(queries, [1], deadline="1h")
    run.result("60s")
    engine.limits.pause()
    late = engine.submit(queries, [1], deadline="1h")
    engine_clock.move("61m")
    assert late.wait("60s") == "timed_out"

def test_it_fails(engine, assert_max_concurrent):
    engine.submit(queries, [1, 2, 3]).result("60s")
    assert_max_concurrent("db", 2)
"""


@pytest.mark.slow
def test_the_plugin_in_a_users_tests_under_xdist(tmp_path: Path):
    (tmp_path / "test_user.py").write_text(A_USERS_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "test_user.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert "5 passed" in done.stdout, done.stdout
    assert "1 failed" in done.stdout
    assert "db: the history had 3 at once; the limit is 2." in done.stdout


@pytest.fixture
def engine(make_engine: Engines) -> Client:
    """As the plugin's, whatever a conftest calls by that name."""
    return make_engine()


@step(pool="db")
async def query(item: int) -> int:
    with recording("db", label=str(item)):
        await asyncio.sleep(0.01)
    return item


@step
def plain(item: int) -> int:
    return item + 1


@step(pools={"gone": 1}, retries=1, retry_delay="1h", jitter=False)
def flaky(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        raise OSError("the first time")
    return "done"


@flow
def queries(items: list[int]) -> list[int]:
    return query.map(items)


@flow
def plains(items: list[int]) -> list[int]:
    return plain.map(items)


@flow
def patient(path: str) -> str:
    return flaky(path)


def test_an_isolated_engine_and_its_peak(
    engine: Client, assert_max_concurrent: MaxConcurrent, overlap: Overlap
):
    engine.pools.set("db", limit=3)

    assert engine.submit(queries, list(range(10))).result("60s") == list(range(10))

    assert assert_max_concurrent("db", 3, exactly=True) == 3
    assert sorted(overlap.labels("db"), key=int) == [str(n) for n in range(10)]
    assert all(span.finished for span in overlap.spans("db"))


def test_a_peak_above_the_limit_is_an_error(
    engine: Client, assert_max_concurrent: MaxConcurrent, overlap: Overlap
):
    engine.submit(queries, list(range(4))).result("60s")

    with pytest.raises(AssertionError, match="db: the history had 4 at once; the limit is 3"):
        assert_max_concurrent("db", 3)
    with pytest.raises(AssertionError, match="only 4 at once"):
        assert_max_concurrent("db", 5, exactly=True)
    with pytest.raises(NotFound, match="db"):
        assert_max_concurrent("bd", 3)
    with (
        overlap.body("db"),
        overlap.body("db"),
        overlap.body("db"),
        overlap.body("db"),
        overlap.body("db"),
    ):
        pass
    with pytest.raises(AssertionError, match="the bodies had 5 at once"):
        assert_max_concurrent("db", 4)


def test_bodies_are_watched_without_touching_them(engine: Client, overlap: Overlap):
    with overlap.watch(plain), overlap.watch(query, "queries"):
        engine.submit(plains, [1, 2, 3]).result("60s")
        engine.submit(queries, [1]).result("60s")

    assert overlap.count("plain") == 3
    assert overlap.count("queries") == 1
    engine.submit(plains, [1]).result("60s")
    assert overlap.count("plain") == 3


def test_the_clock_moves_only_when_told(
    engine_clock: VirtualClock, make_engine: Engines, tmp_path: Path
):
    engine = make_engine()
    run = engine.submit(patient, str(tmp_path / "tried"))
    eventually(lambda: [t for t in run.tasks() if t.not_before is not None])
    before = engine_clock.now()

    engine_clock.move("59m")
    assert "back-off" in str(run.why())
    engine_clock.move("61s")

    assert run.result("60s") == "done"
    assert engine_clock.now() - before == 3_601_000_000


@pytest.fixture
def engine_settings() -> dict[str, Any]:
    return {"max_active": 77}


def test_settings_of_a_module_and_of_one_engine(make_engine: Engines):
    assert make_engine().settings.max_active == 77
    other = make_engine(max_active=78, thread_permits=2)
    assert (other.settings.max_active, other.settings.thread_permits) == (78, 2)
    assert Path(other.settings.work_dir).is_relative_to(make_engine.path.parent)
    assert {each.name: each.value for each in make_engine.connect().limits.list()}[
        "max_active"
    ] == "78"


async def test_a_history_can_be_checked_from_async_code(make_engine: Engines):
    engine = make_engine()
    engine.submit(plains, [1, 2]).result("60s")

    assert check_history(engine).complete
    assert check_history(make_engine.path).events


def test_a_broken_promise_is_found(tmp_path: Path, overlap: Overlap):
    """A row that says something else than the history, and an event that cannot be."""
    import sqlite3

    engines = Engines(tmp_path, overlap, {})
    engine = engines()
    run = engine.submit(plains, [1])
    run.result("60s")
    engines.close()

    with sqlite3.connect(engines.path) as db:
        db.execute("UPDATE run SET state = 'failed'")
    with pytest.raises(HistoryViolated, match="its row says failed, the history succeeded"):
        engines.close()
    with sqlite3.connect(engines.path) as db:
        db.execute("UPDATE run SET state = 'succeeded'")
        db.execute("DELETE FROM event WHERE seq = (SELECT max(seq) FROM event WHERE run > 0)")
    db.close()
    with pytest.raises(HistoryViolated) as caught:
        engines.close()
    assert "no_loss" in {violation.rule for violation in caught.value.violations}


# -- the recorder ----------------------------------------------------------------------------------


def test_overlap_counts_by_order_and_weight(overlap: Overlap):
    with overlap.body("a", label="x"):
        with overlap.body("a", weight=3), overlap.body("b"):
            assert overlap.peak("a") == 4
        with overlap.body("a"):
            pass

    assert overlap.levels("a") == [0, 1, 4, 1, 2, 1, 0]
    assert (overlap.peak("a"), overlap.peak("b"), overlap.names()) == (4, 1, ["a", "b"])
    with pytest.raises(NotFound):
        overlap.peak("c")


def test_overlap_from_threads_and_processes(overlap: Overlap):
    barrier = threading.Barrier(5)

    def body() -> None:
        with recording("a", label="x" * 500):
            barrier.wait(60)

    threads = [threading.Thread(target=body) for _ in range(4)]
    code = "from locktender.testing import recording\nwith recording('a'): print('in'); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "in\n"
    for thread in threads:
        thread.start()
    barrier.wait(60)
    for thread in threads:
        thread.join()
    child.communicate("\n")

    assert overlap.peak("a") == 5
    assert overlap.levels("a")[-1] == 0
    assert {span.pid for span in overlap.spans("a")} == {os.getpid(), child.pid}


def test_a_killed_body_counts_until_it_is_killed(overlap: Overlap):
    code = "from locktender.testing import recording\nwith recording('a'): print('in'); input()"
    children: list[subprocess.Popen[str]] = []
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "in\n"
        children.append(child)
    first, second = children
    assert overlap.peak("a") == 2

    overlap.kill(first.pid)
    with overlap.body("a"):
        pass
    second.kill()
    for child in (first, second):
        child.communicate()

    assert overlap.levels("a") == [0, 1, 2, 1, 0, 1, 0]  # the second: up to its last line
    assert [span.finished for span in overlap.spans("a")] == [False, False, True]


def test_a_paused_process_begins_nothing_behind_the_mark(overlap: Overlap):
    code = """if True:
    import os
    from locktender.testing import recording
    parent = os.getppid()
    while os.getppid() == parent:
        with recording('a'): pass
    """
    child = subprocess.Popen([sys.executable, "-c", code])
    for _ in range(20):
        seen = len(overlap.lines())
        eventually(lambda seen=seen: len(overlap.lines()) > seen + 3)
        overlap.pause(child.pid)
        at = len(overlap.lines()) - 1
        assert overlap.lines()[at].kind == "pause"
        overlap.resume(child.pid)
        assert [line.kind for line in overlap.lines()[at : at + 2]] == ["pause", "resume"]
    overlap.kill(child.pid)
    child.wait()


def test_a_woken_process_counts_once_it_has_noticed(overlap: Overlap):
    pid = os.getpid()
    with overlap.body("a"):
        overlap._write("pause", pid, 0, "", "")
        overlap.resume(pid, until_noticed=True)
        with overlap.body("a"), overlap.body("a"):
            pass
        overlap.noticed(pid)
        with overlap.body("a"):
            pass

    assert overlap.levels("a") == [0, 1, 0, 1, 0]


def test_an_error_of_the_body_is_recorded(overlap: Overlap):
    with pytest.raises(ValueError), overlap.body("a"):
        raise ValueError("x")

    (span,) = overlap.spans("a")
    assert (span.error, span.finished) == ("ValueError", False)


def test_nothing_is_recorded_outside_of_a_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("LOCKTENDER_TEST_OVERLAP", raising=False)
    monkeypatch.chdir(tmp_path)
    with recording("a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_plugin_costs_nothing_before_it_is_used():
    code = "import sys, locktender.testing.plugin; print([m for m in sys.modules if 'locktender.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['locktender.testing', 'locktender.testing.plugin']"


def test_sqlite_store_is_what_the_virtual_clock_replaces(
    engine_clock: VirtualClock, make_engine: Engines
):
    """A second client on the same file has the same time."""
    first, second = make_engine(), make_engine.connect()
    for client in (first, second):
        store = client._core.store
        assert isinstance(store, SqliteStore)
        assert asyncio.run(store.now()) == engine_clock.now()
