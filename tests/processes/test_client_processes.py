"""Clients and processes: beside a live engine, without one, interrupted, forgotten, forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import broken_promises
from tests.steps import client_flows as flows

from locktender import Client, LocktenderError, RunState, WaitTimeout, connect, embedded
from locktender.client import run_waiter
from locktender.client.guard import ClientClosed


def _start(role: str, url: Path, *rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, flows.__file__, role, str(url), *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def _engine(url: Path) -> Iterator[subprocess.Popen[str]]:
    with _start("engine", url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate(timeout=110)
        assert process.returncode == 0


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_a_client_alone_submits_and_reads_beside_a_live_engine(url: Path):
    # given an engine in another process that knows this test's flows by another module's name
    with _engine(url), connect(url) as engine:
        assert engine.workers.list()[0].pid != os.getpid()
        # when a third process submits one of its flows
        done = _start("submit", url, "21")
        out, err = done.communicate(timeout=110)
        # then it has the result, and so has everybody who asks
        assert out == "42\n", err
        [info] = engine.runs.list()
        assert engine.runs.get(info.id).result(5) == 42
    assert broken_promises(url) == []


def test_waiting_beside_an_engine_is_woken_by_its_commits(
    engine: Client, url: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_waiter, "POLL_SECONDS", 3_600.0)  # longer than a test may take
    with connect(url) as other:
        results = [other.submit(flows.doubled, n).result(60) for n in range(5)]
        assert results == [0, 2, 4, 6, 8]


def test_without_an_engine_a_run_waits_and_a_cancel_is_a_request(url: Path):
    with connect(url) as engine:
        run = engine.submit(flows.doubled, 1)
        other = engine.submit(flows.doubled, 2)
        with pytest.raises(WaitTimeout):
            run.result("50ms")
        asked = run.cancel()
        assert not asked.leader
        assert "no engine runs now" in str(asked)
        assert run.status() is RunState.QUEUED
        with embedded(url):
            assert run.wait(60) is RunState.CANCELLED
            assert other.result(60) == 4
    assert broken_promises(url) == []


def test_two_engines_on_one_file_both_answer(url: Path):
    with embedded(url) as first, embedded(url) as second:
        runs = [client.submit(flows.doubled, n) for n, client in enumerate([first, second] * 5)]
        assert [run.result(60) for run in runs] == [2 * n for n in range(10)]
    assert broken_promises(url) == []


def test_an_interrupt_hands_back_and_a_second_ends_at_once(url: Path, marks: Path):
    process = _start("interrupted", url, str(marks), "10m")
    _until(lambda: list(marks.iterdir()), process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "interrupt again to end them at once" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=110)  # neither the grace nor the body ends so soon
    assert "KeyboardInterrupt" in err
    assert process.returncode in (1, 130, -signal.SIGINT)


def test_after_an_interrupt_the_grace_ends_it(url: Path, marks: Path):
    process = _start("interrupted", url, str(marks), "100ms")
    _until(lambda: list(marks.iterdir()), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=110)  # the body would go on for ten minutes
    with connect(url) as engine:
        assert engine.runs.list()[0].state in (RunState.RUNNING, RunState.QUEUED)


def test_a_program_that_forgets_to_close_ends_all_the_same(url: Path, marks: Path):
    process = _start("forgetful", url, str(marks))
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    # and its run is not lost
    with connect(url) as engine:
        assert engine.runs.get(out.strip()).status() is RunState.RUNNING


def test_a_closed_client_says_so(url: Path):
    engine = embedded(url)
    run = engine.submit(flows.doubled, 1)
    run.result(60)
    engine.close()
    engine.close()
    assert engine.closed
    for use in (
        run.status,
        run.result,
        run.why,
        engine.runs.list,
        engine.pools.list,
        engine.limits.list,
        engine.workers.list,
        engine.queue.list,
        lambda: engine.slots("db"),
        lambda: engine.submit(flows.doubled, 1),
        lambda: engine.pools.set("db", limit=1),
        engine.__enter__,
    ):
        with pytest.raises(ClientClosed, match="closed"):
            use()


def test_who_waits_is_told_that_the_client_was_closed(url: Path):
    engine = connect(url)
    run = engine.submit(flows.doubled, 1)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            run.result()
        except ClientClosed as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    _until(lambda: engine._core.waiting._waiters)  # pyright: ignore[reportPrivateUsage]
    engine.close()
    thread.join(60)
    assert len(raised) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_cannot_use_it(engine: Client):
    engine.submit(flows.doubled, 1).result(60)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            engine.runs.list()
            said = "nothing"
        except LocktenderError as error:
            said = str(error)
        engine.close()
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    assert "a forked child cannot use it" in said
    assert engine.submit(flows.doubled, 2).result(60) == 4


def _until(condition, process: subprocess.Popen[str] | None = None, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)
