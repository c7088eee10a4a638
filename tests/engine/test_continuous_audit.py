"""The audit beside a leader: it follows the history in slices, counts what it finds once, and delays nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.db_stores import build, fill, store_at
from tests.support.fault_injector import Injector
from tests.support.server_harness import PATIENCE, fetch, process, served, until

from locktender import connect_async
from locktender.base.clock import SECOND, ManualClock
from locktender.base.events import unpack
from locktender.leader import continuous_audit
from locktender.leader.continuous_audit import RESTS_PER_SLICE, SLICE_US, ContinuousAudit, Pace
from locktender.observe.metrics import AuditNumbers
from locktender.observe.prune import Forget, forget
from locktender.store.protocol import EventFilter, RunFilter, Store

pytest_plugins = ["locktender.testing.postgres"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = store_at(url)
    await store.open()
    yield store
    await store.close()


async def breaks(url: str, run: int) -> None:
    """The first event of a run is gone: nobody has queued it."""
    await asyncio.to_thread(
        Injector(url).query,
        "DELETE FROM {}event WHERE seq = (SELECT min(seq) FROM {}event WHERE run = ?)",
        run,
    )


async def read_all(audit: ContinuousAudit, store: Store, numbers: AuditNumbers) -> None:
    """Until everything is read. A transaction of any database of the server may hide the end for a while."""
    rows = await store.events(EventFilter(limit=100_000))
    events = sum(len(unpack(row)) for row in rows)

    async def read() -> bool:
        await audit.round(store)
        return numbers.events >= events and not numbers.lag_us

    await until(read, f"{events} events")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.ERROR, "locktender.leader.continuous_audit"):
        yield caplog


async def test_h5_each_round_reads_what_is_new(
    url: str, store: Store, logged: pytest.LogCaptureFixture
) -> None:
    numbers = AuditNumbers()
    audit = ContinuousAudit(store, numbers)
    await fill(url, 2)
    await read_all(audit, store, numbers)
    assert await audit.round(store) == continuous_audit.EVERY_SECONDS
    first = numbers.events
    assert (first > 20, numbers.lag_us, numbers.broken) == (True, 0, 0)
    assert not numbers.violations

    # when what follows breaks a promise, the next round says so, and those after it do not
    await fill(url, 2)
    broken = sorted(row.seq for row in await store.runs(RunFilter()))[2]  # numbers have gaps
    await breaks(url, broken)
    await read_all(audit, store, numbers)
    assert numbers.events > first
    assert numbers.broken >= 1
    found = sum(numbers.violations.values())
    assert found >= 1
    lines = [each.getMessage() for each in logged.records if f"run {broken}" in each.getMessage()]
    assert len(lines) == len(set(lines)) == found
    # (for as long as nothing new is found, nothing is written)
    written = await store.audit_state()
    await audit.round(store)
    assert sum(numbers.violations.values()) == found
    assert await store.audit_state() == written

    # when the next leader goes on, it is known and neither logged nor counted again
    later = AuditNumbers()
    logged.clear()
    await read_all(ContinuousAudit(store, later), store, later)
    assert (later.broken, sum(later.violations.values())) == (numbers.broken, 0)
    assert not logged.records
    assert "the history breaks" in later.problems()[0]


async def test_pruned_runs_are_no_violation(url: str, store: Store) -> None:
    numbers = AuditNumbers()
    audit = ContinuousAudit(store, numbers)
    await fill(url, 2)
    await read_all(audit, store, numbers)
    await fill(url, 3)
    # These runs end and go before the audit has read them.
    assert (await forget(store, Forget(await store.now() + 1, "ops"))).runs == 5
    await fill(url, 1)
    await read_all(audit, store, numbers)
    assert (numbers.broken, numbers.lag_us) == (0, 0)


async def test_a_run_pruned_while_it_is_read_is_not_active(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locktender.observe.history_reader.ROWS_PER_PAGE", 1)
    monkeypatch.setattr(continuous_audit, "ROWS_PER_ROUND", 1)
    await fill(url, 2)
    numbers = AuditNumbers()
    audit = ContinuousAudit(store, numbers)

    def active() -> int:
        reading = audit._reading  # pyright: ignore[reportPrivateUsage]
        return 0 if reading is None else reading.replaying.world.active

    async def in_the_middle() -> bool:
        await audit.round(store)
        return active() > 0

    await until(in_the_middle, "an active run")
    assert (await forget(store, Forget(await store.now() + 1, "ops"))).runs == 2
    await fill(url, 1)
    await read_all(audit, store, numbers)
    assert (numbers.broken, active()) == (0, 0)


async def test_a_long_history_is_read_in_several_rounds(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locktender.observe.history_reader.ROWS_PER_PAGE", 5)
    monkeypatch.setattr(continuous_audit, "ROWS_PER_ROUND", 10)
    await fill(url, 3)
    numbers = AuditNumbers()
    audit, rounds = ContinuousAudit(store, numbers), 1
    while not await audit.round(store):
        rounds += 1
    assert rounds > 3
    assert (numbers.broken, numbers.lag_us) == (0, 0)


async def test_too_much_open_work_pauses_it(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous_audit, "MAX_OPEN_TASKS", 2)
    monkeypatch.setattr("locktender.observe.history_reader.ROWS_PER_PAGE", 5)
    monkeypatch.setattr(continuous_audit, "ROWS_PER_ROUND", 5)
    await fill(url, 1)
    audit = ContinuousAudit(store, AuditNumbers())
    pauses = {await audit.round(store) for _ in range(3)}
    assert continuous_audit.PAUSE_SECONDS in pauses


async def test_it_rests_49_times_as_long_as_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rested = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        rested.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = Pace(clock.monotonic)
    for _ in range(10):
        clock.advance(SLICE_US // 2)
        await pace.rest()
    assert rested == [RESTS_PER_SLICE * SLICE_US / SECOND] * 5


async def test_beside_a_leader_it_has_a_thread_of_its_own(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous_audit, "START_SECONDS", 0.0)
    monkeypatch.setattr(continuous_audit, "EVERY_SECONDS", 0.01)
    await fill(url, 2)
    await breaks(url, 2)
    async with (
        process(url, lead=True, work=True) as (core, engine),
        served(core) as port,
        connect_async(url) as client,
    ):
        await until(lambda: engine.metrics.audit.broken, "the violation")
        assert any(each.name == "locktender-audit" for each in threading.enumerate())
        answer = await fetch(port, "/health")
        assert answer.status == 200
        assert answer.data["status"] == "degraded"
        assert any("the history breaks" in each for each in answer.data["problems"])
        text = (await fetch(port, "/metrics")).text
        counted = [line for line in text.splitlines() if "limit_violations_total{" in line]
        assert len(counted) > 15
        assert sum(float(line.rpartition(" ")[2]) for line in counted) >= 1
        # It goes on with what happens next.
        before = engine.metrics.audit.events
        run = await client.submit(build, n=3)
        await run.result(PATIENCE)
        await until(lambda: engine.metrics.audit.events > before, "the next events")
    await until(
        lambda: all(each.name != "locktender-audit" for each in threading.enumerate()),
        "the end of the thread",
    )
    assert engine.metrics.audit.problems() == []


async def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous_audit, "START_SECONDS", 0.0)
    url = tmp_path / "locktender.db"
    async with process(url, lead=True, work=True, continuous_audit=False) as (_, engine):
        await until(lambda: engine.leader is not None and engine.leader.sweep.demand_at, "a sweep")
        assert all(each.name != "locktender-audit" for each in threading.enumerate())
