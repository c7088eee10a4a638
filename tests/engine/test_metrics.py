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
from locktender.base.clock import ManualClock
from locktender.base.commits import Commit
from locktender.base.limits import Limits, PoolRule
from locktender.base.model import WorkerRow
from locktender.base.states import TaskState
from locktender.engine import Engine
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.demand import Demand, Want
from locktender.kernel.ledger import Ledger
from locktender.observe.exposition import Family
from locktender.observe.metrics import MAX_POOL_LABELS, MAX_STEP_LABELS, Metrics, Worst
from locktender.observe.prometheus import Exposition
from locktender.store.postgres import listener
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


# -- the text --------------------------------------------------------------------------------------


def test_any_label_is_read_as_it_was_written():
    strange = ["", "a b", 'say "no"', "back\\slash", "\\n", "two\nlines", "{x=1,}", "größer"]
    family = Family("gauge", "locktender_strange", "With \\ and\na second line.")
    for number, each in enumerate(strange):
        family.add(number + 0.5, step=each, gate="pool")
    [read] = text_string_to_metric_families(family.text())
    assert (read.type, read.documentation) == ("gauge", "With \\ and\na second line.")
    assert [(each.labels, each.value) for each in read.samples] == [
        ({"step": each, "gate": "pool"}, number + 0.5) for number, each in enumerate(strange)
    ]


def test_counters_and_histograms_are_read_as_such():
    count = Family("counter", "locktender_strange", "Many.")
    count.add(10**15)
    spread = Family("histogram", "locktender_seconds", "How long.")
    spread.add_buckets([("0.1", 2), ("+Inf", 3)], 4.25, gate="pool")
    counter, histogram = text_string_to_metric_families(count.text() + spread.text())
    assert [(each.name, each.value) for each in counter.samples] == [
        ("locktender_strange_total", 10**15)
    ]
    assert (counter.type, histogram.type) == ("counter", "histogram")
    assert [(each.name, each.labels.get("le"), each.value) for each in histogram.samples] == [
        ("locktender_seconds_bucket", "0.1", 2),
        ("locktender_seconds_bucket", "+Inf", 3),
        ("locktender_seconds_count", None, 3),
        ("locktender_seconds_sum", None, 4.25),
    ]
    assert {each.labels["gate"] for each in histogram.samples} == {"pool"}


# -- the numbers themselves ------------------------------------------------------------------------


def test_durations_are_a_histogram_per_step():
    metrics = Metrics()
    metrics.next_claim = 7
    for tasks in (1, 1, 7, 1_000):
        metrics.claimed(tasks)
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
    assert found("worker_next_claim_tasks") == 7
    assert found.types["locktender_worker_claim_size"] == "histogram"
    sizes = [found("worker_claim_size_bucket", le=le) for le in ("0.0", "1.0", "10.0", "+Inf")]
    assert sizes == [0, 2, 3, 4]
    assert found("worker_claim_size_sum") == 1_009
    assert found("worker_claims_total") == found("worker_claim_size_count") == 4
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


def test_names_of_pools_cannot_fill_the_memory():
    limits = Limits(pools={"db": PoolRule(limit=4), "idle": PoolRule(limit=7)})
    ledger = Ledger(limits)
    ledger.pool("db").used = 3
    for tenant in range(200):
        ledger.pool(f"api[{tenant}]").used = 1
    metrics = Metrics()
    metrics.leads(1, ledger)
    found = metrics.pools()
    assert found["db"] == (3, 4, 0)
    assert found["idle"] == (0, 7, 0)
    assert found["api[*]"] == (200, -1, 0)
    assert set(found) == {"db", "idle", "api[*]"}
    for number in range(3 * MAX_POOL_LABELS):
        ledger.pool(f"pool{number}").used = 1
    found = metrics.pools()
    assert len(found) == MAX_POOL_LABELS + 1
    assert sum(each.used for each in found.values()) == 3 + 200 + 3 * MAX_POOL_LABELS
    assert found["other"].used == 3 * MAX_POOL_LABELS - (MAX_POOL_LABELS - 3)


def test_waits_are_counted_by_the_kind_of_gate():
    metrics = Metrics()
    waits = [{"pool:db": 2_000_000, "worker:async": 50_000}, {"pool:api": 1}]
    metrics.cycle(Cycle(Commit(1, 1, "leader:a"), waits=waits), 0.5)
    found = read(metrics)
    assert found("gate_wait_seconds_count", gate="pool") == 2
    assert found("gate_wait_seconds_sum", gate="pool") == pytest.approx(2.000001)
    assert found("gate_wait_seconds_bucket", gate="worker", le="0.1") == 1


def test_the_worst_lag_is_that_of_the_last_seconds():
    clock = ManualClock()
    worst = Worst(clock)
    worst.add(300)
    worst.add(20)
    clock.advance(5_000_000)
    worst.add(40)
    assert worst.value == 300
    clock.advance(5_000_000)
    assert worst.value == 40
    clock.advance(50_000_000)
    assert worst.value == 0


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


def test_demand_is_shown_by_label_set_and_stays_as_zero():
    metrics = Metrics()
    gpu = (("gpu", "a100"), ("zone", "b"))
    wants = (
        Want("async", (), "fetch", "s", 3),
        Want("thread", (), "load", "s", 1),
        Want("process", gpu, "train", "s", 2),
    )
    many = tuple(Want("async", (("n", str(n)),), "x", "s", 1) for n in range(200))
    ledger = Ledger(Limits())
    metrics.swept(ledger, Demand(), 0, 0)
    assert metrics.demand_by_labels == {"": 0}
    metrics.swept(ledger, Demand(6, wants, 0), 0, 0)
    assert metrics.demand_by_labels == {"": 4, "gpu=a100,zone=b": 2}
    server = Exposition(metrics, may_lead=True)
    server.refresh()
    assert b'locktender_demand_by_labels_tasks{labels="gpu=a100,zone=b"} 2.0' in server.text()
    metrics.swept(ledger, Demand(), 0, 0)
    assert metrics.demand_by_labels == {"": 0, "gpu=a100,zone=b": 0}
    metrics.swept(ledger, Demand(200, many, 0), 0, 0)
    assert len(metrics.demand_by_labels) <= 101
    assert sum(metrics.demand_by_labels.values()) == 200


# -- fed by engines --------------------------------------------------------------------------------


async def test_d7_a_worker_that_leads_counts_what_it_takes(tmp_path: Path):
    """What it gives itself is offered to nobody, and taken with the leader's commits."""
    url = tmp_path / "locktender.db"
    async with process(url, lead=True, work=True) as (_, engine), connect_async(url) as client:
        opened.set()
        run = await client.submit(holds, 3)
        assert await run.result(PATIENCE) == [0, 1, 2]
        await until(lambda: read(engine)("worker_next_claim_tasks") > 0, "a look at its permits")
        assert 1 <= read(engine)("worker_claims_total") <= 3
        assert read(engine)("worker_claim_size_sum") == 3


async def test_what_a_server_and_a_worker_do_is_counted_by_each(tmp_path: Path):
    # given a server, and tasks of which one at a time may run
    url = tmp_path / "locktender.db"
    async with (
        process(url, lead=True, work=False, pools={"db": 2}, offer_ttl="10m") as (_, server),
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
        async with process(url, lead=False, work=True, worker_lease="10m") as (_, worker):
            await until(lambda: read(worker)("worker_in_flight_tasks") == 2, "two of the pool")
            await until(lambda: 0 < read(worker)("worker_memory_ratio") < 1, "a look at memory")
            await until(lambda: read(server)("demand_tasks") == 0, "the sweep")
            await until(lambda: read(server)("blocked_tasks", gate="pool") == 1, "the third")
            numbers = [
                read(server)(f"pool_{what}", pool="db")
                for what in ("used_slots", "limit_slots", "waiting_tasks")
            ]
            assert numbers == [2, 2, 1]
            opened.set()
            assert await run.result(PATIENCE) == [0, 1, 2]
            await failing.wait(PATIENCE)

            found = read(worker)
            assert found("worker_tasks_completed_total", state="completed") == 3
            assert found("worker_tasks_completed_total", state="failed") == 1
            name = f"{__name__}:held"
            assert found("worker_task_duration_seconds_count", step=name) == 3, found.names()
            assert found("worker_claims_total") >= 2
            assert found("worker_next_claim_tasks") > 0
            assert found("worker_claim_size_sum") == 4
            assert found("worker_in_flight_tasks") == 0
        found = read(server)
        assert found("offers_total", outcome="accepted") == 4
        assert found("offers_total", outcome="declined") == 0
        assert found("runs_ended_total", state="succeeded") == 1
        assert found("runs_ended_total", state="failed") == 1
        assert found("cycles_total") == found("cycle_seconds_count") >= 3
        assert 0 < found("cycle_seconds_sum") < PATIENCE
        assert found("commit_seconds_count") == found("cycles_total")
        assert 0 < found("commit_seconds_sum") <= found("cycle_seconds_sum")
        # Each acceptance and each end is a change that the server reads.
        assert found("change_delay_seconds_count") == 8
        assert found("task_wait_seconds_count") >= 4
        # The third waited at the pool, and all of them for a worker.
        assert found("gate_wait_seconds_count", gate="pool") == 1
        assert found("gate_wait_seconds_sum", gate="pool") > 0
        assert found("gate_wait_seconds_count", gate="worker") >= 3
        assert found("sweep_age_seconds") > 0
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


async def test_stale_writes_and_lost_listeners_are_counted(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    # A listener that has pinged is not known by its last statement any more.
    monkeypatch.setattr(listener, "PING_SECONDS", 600.0)
    async with process(postgres_url, lead=True, work=False) as (core, _), served(core) as port:

        async def number(name: str) -> float:
            return Read((await fetch(port, "/metrics")).text)(name)

        assert await number("stale_writes_total") == 0
        stale = End(77, 99, TaskState.COMPLETED, b"1")
        assert await core.store.finish(Finish("nobody", [stale])) == [(77, 99)]
        await until(lambda: number("stale_writes_total"), "the stale write")

        assert await number("listener_replaced_total") == 0
        conn = await asyncpg.connect(postgres_url)
        ended = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query ~ '^(UN)?LISTEN '"
        )
        # It may be about to listen for the first time.
        await until(lambda: conn.fetchval(ended), "a listener to end")
        await conn.close()
        await until(lambda: number("listener_replaced_total"), "a new listener")
