"""What a body starts may raise SystemExit or KeyboardInterrupt, or cancel every task there is: its own task
fails, the worker goes on."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from locktender import Client, RunFailed, embedded
from locktender.base.clock import SystemClock
from locktender.testing import Engines, Overlap
from locktender.testing.cluster import Cluster
from locktender.testing.processes import source
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.protocol import Attempt
from locktender.worker.executors.sources import load
from locktender.worker.lasting_loop import LastingLoop, run

pytest_plugins = ["locktender.testing.plugin"]
FILE = Path(__file__).parents[1] / "exit_steps.py"
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
        for way in steps.CANCELLINGS.keys() - {"what_a_body_started"}:
            assert failure(engine, steps.cancelling, way).type in (
                "LocktenderError",
                "CancelledError",
            )
        assert engine.submit(steps.working, 8).result(TIMEOUT) == 8
        assert [each.pid for each in engine.workers.list()] == [worker.pid]
        assert worker.close() == 0  # by SIGTERM, as ever
    finally:
        cluster.end()


# -- the loop itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit("alarm"), TimeoutError("alarm")])
def test_what_the_handler_of_a_signal_raises_while_the_loop_waits_is_told(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def hear(*_: object) -> None:
        raise error

    here = threading.get_ident()

    def strike(loop: asyncio.AbstractEventLoop, go_on: asyncio.Event) -> None:
        # nothing is due: once it waits, it waits until the signal comes
        until(lambda: sys._current_frames()[here].f_code.co_name == "select")
        os.kill(os.getpid(), signal.SIGUSR1)
        until(lambda: "the handler of a signal raised" in caplog.text)
        loop.call_soon_threadsafe(go_on.set)

    async def wait() -> str:
        go_on = asyncio.Event()
        thread = threading.Thread(target=strike, args=(asyncio.get_running_loop(), go_on))
        thread.start()
        await go_on.wait()
        return "went on"

    before = signal.signal(signal.SIGUSR1, hear)
    try:
        assert run(wait()) == "went on"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "the handler of a signal raised" in caplog.text


def test_the_end_of_the_main_task_leaves() -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        run(leave())
    assert ended.value.code == 3


def test_what_is_ready_stays_ready_and_a_stop_is_not_forgotten() -> None:
    loop = LastingLoop()
    heard: list[int] = []
    try:
        loop.call_soon(heard.append, 1)
        loop.call_soon(sys.exit, "nobody's")
        loop.call_soon(heard.append, 2)
        loop.call_soon(loop.stop)
        loop.call_soon(sys.exit, "after the stop, in the same turn")

        loop.run_forever()

        assert heard == [1, 2]
    finally:
        loop.close()


def test_what_the_loop_cannot_do_leaves() -> None:
    """It would be raised for ever."""
    loop = LastingLoop()
    try:
        loop._scheduled.append("no timer")  # pyright: ignore
        with pytest.raises(AttributeError):
            loop.run_forever()
    finally:
        loop._scheduled.clear()  # pyright: ignore
        loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_forever()


def test_a_factory_of_tasks_is_for_what_bodies_make() -> None:
    loop = LastingLoop()
    made: list[asyncio.Task[Any]] = []

    def make(loop: Any, coro: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(asyncio.Task(coro, loop=loop, **more))
        return made[-1]

    try:
        loop.set_task_factory(make)  # pyright: ignore
        loop.run_until_complete(asyncio.sleep(0))
        assert made == []
    finally:
        loop.close()


def test_a_ctrl_c_while_a_body_runs_cancels_the_main_task() -> None:
    """Its handler runs in the context of whatever it has interrupted."""

    async def main() -> None:
        executor = AsyncExecutor(1, clock=SystemClock())
        task: Any = asyncio.current_task()
        runner: Any = SimpleNamespace(_interrupt_count=0, _loop=asyncio.get_running_loop())

        async def interrupted() -> None:
            asyncio.Runner._on_sigint(runner, 2, None, task)  # pyright: ignore

        step: Any = SimpleNamespace(
            name="app:body", fn=interrupted, retry_on=None, decode_call=lambda _: ([], {})
        )
        executor.start(Attempt(1, 1, "run", step, b""), lambda *_: None)
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        run(main())


INTERRUPTED = """
import asyncio, signal, sys
from locktender.worker.lasting_loop import run

async def main():
    main_task = asyncio.current_task()

    async def held():
        print("held", flush=True)
        try:
            while not main_task.cancelling():
                pass
            print("cancelled", flush=True)
            while True:
                pass
        finally:
            print("out", flush=True)
    await asyncio.create_task(held())

# As at a terminal, however this was started: a shell's background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_ctrl_c_is_no_bodys() -> None:
    """The first is asyncio's to cancel the main task with; the second strikes where the code is."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            for said in ("held\n", "cancelled\n"):
                assert process.stdout.readline() == said
                process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "out\ninterrupted\n"
        finally:
            process.kill()
