"""A child process is as it was before the body ran; a child that cannot be restored is not used again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from locktender.worker.executors import child_cleanup, sources

_harness: Any = sources.load(
    sources.CodeSource(
        "locktender_executor_harness",
        str(Path(__file__).parents[1] / "support" / "executor_harness.py"),
    )
)
Harness, alive, until = _harness.Harness, _harness.alive, _harness.until


async def answer(harness: Any, step: str, *args: Any) -> Any:
    outcome = await harness.run(step, *args)
    assert outcome.state == "completed", outcome
    return json.loads(outcome.output)


@pytest.mark.parametrize("what", ["alarm", "handler", "folder", "variable", "thread that ends"])
async def test_what_a_body_leaves_is_not_the_next_ones(what: str, tmp_path: Path):
    async with Harness("process", tmp_path, permits=1) as harness:
        before = await answer(harness, "look_around", 0)
        left_by = await answer(harness, "leave_something", what)
        # Longer than the alarm: it would end the process.
        after = await answer(harness, "look_around", 0.2 if what == "alarm" else 0)

    assert left_by == before[0]
    assert after == before


async def test_a_child_with_a_daemon_of_a_library_is_used_again(tmp_path: Path):
    async with Harness("process", tmp_path, permits=1) as harness:
        left_by = await answer(harness, "leave_something", "daemon thread")
        after = await answer(harness, "look_around", 0)

    assert after[0] == left_by


async def test_a_child_with_a_thread_of_a_body_is_not_used_again(tmp_path: Path):
    async with Harness("process", tmp_path, permits=1) as harness:
        left_by = await answer(harness, "leave_something", "thread")
        # Its permit is free: so nothing of it runs any more.
        assert not alive(left_by)
        after = await answer(harness, "look_around", 0)
        again = await answer(harness, "look_around", 0)

    assert after[0] != left_by
    assert again == after


@pytest.mark.parametrize("reason", ["drain", "cancel"])
async def test_an_ended_body_is_not_stopped_while_its_child_ends(reason: str, tmp_path: Path):
    async with Harness("process", tmp_path, permits=1) as harness:
        job = harness.start("leave_something", "thread")
        children = harness.executor._children
        # Its child may end between two looks: then there is nothing left to stop.
        await until(lambda: harness.ends or any(child.outcome is not None for child in children))
        harness.executor.stop(job.token, reason)
        assert (await harness.end_of(job)).state == "completed"


async def test_a_timeout_while_the_child_ends_does_not_count(tmp_path: Path):
    """The body has ended in time: that a thread of its own keeps the child for a moment is another matter."""
    async with Harness("process", tmp_path, permits=1) as harness:
        await answer(harness, "look_around", 0)
        job = harness.start("leave_something", "thread", timeout_us=1_000_000)
        assert (await harness.end_of(job)).state == "completed"


COUNTED = """
import signal, sys
from locktender.worker.executors import child_cleanup

before, calls = child_cleanup.snapshot(), 0

def count(_frame, event, _arg):
    global calls
    calls += event in ("call", "c_call")

sys.setprofile(count)
child_cleanup.snapshot()
restored = child_cleanup.restore(before)
sys.setprofile(None)
assert restored
assert calls < 4 * len(signal.valid_signals()) + 60, calls
"""
"""In a process of its own: in this one, children that other tests left would count."""


def test_looking_and_restoring_cost_a_task_little():
    """A few calls for each signal there is, and none for each variable; microseconds are the benchmark's."""
    subprocess.run([sys.executable, "-c", COUNTED], check=True)


def test_a_folder_that_is_gone_cannot_be_given_back(tmp_path: Path, monkeypatch: Any):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    before = child_cleanup.snapshot()
    os.chdir(tmp_path)
    gone.rmdir()

    assert not child_cleanup.restore(before)
