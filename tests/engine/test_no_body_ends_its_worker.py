"""What a body starts may raise SystemExit or KeyboardInterrupt, or cancel every task there is: its own task
fails, the worker goes on."""

from __future__ import annotations

import gc
import logging
import selectors
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster

from locktender import Client, RunFailed, embedded
from locktender.testing import Engines, Overlap
from locktender.testing.processes import source
from locktender.worker.executors.body_loop import BodyLoop
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]
FILE = Path(__file__).parents[1] / "steps" / "exit_steps.py"
steps: Any = load(source(FILE))
TIMEOUT = "60s"


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def failure(engine: Client, flow: Any, *args: object) -> Any:
    with pytest.raises(RunFailed):
        (run := engine.submit(flow, *args)).result(TIMEOUT)
    [task] = [each for each in run.tasks() if each.error is not None]
    assert task.attempt == 1
    return task.error


@pytest.mark.parametrize("way", list(steps.WAYS))
def test_only_its_own_task_fails(
    way: str, make_engine: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    beside = engine.submit(steps.working, 7)

    error = failure(engine, steps.exiting, way)

    if way == "interrupted":
        assert (error.type, error.message) == ("KeyboardInterrupt", "not by a key")
    else:
        assert (error.type, error.message) == ("SystemExit", "enough")
    assert "base_events.py" not in error.traceback
    assert beside.result(TIMEOUT) == 7
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8
    said = [each for each in caplog.records if "something its body started raised" in each.msg]
    assert len(said) == 1
    assert "exits" in said[0].getMessage()
    gc.collect()  # a task whose error nobody has asked for says so now, and not in another test


def test_a_thread_that_ends_the_loop_fails_when_it_ends(make_engine: Engines) -> None:
    engine = make_engine()

    error = failure(engine, steps.exiting_in_a_thread)

    assert (error.type, error.message) == ("SystemExit", "enough")
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8


def test_a_generator_that_exits_when_it_is_closed_is_logged(
    make_engine: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()

    assert engine.submit(steps.generating).result(TIMEOUT) == "done"

    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8
    [said] = [each for each in caplog.records if "it is not known which step" in each.msg]
    assert said.levelno == logging.ERROR
    assert said.exc_info is not None
    assert said.exc_info[0] is SystemExit
    gc.collect()


def test_a_body_cannot_stop_the_loop(make_engine: Engines) -> None:
    engine = make_engine()

    error = failure(engine, steps.stopping)

    assert "would stop the loop of its worker" in error.message
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8


@pytest.mark.parametrize("way", list(steps.CANCELLINGS))
def test_who_cancels_what_is_not_its_own_fails_alone(
    way: str, make_engine: Engines, tmp_path: Path
) -> None:
    engine = make_engine()
    beside = engine.submit(steps.waiting, str(tmp_path / "go"))
    until(lambda: [each for each in beside.tasks() if each.state == "running"])

    error = failure(engine, steps.cancelling, way)

    if error.type != "CancelledError" or way != "and_itself":  # whichever it came to first
        assert error.type == "LocktenderError"
        assert "cancels would cancel a task of " in error.message
    (tmp_path / "go").touch()
    assert beside.result(TIMEOUT) == "seen"
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8


@pytest.mark.parametrize("way", ["together", "one by one", "of a body"])
def test_who_waits_for_tasks_of_others_is_timed_out_alone(
    way: str, make_engine: Engines, tmp_path: Path
) -> None:
    """asyncio cancels what a cancelled task waits for, too."""
    engine = make_engine()
    beside = engine.submit(steps.waiting, str(tmp_path / "go"))
    until(lambda: [each for each in beside.tasks() if each.state == "running"])

    assert failure(engine, steps.waiting_for_everything, way).type == "timeout"

    (tmp_path / "go").touch()
    assert beside.result(TIMEOUT) == "seen"
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8


def test_a_body_cancels_its_own_tasks_and_what_an_ended_one_left(make_engine: Engines) -> None:
    engine = make_engine()

    assert engine.submit(steps.cancelling_its_own).result(TIMEOUT) == ",".join(
        ["CancelledError"] * 3
    )
    assert engine.submit(steps.leaving_and_cancelling).result(TIMEOUT) is True


def test_a_body_may_close_the_engine_it_runs_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it ends then, whoever has asked: it waits for its own body no longer than the grace."""
    with embedded(tmp_path / "locktender.db", grace="100ms") as engine:
        steps.CLIENTS.append(engine)
        engine.submit(steps.closing)

        assert steps.CLOSED.wait(60)

    assert [each.name for each in caplog.records if "store is not open" in each.getMessage()] == []


def test_a_worker_process_goes_on(tmp_path: Path, overlap: Overlap) -> None:
    cluster = Cluster(str(tmp_path / "locktender.db"), tmp_path, overlap, grace="5s")
    worker = cluster.worker(FILE, lead=True).ready()
    try:
        engine = cluster.client()
        for way in ("in_a_task", "later", "interrupted"):
            assert failure(engine, steps.exiting, way).type in ("SystemExit", "KeyboardInterrupt")
        beside = engine.submit(steps.waiting, str(tmp_path / "go"))
        until(lambda: [each for each in beside.tasks() if each.state == "running"])
        for way in steps.CANCELLINGS:
            assert failure(engine, steps.cancelling, way).type in (
                "LocktenderError",
                "CancelledError",
            )
        (tmp_path / "go").touch()
        assert beside.result(TIMEOUT) == "seen"
        assert engine.submit(steps.working, 8).result(TIMEOUT) == 8
        assert [each.pid for each in engine.workers.list()] == [worker.pid]
        assert worker.close() == 0  # by SIGTERM, as ever
    finally:
        cluster.end()


# -- the loop itself -------------------------------------------------------------------------------


def test_the_worker_stays_ready_and_a_stop_ends_it() -> None:
    heard: list[int] = []
    deaths: list[BaseException] = []
    ended = threading.Event()
    bodies = BodyLoop(deaths.append, ended.set)

    def fill() -> None:
        bodies.loop.call_soon(heard.append, 1)
        bodies.loop.call_soon(sys.exit, "nobody's")
        bodies.loop.call_soon(heard.append, 2)
        bodies.loop.call_soon(bodies.close)
        bodies.loop.call_soon(sys.exit, "after the stop, in the same turn")

    bodies.call(fill)

    assert ended.wait(60)
    assert heard == [1, 2]
    assert deaths == []


@pytest.mark.skipif(
    selectors.DefaultSelector is selectors.PollSelector,
    reason="epoll and kqueue raise when they are closed, poll waits for ever",
)
def test_a_loop_that_fails_fails_its_attempts_and_is_replaced(
    make_engine: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()

    error = failure(engine, steps.breaking)

    assert error.type == "internal"
    assert "the event loop of async steps failed" in error.message
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8
    assert "a new loop is started" in caplog.text
    gc.collect()


def test_a_factory_of_tasks_is_for_what_bodies_make(make_engine: Engines) -> None:
    engine = make_engine()

    assert engine.submit(steps.setting_a_factory).result(TIMEOUT) == 1
    assert engine.submit(steps.working, 8).result(TIMEOUT) == 8


def test_a_body_that_blocks_its_loop_holds_no_other_executor(
    make_engine: Engines, tmp_path: Path
) -> None:
    """Async tasks wait for another worker, or for the loop; timeouts and threads go on."""
    engine = make_engine()
    blocking = engine.submit(steps.blocking, str(tmp_path / "go"))
    until((tmp_path / "go.begun").exists)

    assert failure(engine, steps.overstaying).type == "timeout"
    waiting = engine.submit(steps.working, 7)
    until(lambda: engine.workers.list()[0].loop_lag > 1)
    until(lambda: [each.state for each in waiting.tasks()] in (["scheduled"], ["requested"]))

    (tmp_path / "go").touch()
    assert blocking.result(TIMEOUT) == "seen"
    assert waiting.result(TIMEOUT) == 7  # without a retry: being handed back is not charged
