"""Limits and pools through the client: set, kept, reset, paused, shown, and in force at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import broken_promises
from tests.steps import client_flows as flows

from locktender import Client, InvalidInput, NotFound, connect, connect_async, embedded

ALL_TRANSPORTS = True


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


def test_a_pool_shows_what_was_set_and_what_is_used(engine: Client):
    engine.pools.set("db", limit=4, lease="90s", rate="100/1m", burst=20)
    pool = engine.pools.get("db")
    assert (pool.limit, pool.lease, pool.rate, pool.burst) == (4, 90.0, "100/min", 20)
    assert (pool.used, pool.waiting, pool.paused, pool.source) == (0, 0, False, "live")
    # what is not given stays; None takes it away
    engine.pools.set("db", 2)
    engine.pools.set("db", burst=5)
    assert (engine.pools.get("db").limit, engine.pools.get("db").burst) == (2, 5)
    engine.pools.set("db", rate=None, lease=None, limit=-1)
    pool = engine.pools.get("db")
    assert (pool.limit, pool.lease, pool.rate, pool.limit_text) == (None, None, None, "unlimited")


def test_a_pool_nobody_set_is_unlimited_and_says_so(engine: Client):
    engine.pools.set("db", limit=1)
    with engine.slots("other"):
        assert engine.pools.get("other").limit_text == "unlimited (never set)"
    with pytest.raises(NotFound, match="Did you mean 'db'"):
        engine.pools.get("dbx")


def test_declared_and_live_settings_are_kept_apart(url: Path):
    with embedded(url, pools={"db": 4}, max_concurrent_runs=7) as engine:
        assert (engine.pools.get("db").limit, engine.pools.get("db").source) == (4, "declared")
        engine.pools.set("db", limit=2)
        engine.limits.set_max_concurrent_runs(3)
    # an operator's settings survive a restart
    with embedded(url, pools={"db": 4}, max_concurrent_runs=7) as engine:
        assert (engine.pools.get("db").limit, engine.pools.get("db").source) == (2, "live")
        runs = _limit(engine, "max_concurrent_runs")
        assert (runs.value, runs.live, runs.declared) == ("3", "3", "7")
        engine.pools.reset("db")
        engine.limits.reset("max_concurrent_runs")
        assert engine.pools.get("db").limit == 4
        assert _limit(engine, "max_concurrent_runs").value == "7"
        engine.pools.delete("db")
        assert engine.pools.list() == []


def test_the_history_says_who_changed_what(engine: Client):
    engine.limits.set_max_active(100)
    engine.limits.set_tag("tenant", limit=2, per_value=True, max_active=50)
    engine.pools.set("db", limit=1)
    newest = engine.limits.history(limit=3)
    assert [(change.name, change.before, change.after) for change in newest] == [
        ("db", None, "1"),
        ("tenant=*", None, "2 at once, 50 active (each value)"),
        ("max_active", "10,000", "100"),
    ]
    assert all("@" in change.who for change in newest)


def test_every_kind_of_limit_is_set_listed_and_reset(engine: Client):
    engine.limits.set_tag("tenant", "acme", 1)
    engine.limits.set_tag("tenant", limit=5)
    engine.limits.set_fair("tenant", weights={"acme": 3})
    engine.limits.set_fair("team")  # there is one fair key: the last one set
    for name, value in {"age_boost": "10s", "max_bypass": 4, "placement": "pack"}.items():
        engine.limits.set(name, value)
    engine.limits.set("tenant=*", "9")
    shown = {info.name: info.value for info in engine.limits.list()}
    assert shown == {
        "max_concurrent_runs": "10",
        "max_active": "10,000",
        "tenant": "5 at once",
        "tenant=acme": "1 at once",
        "tenant=*": "9 at once (each value)",
        "fair team": "equal turns",
        "age_boost": "10s",
        "max_bypass": "4",
        "max_starts_per_cycle": "1,000",
        "max_waiting": "1,000,000",
        "topic_retention": "7d00h",
        "placement": "pack",
        "strict_pools": "False",
    }
    for name in ("tenant", "tenant=acme", "tenant=*", "fair", "age_boost", "max_active"):
        engine.limits.reset(name)
    assert not any(info.kind in ("tag", "fair") for info in engine.limits.list())
    with pytest.raises(NotFound, match="there is no limit 'tennant'"):
        engine.limits.reset("tennant")


def test_setting_one_bound_of_a_tag_keeps_the_other(engine: Client):
    engine.limits.set_tag("tenant", limit=2)
    engine.limits.set_tag("tenant", max_active=9)
    assert _limit(engine, "tenant").value == "2 at once, 9 active"


def test_e1_a_raised_run_limit_is_in_force_at_once(url: Path):
    with embedded(url, grace="2s", poll="1h") as engine:  # at once: without a poll
        engine.limits.set_max_concurrent_runs(2)
        runs = engine.submit_many(flows.waits, range(4))
        _until(lambda: len(engine.runs.list(status="running")) == 2)
        assert len(engine.queue.list()) == 2
        engine.limits.set_max_concurrent_runs(-1)
        _until(lambda: not engine.queue.list())
        flows.GATE.set()
        assert [run.result(60) for run in runs] == [0, 1, 2, 3]
    assert broken_promises(url) == []


def test_a_paused_tag_holds_back_its_runs_alone(engine: Client):
    engine.limits.pause("tenant=acme")
    acme = engine.submit(flows.waits, 1, tags={"tenant": "acme"})
    other = engine.submit(flows.waits, 2, tags={"tenant": "other"})
    flows.GATE.set()
    assert other.result(60) == 2
    assert acme.status() == "queued"
    assert _limit(engine, "tenant=acme").paused
    engine.limits.resume("tenant=acme")
    assert acme.result(60) == 1
    with pytest.raises(NotFound):
        engine.limits.resume("tenant=nobody")


def test_a_limit_set_beside_a_live_engine_is_in_force_at_once(engine: Client, url: Path):
    engine.pools.set("db", limit=1)
    engine.pools.pause("db")
    run = engine.submit(flows.pooled, 7)
    with connect(url) as other:
        assert other.pools.get("db").paused
        threading.Thread(target=other.pools.resume, args=("db",)).start()
        assert run.result(60) == 7


def test_workers_are_listed_and_drained(engine: Client):
    [worker] = engine.workers.list()
    assert worker.alive
    assert not worker.draining
    with engine.slots("db"):
        assert len(engine.workers.list()) == 1  # who only holds slots is no worker
    engine.workers.drain(worker.id)
    run = engine.submit(flows.doubled, 1)
    assert engine.workers.list()[0].draining
    _until(lambda: "worker" in str(run.why()))
    run.cancel()
    run.wait(60)
    with pytest.raises(NotFound, match="there is no worker 'x'"):
        engine.workers.drain("x")


def test_two_fair_keys_contradict_where_one_is_declared(url: Path):
    with embedded(url, fair="tenant") as engine:
        engine.limits.set_fair("tenant", {"a": 2})
        with pytest.raises(InvalidInput, match="one fair key only"):
            engine.limits.set_fair("team")


def _limit(engine: Client, name: str):
    return next(info for info in engine.limits.list() if info.name == name)


def _until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


async def test_what_operators_set_at_once_is_all_kept(tmp_path: Path):
    url = tmp_path / "locktender.db"
    async with connect_async(url) as a, connect_async(url) as b:
        for _ in range(10):
            await a.pools.set("db", limit=3)
            await a.pools.resume("db")
            await a.limits.set_max_concurrent_runs(3)
            await a.limits.resume()
            await a.limits.set_tag("tenant", limit=3)
            await a.limits.resume("tenant")
            await asyncio.gather(
                a.pools.pause("db"),
                b.pools.set("db", limit=5),
                a.pools.set("db", lease="9s"),
                a.limits.pause(),
                b.limits.set_max_concurrent_runs(7),
                a.limits.pause("tenant"),
                b.limits.set_tag("tenant", limit=8),
                a.limits.set_tag("tenant", max_active=90),
            )
            pool = await a.pools.get("db")
            assert (pool.paused, pool.limit, pool.lease) == (True, 5, 9.0)
            limits = {each.name: each for each in await a.limits.list()}
            runs, tenant = limits["max_concurrent_runs"], limits["tenant"]
            assert ("7" in runs.value, runs.paused) == (True, True)
            assert ("8" in tenant.value, tenant.paused) == (True, True)


def test_one_key_that_is_set_has_a_rule_of_its_own(engine: Client):
    engine.pools.set("api[*]", limit=2)
    engine.pools.pause("api[*]")
    engine.pools.set("api[acme]", limit=1)
    engine.pools.resume("api[*]")
    acme = engine.pools.get("api[acme]")
    assert (acme.limit, acme.paused) == (1, False)


def test_pausing_and_resuming_a_key_keeps_its_limit(engine: Client):
    engine.pools.set("api[*]", limit=2, rate="10/s", burst=4)
    engine.pools.pause("api[acme]")
    assert not engine.pools.get("api[*]").paused
    engine.pools.resume("api[acme]")
    acme = engine.pools.get("api[acme]")
    assert (acme.limit, acme.rate, acme.burst, acme.paused) == (2, "10/s", 4, False)
