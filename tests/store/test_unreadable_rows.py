"""Rows of workers, rates and rules that cannot be read: whoever reads many gets all the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.steps import held_steps as flows
from tests.support.db_stores import store_at
from tests.support.fault_injector import LARGEST, Injector
from tests.support.worlds import worker_row

from locktender import connect
from locktender.base.errors import DataRefused
from locktender.base.limits import PoolRule, TagRule
from locktender.base.model import DeadWorker
from locktender.store import decode, limit_rows
from locktender.store.protocol import Elect, Expire, Heads, Heartbeat, Store

pytest_plugins = ["locktender.testing.postgres"]

T = TypeVar("T")
LEASE_US = 60_000_000


def on_store(store_url: str, verb: Callable[[Store], Awaitable[T]]) -> T:
    async def called() -> T:
        store = store_at(store_url)
        await store.open()
        try:
            return await verb(store)
        finally:
            await store.close()

    return asyncio.run(called())


async def joined(store: Store) -> None:
    for name in ("one", "two"):
        await store.heartbeat(Heartbeat(worker_row(name), LEASE_US))


@pytest.mark.parametrize("body", [b'{"broken', b"17"])
def test_a_worker_mends_its_row_with_its_next_renewal(store_url: str, body: bytes):
    on_store(store_url, joined)
    Injector(store_url).query("UPDATE {}worker SET body = ? WHERE id = 'one'", body)

    one, two = on_store(store_url, lambda store: store.workers())
    assert "its description cannot be read" in one.unreadable
    assert (one.id, one.permits, two.unreadable) == ("one", {}, "")

    beaten = on_store(
        store_url,
        lambda store: store.heartbeat(Heartbeat(worker_row("one"), LEASE_US, renews=True)),
    )
    assert beaten.lease_until > 0
    assert [row.unreadable for row in on_store(store_url, lambda store: store.workers())] == [
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("column", "value"),
    [("body", b"?"), ("lease_until", "text"), ("lease_until", LARGEST), ("lease_us", -1)],
)
def test_a_dead_worker_is_declared_lost_whatever_its_row_says(
    store_url: str, column: str, value: object
):
    injector = Injector(store_url)
    if injector.typed and value == "text":
        pytest.skip("PostgreSQL refuses a text there")
    on_store(store_url, joined)
    injector.query(f"UPDATE {{}}worker SET {column} = ? WHERE id = 'one'", value)

    async def buried(store: Store) -> list[str]:
        term = (await store.elect(Elect("me", LEASE_US))).term
        [life] = [each for each in await store.lives() if each.worker == "one"]
        assert 0 <= life.lease_us <= LEASE_US
        dead = [DeadWorker(life.worker, life.lease_until, "dead")]
        return [each.worker for each in await store.expire(Expire(term, 1, "leader:me", dead))]

    assert on_store(store_url, buried) == ["one"]
    assert [row.id for row in on_store(store_url, lambda store: store.workers())] == ["two"]


@pytest.mark.parametrize("term", [-7, LARGEST, "text"])
def test_a_term_that_cannot_be_read_is_taken_from_the_history(store_url: str, term: object):
    injector = Injector(store_url)
    if injector.typed and term == "text":
        pytest.skip("PostgreSQL refuses a text there")
    first = on_store(store_url, lambda store: store.elect(Elect("one", LEASE_US))).term
    injector.query("UPDATE {}leader SET term = ?, expires_at = 0", term)
    assert on_store(store_url, lambda store: store.elect(Elect("two", LEASE_US))).term > first


@pytest.mark.parametrize("last", [-7, LARGEST])
def test_runs_are_refused_where_none_can_be_numbered(postgres_url: str, last: int):
    with connect(postgres_url) as client:
        Injector(postgres_url).query("UPDATE {}meta SET value = ? WHERE name = 'last_run'", last)
        with pytest.raises(DataRefused, match="the number of the last run cannot be read"):
            client.submit(flows.ordinary, 1)


def test_a_pool_and_a_tag_whose_rule_cannot_be_read_stay_shut():
    rows = limit_rows.readable(
        [
            ("pool", "db", b'{"limit":3}', b"?"),
            ("tag", "tenant=acme", None, b"17"),
            ("tag", "user=*", b'{"key":"user","per_value":true,"limit":"x"}', None),
            ("runs", "", b'{"limit":7}', b"?"),
            ("engine", "max_bypass", None, b"?"),
            ("pool", "good", None, b'{"limit":3}'),
        ]
    )
    limits = limit_rows.compose(rows)
    assert limits.pools == {"db": PoolRule(1, paused=True), "good": PoolRule(3)}
    assert limits.tags == (
        TagRule("tenant", "acme", limit=1, paused=True),
        TagRule("user", per_value=True, limit=1, paused=True),
    )
    assert (limits.max_concurrent_runs, limits.max_bypass) == (7, 16)
    assert [bool(row.unreadable) for row in rows] == [True] * 5 + [False]
    said = [row.unreadable.partition(": ")[0] for row in rows]
    assert said == [
        "the live rule of pool db cannot be read, so it is shut",
        "the live rule of tag tenant=acme cannot be read, so it is shut",
        "the declared rule of tag user=* cannot be read, so it is shut",
        "the live rule of runs cannot be read, so the declared one is in force",
        "the live rule of engine max_bypass cannot be read, so none is in force",
        "",
    ]
    [row] = limit_rows.readable([("pool", "db", b"?", b'{"limit":3}')])
    assert "so the live one stays in force: " in row.unreadable


@pytest.mark.parametrize("tat", ["text", -1, LARGEST, None])
def test_a_rate_that_cannot_be_read_counts_as_used_up(tat: object):
    [bucket] = decode.buckets([("api", tat)])
    assert bucket.tat == decode.MAX_NUMBER


def test_a_place_of_no_run_does_not_hide_those_behind_it(store_url: str):
    with connect(store_url) as client:
        for n in range(3):
            client.submit(flows.ordinary, n)
    injector = Injector(store_url)
    [[lane]] = injector.query("SELECT min(lane) FROM {}queue")
    injector.query(
        "INSERT INTO {}queue (lane, rank1, rank2, run) VALUES (?, ?, ?, ?)", lane, -1, -1, 1 << 40
    )
    found = on_store(store_url, lambda store: store.heads(Heads([lane], 2, 10)))
    assert [row.seq for row in found] == [1, 2]
