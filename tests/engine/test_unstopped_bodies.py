"""F4: a body that was asked to stop and does not is shown by every command, and `why` names it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from locktender import Client, Flow, Run, flow, step
from locktender.base.errors import StoreError
from locktender.cli import runs, why, workers
from locktender.cli.context import Context
from locktender.client.views import UnstoppedInfo
from locktender.testing import Engines, eventually
from locktender.worker.membership import Membership

pytest_plugins = ["locktender.testing.plugin"]


def is_open(latch: str) -> bool:
    return Path(latch).exists()


@step(timeout="100ms", pools={"db": 1})
def in_thread(latch: str) -> None:
    while not is_open(latch):
        time.sleep(0.005)


@step(timeout="100ms", pools={"db": 1})
async def swallows(latch: str) -> None:
    while not is_open(latch):
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            continue


@flow
def stuck_thread(latch: str) -> Any:
    return in_thread(latch)


@flow
def stuck_async(latch: str) -> Any:
    return swallows(latch)


@pytest.fixture
def latch(tmp_path: Path) -> Iterator[Path]:
    """Bodies run until it is there; at the latest when the test is over."""
    path = tmp_path / "latch"
    yield path
    path.touch()


@pytest.fixture
def engine_settings() -> dict[str, Any]:
    # A beat of its own tells of it: the next one by the clock would come much later.
    return {"heartbeat": "60s", "worker_lease": "200s", "thread_permits": 1, "async_permits": 1}


def stuck(engine: Client, called: Flow[[str], Any], latch: Path) -> tuple[Run, UnstoppedInfo]:
    """A run whose body does not stop. One that is asked to before it has begun ends at once: then another."""

    run = engine.submit(called, str(latch))

    def found() -> UnstoppedInfo | None:
        nonlocal run
        if run.status() == "failed":
            run = engine.submit(called, str(latch))
        return next((each.unstopped for each in run.tasks()), None)

    unstopped = eventually(found, "60s", "word of the body that does not stop")
    assert unstopped is not None
    return run, unstopped


def test_f4_it_is_published_again_where_that_failed(
    make_engine: Engines, latch: Path, monkeypatch: pytest.MonkeyPatch
):
    failed: list[Membership] = []
    publish = Membership.publish

    async def fails_once(self: Membership) -> None:
        if self.worker._unstopped.notes and not failed:
            failed.append(self)
            raise StoreError("away")
        await publish(self)

    monkeypatch.setattr(Membership, "publish", fails_once)
    engine = make_engine(heartbeat="200s", worker_lease="600s")
    stuck(engine, stuck_async, latch)
    assert failed


@pytest.mark.parametrize("called", [stuck_thread, stuck_async])
def test_f4_a_body_that_does_not_stop_is_seen_everywhere(
    make_engine: Engines,
    latch: Path,
    called: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("COLUMNS", "120")
    engine = make_engine()
    engine.pools.set("db", limit=1)
    with caplog.at_level(logging.WARNING):
        run, unstopped = stuck(engine, called, latch)
        behind = engine.submit(called, str(latch))

    # the task, with its reason and since when
    [task] = run.tasks()
    assert (task.state, unstopped.reason, unstopped.task) == ("running", "timeout", task.id)
    assert task.started_at is not None
    waited = unstopped.since - task.started_at
    assert abs(waited) < timedelta(minutes=2)  # by one clock, whatever each process counts from
    # the log: once, by the step's name
    lines = [
        record.getMessage() for record in caplog.records if "asked to stop" in record.getMessage()
    ]
    assert len(lines) == 1
    assert unstopped.step in lines[0]
    # why: of itself, and of whoever waits behind it
    name = task.name
    assert f"1 × {name} running; asked to stop" in str(run.why())
    assert "asked to stop" in engine.why(task.id).note
    waiting = eventually(
        lambda: text if "asked to stop and still" in (text := str(behind.why())) else ""
    )
    assert "1 asked to stop and still running" in waiting
    assert f"held by task {task.id} ({name}), asked to stop" in waiting
    # the worker
    [worker] = engine.workers.list()
    assert [each.task for each in worker.unstopped] == [task.id]
    shell = Context(url=str(make_engine.path))
    for show, words in (
        (lambda: runs.show(shell, run.id, tasks=True), ["asked to stop", "ago: timeout"]),
        (lambda: workers.show(shell, worker.id), [f"task {task.id}", "asked to stop"]),
        (lambda: why.why(shell, run.id), ["running; asked to stop"]),
    ):
        show()
        out = capsys.readouterr().out
        assert all(word in out for word in words), out

    latch.touch()
    assert run.wait("60s") == "failed"
    assert run.tasks()[0].unstopped is None
    behind.wait("60s")
