"""Held runs: who sees them, what they keep, who ends them, and what is refused before it can do harm."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.steps import held_steps as flows
from tests.support.db_stores import judged, store_at
from tests.support.fault_injector import Injector

from locktender import Client, InvalidInput, Run, RunState, connect, embedded
from locktender.base.changes import TaskRow
from locktender.base.commits import Commit, RunEvents, RunStart
from locktender.base.errors import DataRefused
from locktender.base.events import NO_RUN, Change
from locktender.base.graph import GRAPH_VERSION
from locktender.leader.isolation import refused_runs
from locktender.store.protocol import Elect
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.postgres"]
LARGE = "x" * 300_000
UNREADABLE = b"[["


def seq_of(injector: Injector, run: Run[int]) -> int:
    return injector.query("SELECT seq FROM {}run WHERE id = ?", run.id)[0][0]


def held(client: Client, run: Run[int]) -> Run[int]:
    found = client.runs.get(run.id)
    eventually(lambda: found.status() == RunState.HELD, 60)
    return found


def read_again(injector: Injector, run: int) -> None:
    """An event that cannot be read: the leader reads everything again."""
    at = injector.query("SELECT max(seq) FROM {}event")[0][0]
    seq = (at + 1,) if injector.typed else ()
    columns = "at, term, cycle, actor, run, body" + (", seq" if seq else "")
    marks = ", ".join("?" * (6 + len(seq)))
    injector.query(
        f"INSERT INTO {{}}event ({columns}) VALUES ({marks})",
        0,
        0,
        0,
        "client",
        run,
        UNREADABLE,
        *seq,
    )


def broken_graph(injector: Injector, run: Run[int], body: bytes = b'{"flow": 1}') -> bytes:
    seq = seq_of(injector, run)
    before: bytes = injector.value("graph", "body", seq)
    injector.write("graph", "body", seq, body)
    return before


def test_attempts_in_flight_keep_their_slots_until_they_end(tmp_path: Path):
    flows.LEFT.clear()
    flows.INSIDE.clear()
    store_url = str(tmp_path / "locktender.db")
    injector = Injector(store_url)
    with embedded(store_url, grace="2s") as engine:
        engine.pools.set(flows.GATE, limit=1)
        run = engine.submit(flows.staying, 5)
        assert flows.INSIDE.wait(60)
        body = broken_graph(injector, run)
        read_again(injector, seq_of(injector, run))
        found = held(engine, run)
        after = engine.submit(flows.passing, 7)
        eventually(lambda: after.why().waiting, 60)
        assert engine.pools.get(flows.GATE).used == 1
        assert "1 attempt goes on" in found.why().text()
        with pytest.raises(InvalidInput, match="have not ended"):
            found.retry()
        flows.LEFT.set()
        assert after.result("60s") == 7
        injector.write("graph", "body", seq_of(injector, run), body)
        found.retry()
        assert found.result("60s") == 15
    injector.query("DELETE FROM {}event WHERE body = ?", UNREADABLE)
    violations, _ = asyncio.run(judged(store_url))
    assert violations == []


def test_a_graph_of_a_newer_release_is_held_with_a_hint(store_url: str):
    injector = Injector(store_url)
    with connect(store_url) as client:
        run, other = client.submit(flows.victim, 1), client.submit(flows.ordinary, 1)
    newer = f'{{"version": {GRAPH_VERSION + 1}, "flow": "victim", "nodes": "of tomorrow"}}'
    body = broken_graph(injector, run, newer.encode())
    with embedded(store_url, grace="2s") as engine:
        assert engine.runs.get(other.id).result("60s") == flows.result_of(1)
        found = held(engine, run)
        assert "Upgrade locktender" in found.why().text()
        injector.write("graph", "body", seq_of(injector, run), body)
        found.retry()
        assert found.result("60s") == flows.result_of(1)


def test_a_missing_blob_holds_its_run_until_it_is_repaired(tmp_path: Path):
    store_url = tmp_path / "locktender.db"
    with connect(store_url) as client:
        run, other = client.submit(flows.with_blob, LARGE), client.submit(flows.ordinary, 1)
    blobs = Path(f"{store_url}-blobs")
    shutil.move(blobs, tmp_path / "elsewhere")
    with embedded(store_url, grace="2s") as engine:
        assert engine.runs.get(other.id).result("60s") == flows.result_of(1)
        found = held(engine, run)
        assert "no blob" in found.why().text()
        shutil.move(tmp_path / "elsewhere", blobs)
        found.retry()
        assert found.result("60s") == len(LARGE)


def test_two_names_of_one_file_share_their_companions(tmp_path: Path):
    real, link = tmp_path / "real" / "locktender.db", tmp_path / "link.db"
    real.parent.mkdir()
    link.symlink_to(real)
    with embedded(real, grace="2s") as engine:
        with connect(link) as client:
            run = client.submit(flows.with_blob, LARGE)
        assert engine.runs.get(run.id).result("60s") == len(LARGE)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.db", "real"]


def test_its_deadline_ends_a_held_run(store_url: str):
    injector = Injector(store_url)
    with connect(store_url) as client:
        run = client.submit(flows.victim, 1, deadline="2s")
    broken_graph(injector, run)
    with embedded(store_url, grace="2s") as engine:
        found = engine.runs.get(run.id)
        assert found.wait("60s")
        assert found.status() == RunState.TIMED_OUT


def test_a_request_that_cannot_be_read_is_refused_alone(store_url: str):
    injector = Injector(store_url)
    with connect(store_url) as client:
        runs = [client.submit(flows.ordinary, n) for n in range(3)]
        client.runs.cancel(runs[0].id)
        client.runs.cancel(runs[1].id)
    first = injector.query("SELECT min(seq) FROM {}request")[0][0]
    injector.query("UPDATE {}request SET body = ? WHERE seq = ?", b'{"kind": 7}', first)
    with embedded(store_url, grace="2s") as engine:
        assert engine.runs.get(runs[2].id).result("60s") == flows.result_of(2)
        second = engine.runs.get(runs[1].id)
        assert second.wait("60s")
        assert second.status() == RunState.CANCELLED
        assert engine.runs.get(runs[0].id).result("60s") == flows.result_of(0)
    assert injector.query("SELECT count(*) FROM {}request")[0][0] == 0
    told = [row[0] for row in injector.query("SELECT body FROM {}event WHERE run = 0")]
    assert sum(b"it cannot be read" in body for body in told) == 1


REFUSE = {
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE UPDATE ON run WHEN NEW.seq = {seq} AND NEW.state = 'running'"
        " BEGIN SELECT RAISE(ABORT, 'it is refused'); END"
    ),
    "postgres": (
        "ALTER TABLE locktender.run ADD CONSTRAINT refuse CHECK (seq <> {seq} OR state <> 'running')"
    ),
}


def test_a_commit_refused_for_one_run_goes_on_without_it(store_url: str):
    injector = Injector(store_url)
    with connect(store_url) as client:
        run = client.submit(flows.victim, 1)
        others = [client.submit(flows.ordinary, n) for n in range(3)]
    refuse = REFUSE["postgres" if injector.typed else "sqlite"]
    injector.query(refuse.format(seq=seq_of(injector, run)))
    with embedded(store_url, grace="2s") as engine:
        for n, other in enumerate(others):
            assert engine.runs.get(other.id).result("60s") == flows.result_of(n)
        assert "refuse" in held(engine, run).why().text()
        engine.runs.cancel(run.id)
        assert engine.runs.get(run.id).wait("60s")


def test_a_number_beyond_64_bits_is_named_by_the_dry_run(store_url: str):
    with connect(store_url) as client:
        runs = [client.submit(flows.ordinary, n) for n in range(2)]
    seqs = [seq_of(Injector(store_url), run) for run in runs]

    async def written() -> dict[int, str]:
        store = store_at(store_url)
        await store.open()
        try:
            led = await store.elect(Elect("test", 60_000_000))
            commit = Commit(led.term, 1, "leader:test", at=led.now)
            commit.runs_started = [RunStart(seq, led.now) for seq in seqs]
            commit.tasks_new = [
                TaskRow(seq << 20, 0, -1, "requested", requested_at=2**63 if seq == seqs[0] else 1)
                for seq in seqs
            ]
            commit.events = [RunEvents(NO_RUN, [Change("audit", 0, "", "tried")])]
            with pytest.raises(DataRefused):
                await store.commit(commit)
            found = await refused_runs(store, commit)
            assert await store.tasks(seqs[1]) == []
            await store.resign("test", led.term)
            return found
        finally:
            await store.close()

    assert list(asyncio.run(written())) == [seqs[0]]
    with embedded(store_url, grace="2s") as engine:
        assert engine.runs.get(runs[1].id).result("60s") == flows.result_of(1)


def test_a_boost_that_could_overflow_is_refused(store_url: str):
    injector = Injector(store_url)
    with embedded(store_url, grace="2s") as engine:
        with pytest.raises(InvalidInput, match="30 days or less"):
            engine.limits.set("age_boost", "200d")
        engine.limits.set("age_boost", "29d")
    rule = b'{"value": %d}' % (200 * 86_400 * 1_000_000)
    injector.query("UPDATE {}limit_rule SET live = ? WHERE name = 'age_boost_us'", rule)
    with embedded(store_url, grace="2s") as engine:
        runs = [engine.submit(flows.ordinary, n, priority=1_000_000) for n in range(2)]
        assert [run.result("60s") for run in runs] == [flows.result_of(n) for n in range(2)]


def test_the_metric_counts_held_runs(tmp_path: Path):
    store_url = str(tmp_path / "locktender.db")
    with connect(store_url) as client:
        run = client.submit(flows.victim, 1)
    broken_graph(Injector(store_url), run)
    with embedded(store_url, grace="2s") as engine:
        held(engine, run)
        store_engine = engine._core.engine
        assert store_engine is not None
        assert (store_engine.metrics.held_now, store_engine.metrics.runs_held) == (1, 1)
        engine.runs.cancel(run.id)
        assert engine.runs.get(run.id).wait("60s")
        eventually(lambda: store_engine.metrics.held_now == 0, 60)
