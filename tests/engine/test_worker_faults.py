"""A worker whose store is slow or away at a bad moment loses nothing and runs nothing twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender import RunCancelled, flow, step
from locktender.base.clock import SystemClock
from locktender.base.config import Settings
from locktender.base.errors import StoreError
from locktender.base.model import WorkerRow
from locktender.store.blob_values import BlobValues
from locktender.store.lease_thread import LeaseThread
from locktender.store.sqlite.store import SqliteStore
from locktender.testing import Engines, Overlap, eventually, recording
from locktender.worker.lease import WorkerLease

pytest_plugins = ["locktender.testing.plugin"]
LARGE = "x" * 300_000


@step
async def taking(text: str) -> int:
    with recording("taking"):
        return len(text)


@step
async def giving() -> str:
    return LARGE


@flow
def give() -> int:
    return taking(giving())


class Slow:
    """Blobs come when they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.asked = threading.Event()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    fetch = BlobValues.fetch

    async def later(values: BlobValues, call: bytes) -> bytes:
        made.asked.set()
        await asyncio.to_thread(made.let_go.wait, 100)
        return await fetch(values, call)

    monkeypatch.setattr(BlobValues, "fetch", later)
    yield made
    made.let_go.set()


def test_c3_a_cancel_while_arguments_are_fetched_is_remembered(
    make_engine: Engines, overlap: Overlap, slow: Slow
):
    engine = make_engine()
    run = engine.submit(give)
    assert slow.asked.wait(60)
    run.cancel()
    eventually(lambda: str(run.status()) == "cancelling")
    slow.let_go.set()

    with pytest.raises(RunCancelled):
        run.result("60s")
    assert overlap.names() == []


def test_a_drain_while_arguments_are_fetched_hands_back(
    make_engine: Engines, overlap: Overlap, slow: Slow
):
    engine = make_engine()
    run_id = engine.submit(give).id
    assert slow.asked.wait(60)
    closing = threading.Thread(target=lambda: engine.close("10s"))
    worker = engine._core.engine.worker
    closing.start()
    eventually(lambda: list(worker._fetching.values()) == ["drain"])
    slow.let_go.set()
    closing.join(60)
    assert overlap.names() == []

    again = make_engine()
    assert again.runs.get(run_id).result("60s") == len(LARGE)
    assert overlap.count("taking") == 1


def test_a_store_that_is_away_for_a_moment_fails_no_large_result(
    make_engine: Engines, monkeypatch: pytest.MonkeyPatch
):
    failures = iter(range(3))
    put = SqliteStore.put_blob

    async def sometimes(store: SqliteStore, data: bytes) -> str:
        if next(failures, None) is not None:
            raise StoreError("away")
        return await put(store, data)

    monkeypatch.setattr(SqliteStore, "put_blob", sometimes)
    engine = make_engine()

    assert engine.submit(give).result("60s") == len(LARGE)


class Undescribed:
    """A worker whose second description fails by an error nobody foresaw."""

    in_flight = 0

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self._rows = iter([WorkerRow("w", "h", 1, "0", {"async": 1}, -1, 1)])

    def describe(self) -> WorkerRow:
        return next(self._rows)

    def lease_renewed(self, stop_at_us: int) -> None: ...
    def lease_lost(self, why: str) -> None:
        self.lost.set()

    def before_exit(self, seconds: float) -> None: ...


async def test_b12_a_renewal_that_fails_gives_the_lease_up(tmp_path: Path):
    """Nobody renews any more: what runs must be stopped, and it is said why."""
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open()
    owner = Undescribed()
    settings = Settings(worker_lease_us=60_000_000, heartbeat_us=100_000)
    leases = LeaseThread(store.twin, SystemClock())
    lease = WorkerLease(owner, "w", settings, SystemClock())
    await leases.add(lease)

    await asyncio.wait_for(owner.lost.wait(), 60)
    await leases.remove(lease)
    await leases.close()
    await store.close()
