"""The audit of a long history: read in pages, in memory for what is open at one time."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.support.db_stores import store_at
from tests.support.history_writer import HistoryWriter

from locktender.base.events import Change, pack
from locktender.base.graph import Graph, Node
from locktender.observe import checkpoint, history_reader
from locktender.store.protocol import Store

RUNS = 1_000
GRAPH = Graph("f", (Node("a", "a"),))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = store_at(str(tmp_path / "store.db"))
    await store.open()
    yield store
    await store.close()


def told(runs: int) -> tuple[HistoryWriter, int]:
    """Runs that ended one after the other, and a task of the first, which failed."""
    story = HistoryWriter(g=GRAPH)
    story.lead()
    story.worker()
    first = 0
    for run in range(1, runs + 1):
        story.at += 100_000
        story.begin(run)
        task = story.request(run)
        first = first or task
        story.perform(task, "completed" if run % 50 else "failed", retryable=False)
        story.run(run, "succeeded" if run % 50 else "failed")
    return story, first


def write(path: Path, story: HistoryWriter) -> None:
    file = sqlite3.connect(path)
    with file:
        file.execute("INSERT INTO graph VALUES (?, ?)", ("g", msgspec.json.encode(GRAPH)))
        file.executemany(
            "INSERT INTO event (at, term, cycle, actor, run, body) VALUES (?, ?, ?, ?, ?, ?)",
            (
                (
                    *(e.at, e.term, e.cycle, e.actor, e.run),
                    pack([Change(e.subject, e.task, e.before, e.after, e.token, e.data)]),
                )
                for e in story.events
            ),
        )
    file.close()


async def test_memory_does_not_grow_with_the_history(store: Store, tmp_path: Path):
    story, _ = told(RUNS)
    write(tmp_path / "store.db", story)
    events = len(story.events)
    del story
    tracemalloc.start()
    try:
        done = await checkpoint.audit(store)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (done.events, done.violations) == (events, [])
    # One page, and what is open. The whole of this history takes more than 3 MB.
    assert peak < 2 << 20


async def test_a_run_forgotten_pages_ago_is_read_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(history_reader, "ROWS_PER_PAGE", 7)
    monkeypatch.setattr(history_reader, "MAX_GRAPHS_KEPT", 0)
    story, first = told(100)
    story.task(first, "requested", node=0, index=-1, attempt=0)
    write(tmp_path / "store.db", story)
    done = await checkpoint.audit(store)
    assert {"terminal", "dependencies"} <= {violation.rule for violation in done.violations}
    assert not any("never queued" in violation.message for violation in done.violations)
    assert {violation.run for violation in done.violations} == {1}
