"""Metrics: every number moves when what it counts happens, in one engine and not in its neighbour."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.server_harness import PATIENCE, fetch, process, served, until

from locktender import connect_async, flow, step
from locktender.base.changes import End
from locktender.base.model import WorkerRow
from locktender.base.states import TaskState
from locktender.engine import Engine
from locktender.observe.metrics import MAX_STEP_LABELS, Metrics
from locktender.observe.prometheus import Exposition
from locktender.store.protocol import Finish, Heartbeat

pytest_plugins = ["locktender.testing.postgres"]
opened = asyncio.Event()


@step(pool="db")
async def held(item: int) -> int:
    await opened.wait()
    return item


@step
async def broken(item: int) -> int:
    raise ValueError(item)


@flow
def holds(items: int):
    return held.map(range(items))


@flow
def breaks():
    return broken(1)


@pytest.fixture(autouse=True)
def latch() -> None:
    global opened  # noqa: PLW0603 — an event belongs to the loop of one test
    opened = asyncio.Event()


class Read:
    """Samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.types: dict[str, str] = {}
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                self._values[sample.name, frozenset(sample.labels.items())] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self._values.get((f"locktender_{name}", frozenset(labels.items())), 0.0)

    def names(self) -> set[str]:
        return {name for name, _ in self._values}


def read(engine: Engine | Metrics) -> Read:
    metrics = engine if isinstance(engine, Metrics) else engine.metrics
    exposition = Exposition(metrics, may_lead=True)
    exposition.refresh()
    return Read(exposition.text().decode())


# -- the numbers themselves ------------------------------------------------------------------------


def test_durations_are_a_histogram_per_step():
    metrics = Metrics()
    metrics.claim_size = 7
    metrics.describe = lambda: WorkerRow(
        "w", "h", 1, "0", {"async": 3}, -1, 9, free=1, in_flight=2, memory=0.5, lag_us=250_000
    )
    for duration_us in (500, 5_000, 30_000_000, 9_000_000_000):
        metrics.task_ended("shop:pay", "completed", duration_us)
    metrics.task_ended("shop:send", "failed", 1)
    found = read(metrics)

    def bucket(le: str) -> float:
        return found("worker_task_duration_seconds_bucket", step="shop:pay", le=le)

    assert (bucket("0.001"), bucket("0.005"), bucket("60.0"), bucket("+Inf")) == (1, 2, 3, 4)
    assert found("worker_task_duration_seconds_count", step="shop:pay") == 4
    assert found("worker_task_duration_seconds_sum", step="shop:pay") == pytest.approx(9030.0055)
    assert found("worker_tasks_completed_total", state="completed") == 4
    assert found("worker_tasks_completed_total", state="failed") == 1
    assert found("worker_in_flight_tasks") == 2
    assert found("worker_permits", executor="async") == 3
    assert found("worker_claim_size") == 7
    assert found("worker_memory_ratio") == 0.5
    assert found("worker_loop_lag_seconds") == 0.25


def test_names_of_steps_cannot_fill_the_memory():
    metrics = Metrics()
    metrics.describe = lambda: WorkerRow("w", "h", 1, "0", {}, -1, 0)
    for number in range(10 * MAX_STEP_LABELS):
        metrics.task_ended(f"step {number}", "completed", 10)
        metrics.held_loop(f"step {number}")
    found = read(metrics)
    assert found("worker_tasks_completed_total", state="completed") == 10 * MAX_STEP_LABELS
    assert found("worker_task_duration_seconds_count", step="other") == 9 * MAX_STEP_LABELS
    assert found("worker_loop_blocked_total", step="other") == 9 * MAX_STEP_LABELS
    assert found("worker_loop_blocked_total", step="step 3") == 1
    assert len(metrics.tasks) == len(metrics.loop_blocked) == MAX_STEP_LABELS + 1


def test_a_task_costs_next_to_nothing():
    """A few calls, however many tasks and steps there were before; microseconds are the benchmark's."""
    metrics = Metrics()
    for number in range(50):
        metrics.task_ended(f"shop:step{number}", "completed", 1_234)
    calls: list[str] = []
    sys.setprofile(lambda _frame, event, _arg: calls.append(event))
    try:
        metrics.task_ended("shop:pay", "completed", 1_234)
    finally:
        sys.setprofile(None)
    assert len([each for each in calls if each in ("call", "c_call")]) <= 12


def test_metrics_are_of_the_roles_of_the_process():
    metrics = Metrics()
    server = Exposition(metrics, may_lead=True)
    server.refresh()
    assert b"locktender_worker" not in server.text()
    metrics.describe = lambda: WorkerRow("w", "h", 1, "0", {}, -1, 0)
    worker = Exposition(metrics, may_lead=False)
    worker.refresh()
    assert b"locktender_leader" not in worker.text()


# -- fed by engines --------------------------------------------------------------------------------


async def test_d7_a_worker_that_leads_counts_what_it_takes(tmp_path: Path):
    """What it gives itself is offered to nobody, and taken with the leader's commits."""
    url = tmp_path / "locktender.db"
    async with process(url, lead=True, work=True) as (_, engine), connect_async(url) as client:
        opened.set()
        run = await client.submit(holds, 3)
        assert await run.result(PATIENCE) == [0, 1, 2]
        await until(lambda: read(engine)("worker_claim_size") > 0, "a look at its permits")
        assert 1 <= read(engine)("worker_claims_total") <= 3


async def test_what_a_server_and_a_worker_do_is_counted_by_each(tmp_path: Path):
    # given a server, and tasks of which one at a time may run
    url = tmp_path / "locktender.db"
    async with (
        process(url, lead=True, work=False, pools={"db": 2}) as (_, server),
        connect_async(url) as client,
    ):
        await until(lambda: read(server)("leader"), "the lead")
        assert read(server)("term") == read(server)("take_overs_total") == 1
        run = await client.submit(holds, 3)
        failing = await client.submit(breaks)

        # when there is no worker, what passes every other gate is demand
        await until(lambda: read(server)("demand_tasks") == 3, "two of the pool and one without")
        assert read(server)("blocked_tasks", gate="worker") == 4
        assert read(server)("runs_started_total") == 2

        # when a worker comes, the demand is met and the pool blocks the rest
        async with process(url, lead=False, work=True) as (_, worker):
            await until(lambda: read(worker)("worker_in_flight_tasks") == 2, "two of the pool")
            await until(lambda: 0 < read(worker)("worker_memory_ratio") < 1, "a look at memory")
            await until(lambda: read(server)("demand_tasks") == 0, "the sweep")
            await until(lambda: read(server)("blocked_tasks", gate="pool") == 1, "the third")
            opened.set()
            assert await run.result(PATIENCE) == [0, 1, 2]
            await failing.wait(PATIENCE)

            found = read(worker)
            assert found("worker_tasks_completed_total", state="completed") == 3
            assert found("worker_tasks_completed_total", state="failed") == 1
            name = f"{__name__}:held"
            assert found("worker_task_duration_seconds_count", step=name) == 3, found.names()
            assert found("worker_claims_total") >= 2
            assert found("worker_claim_size") > 0
            assert found("worker_in_flight_tasks") == 0
        found = read(server)
        assert found("offers_total", outcome="accepted") == 4
        assert found("offers_total", outcome="declined") == 0
        assert found("runs_ended_total", state="succeeded") == 1
        assert found("runs_ended_total", state="failed") == 1
        assert found("cycles_total") == found("cycle_seconds_count") >= 3
        assert 0 < found("cycle_seconds_sum") < PATIENCE
        # and the worker's numbers are not the server's
        assert found("worker_tasks_completed_total", state="completed") == 0


async def test_in_one_process_offers_are_accepted_by_the_commit(tmp_path: Path):
    url = tmp_path / "locktender.db"
    opened.set()
    async with process(url, lead=True, work=True) as (_, engine), connect_async(url) as client:
        await (await client.submit(holds, 3)).result(PATIENCE)
        assert read(engine)("offers_total", outcome="accepted") == 3
    # then it leads no more
    assert read(engine)("leader") == read(engine)("term") == 0


async def test_offers_declined(tmp_path: Path):
    """A worker that drains says so with its next beat; what it is offered before, it declines."""
    url = tmp_path / "locktender.db"
    opened.set()
    async with (
        process(url, lead=True, work=False) as (_, server),
        process(url, lead=False, work=True, heartbeat="20s", worker_lease="80s") as (_, worker),
        connect_async(url) as client,
    ):
        worker.worker.draining = True
        run = await client.submit(holds, 1)
        await until(lambda: read(server)("offers_total", outcome="declined"), "a decline")
        async with process(url, lead=False, work=True):
            assert await run.result(PATIENCE) == [0]
        assert read(server)("offers_total", outcome="accepted") == 1


async def test_offers_withdrawn(tmp_path: Path):
    """A worker that answers nothing does not keep its offers."""
    url = tmp_path / "locktender.db"
    opened.set()
    async with (
        process(url, lead=True, work=False, offer_ttl="200ms") as (core, server),
        connect_async(url) as client,
    ):
        silent = WorkerRow("silent", "h", 1, "0", {"async": 5}, -1, 5, steps=None)
        await core.store.heartbeat(Heartbeat(silent, 3_600_000_000))
        run = await client.submit(holds, 2)
        await until(lambda: read(server)("offers_total", outcome="withdrawn") >= 2, "two offers")
        await core.store.leave("silent")
        async with process(url, lead=False, work=True):
            assert await run.result(PATIENCE) == [0, 1]


# -- what the store counts, over HTTP --------------------------------------------------------------


async def test_stale_writes_and_lost_listeners_are_counted(postgres_url: str):
    async with process(postgres_url, lead=True, work=False) as (core, _), served(core) as port:

        async def number(name: str) -> float:
            return Read((await fetch(port, "/metrics")).text)(name)

        assert await number("stale_writes_total") == 0
        stale = End(77, 99, TaskState.COMPLETED, b"1")
        assert await core.store.finish(Finish("nobody", [stale])) == [(77, 99)]
        await until(lambda: number("stale_writes_total"), "the stale write")

        assert await number("listener_replaced_total") == 0
        conn = await asyncpg.connect(postgres_url)
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
        )
        await conn.close()
        await until(lambda: number("listener_replaced_total"), "a new listener")
