"""`locktender audit` goes on where the last audit ended, on both stores."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.cli_harness import batch
from tests.support.db_stores import build, fill, store_at, waiting
from tests.support.fault_injector import Injector
from tests.support.server_harness import until

from locktender import connect_async, embedded_async
from locktender.base.events import HISTORY, NO_RUN, EventRow
from locktender.observe import history_reader, prune
from locktender.observe.checkpoint import audit, marks, write_checkpoint
from locktender.observe.prune import Forget, forget
from locktender.store.protocol import EventFilter, Store

pytestmark = pytest.mark.timeout(300)

pytest_plugins = ["locktender.testing.postgres"]


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = store_at(url)
    await store.open()
    yield store
    await store.close()


def rows_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[EventRow]:
    """What is read of the history from here on."""
    read: list[EventRow] = []
    events = store.events

    async def counted(where: EventFilter) -> list[EventRow]:
        rows = await events(where)
        read.extend(rows)
        return rows

    monkeypatch.setattr(store, "events", counted)
    return read


async def test_the_second_audit_begins_where_the_first_ended(tmp_path: Path) -> None:
    await fill(str(tmp_path / "locktender.db"), 4)
    plain = ["audit", "--url", "locktender.db"]
    commands = {
        "first": [*plain, "--json"],
        "second": [*plain, "--json"],
        "full": [*plain, "--full", "--json"],
        "said": plain,
    }
    did = await asyncio.to_thread(batch, commands, tmp_path)
    first, second = did["first"].data, did["second"].data
    assert (first["began"]["seq"], first["began"]["events"]) == (0, first["events"])
    assert (second["began"]["seq"] > 0, second["began"]["events"]) == (True, 0)
    for name in ("events", "peaks", "violations", "promises", "pruned"):
        assert second[name] == first[name]
    assert did["full"].data["began"] == first["began"]
    assert "From the audit of" in did["said"].out
    assert "--full" in did["said"].out


async def test_an_unchanged_history_is_not_read_again(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(url, 6)
    first = await audit(store)
    assert first.events > 50
    read = rows_read(store, monkeypatch)
    again = await audit(store)
    assert read == []
    assert replace(again, began=first.began) == first
    await fill(url, 1)
    more = await audit(store)
    assert 0 < more.began.events < first.events
    assert more.events == first.events + more.began.events
    assert more == replace(await audit(store, full=True), began=more.began)


async def test_runs_that_are_open_are_followed_on(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(history_reader, "ROWS_PER_PAGE", 2)
    async with embedded_async(url) as engine:
        await engine.pools.set("db", limit=2)
        run = await engine.submit(waiting, str(tmp_path / "go"), tags={"team": "a"})
        while await run.status() == "queued":
            await store.wait(10_000)
        assert (await audit(store)).violations == []
        (tmp_path / "go").touch()
        await run.result(timeout="60s")
    done = await audit(store)
    assert done.began.seq > 0
    assert replace(await audit(store, full=True), began=done.began) == done


@pytest.mark.parametrize("damage", ["version = 'x'", "body = x'00'", "seq = seq + 1"])
async def test_a_state_that_cannot_be_used_is_passed_over(damage: str, tmp_path: Path) -> None:
    url = str(tmp_path / "locktender.db")
    await fill(url, 2)
    store = store_at(url)
    await store.open()
    first = await audit(store)
    file = sqlite3.connect(url)
    with file:
        file.execute(f"UPDATE audit_state SET {damage}")
    file.close()
    assert await audit(store) == first
    assert (await audit(store)).began.seq > 0
    await store.close()


async def test_pruning_and_audits_take_turns(url: str, store: Store) -> None:
    await fill(url, 4)
    assert (await audit(store)).violations == []
    old = await store.audit_state()
    await fill(url, 3)
    done = await forget(store, Forget(await store.now() + 1, "ops", keep=1))
    assert done.runs == 6
    after = await audit(store)
    assert (after.began.seq > 0, after.violations) == (True, [])
    # A state from before the checkpoint would take the runs that went for active.
    assert old is not None
    await store.keep_audit_state(old)
    again = await audit(store)
    assert (again.began.seq, again.violations) == (0, [])


async def test_a_violation_is_found_again_by_the_next_audit(tmp_path: Path) -> None:
    url = str(tmp_path / "locktender.db")
    await fill(url, 3)
    file = sqlite3.connect(url)
    with file:
        file.execute("DELETE FROM event WHERE seq = (SELECT min(seq) FROM event WHERE run = 2)")
    file.close()
    store = store_at(url)
    await store.open()
    first = await audit(store)
    assert first.violations
    second = await audit(store)
    assert second.began.seq > 0
    assert second.violations == first.violations
    # An operator has seen them, and the run is gone: the next audit looks at what is left.
    await forget(store, Forget(await store.now() + 1, "ops", force=True))
    third = await audit(store)
    assert third.violations == []
    assert (await write_checkpoint(store, "ops")).violations == 0
    await store.close()


async def test_only_what_is_asked_for_is_shown(tmp_path: Path) -> None:
    url = str(tmp_path / "locktender.db")
    await fill(url, 3)
    file = sqlite3.connect(url)
    with file:
        # A pool of 2 that was one of 1, and a run that nobody queued.
        told = "CAST(replace(CAST(body AS TEXT), '\"limit\":2', '\"limit\":1') AS BLOB)"
        file.execute(f"UPDATE event SET body = {told} WHERE run = ?", (NO_RUN,))
        file.execute("DELETE FROM event WHERE seq = (SELECT min(seq) FROM event WHERE run = 2)")
    [(broken,)] = file.execute("SELECT id FROM run WHERE seq = 2")
    [(first,)] = file.execute("SELECT id FROM run WHERE seq = 1")
    file.close()
    plain = ["audit", "--url", "locktender.db", "--json"]
    commands = {
        "all": plain,
        "run": [*plain, "--run", broken],
        "pool": [*plain, "--pool", "db"],
        "both": [*plain, "--run", first, "--pool", "db"],
        "none": [*plain, "--pool", "dbb"],
        "hour": [*plain, "--since", "1h"],
        "now": [*plain, "--since", "2999-01-01T00:00+00:00"],
        "wrong": [*plain, "--since", "yesterday"],
        "said": ["audit", "--url", "locktender.db", "--run", first],
    }
    did = await asyncio.to_thread(batch, commands, tmp_path)
    everything = did["all"].data["violations"]
    assert {each["run"] for each in did["run"].data["violations"]} == {2}
    at_pool = did["pool"].data["violations"]
    assert "ceilings" in {each["rule"] for each in at_pool}
    assert 0 < len(did["run"].data["violations"]) < len(everything)
    assert 0 < len(at_pool) < len(everything)
    assert [peak["name"] for peak in did["pool"].data["peaks"]] == ["pool:db"]
    assert {each["run"] for each in did["both"].data["violations"]} <= {1}
    assert did["hour"].data["violations"] == everything
    assert (did["now"].data["violations"], did["now"].code) == ([], 0)
    assert did["all"].code == did["run"].code == did["pool"].code == 1
    assert did["wrong"].code == 2
    assert "--since 1h" in did["wrong"].err
    assert did["none"].code == 2
    assert "no rule and no peak of a pool 'dbb' is known" in did["none"].err
    assert "Did you mean 'db'?" in did["none"].err
    assert "more broken outside of what was asked for" in did["said"].out


async def test_events_of_no_run_go_when_they_say_nothing_any_more(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "MAX_MARKS", 2)
    monkeypatch.setattr(prune, "ROWS_PER_BATCH", 50)
    for limit in (1, 2):
        async with embedded_async(url, max_concurrent_runs=4) as engine:
            for other in range(60):
                await engine.pools.set("db", limit=5 + other)
            await engine.pools.set("db", limit=limit)
            await (await engine.submit(build, n=4)).result(timeout="60s")
    before = await store.events(EventFilter(run=NO_RUN))
    done = await forget(store, Forget(await store.now() + 1, "ops"))
    assert done.runs == 2
    left = await store.events(EventFilter(run=NO_RUN))
    assert len(before) > 120
    assert len(left) < 20
    assert len(await store.events(EventFilter(run=HISTORY))) <= 3
    known = await marks(store)
    assert (known.runs, known.thinned > 0) == (2, True)
    # Both ways to audit know the limit of the pool, and all peaks.
    await fill(url, 3)
    on, full = await audit(store), await audit(store, full=True)
    assert on.began.seq > full.began.seq == 0
    assert on.violations == full.violations == []
    assert on.peaks == full.peaks
    assert {peak.limit for peak in full.peaks if peak.name == "pool:db"} == {2}
    again = await forget(store, Forget(await store.now() + 1, "ops"))
    assert (again.runs, (await marks(store)).runs) == (3, 5)


async def test_an_unreadable_graph_is_reported_and_the_rest_checked(url: str, store: Store) -> None:
    await fill(url, 2)
    await asyncio.to_thread(Injector(url).write, "graph", "body", 1, b"[[")

    async def whole() -> bool:
        """A transaction of any database of the server may hide the end for a while."""
        return (await audit(store)).seq == (await store.events(EventFilter(limit=10_000)))[-1].seq

    await until(whole, "the whole history")
    for full in (False, True):
        done = await audit(store, full=full)
        assert {each.rule for each in done.violations} == {"legal_edge"}
        assert all("cannot be read" in each.message for each in done.violations)
    async with connect_async(url) as client:
        run = await client.runs.get((await client.runs.list())[0].id)
        assert (await run.result("60s") is not None, await run.logs()) == (True, [])
