"""`locktender db status` and `db prune`: real files, real PostgreSQL, real processes."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.support.cli_harness import batch, locktender
from tests.support.db_stores import big, build, fill, judged, store_at

from locktender import embedded_async
from locktender.base.clock import ManualClock
from locktender.base.config import Settings
from locktender.base.events import HISTORY, unpack
from locktender.leader.retention import (
    CHECK_EVERY_US,
    LONG_SLICE_US,
    MAX_RUNS_PER_SLICE,
    MIN_RUNS_PER_SLICE,
    PRUNE_EVERY_US,
    PruneSlices,
    Retention,
)
from locktender.observe.checkpoint import marks, write_checkpoint
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.session import SUBMITTERS
from locktender.store.protocol import EventFilter, RunFilter
from locktender.store.pruning import Prune
from locktender.testing.postgres_server import connected

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.postgres"]


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


async def test_status_tells_what_there_is_beside_an_engine(url: str, tmp_path: Path) -> None:
    await fill(url, 4)
    async with embedded_async(url) as engine:
        await (await engine.submit(build)).result(timeout="60s")
        said = await asyncio.to_thread(
            locktender, "db", "status", "--json", "--url", url, cwd=tmp_path
        )
        shown = await asyncio.to_thread(locktender, "db", "status", "--url", url, cwd=tmp_path)
    assert said.code == 0, said.err
    found = said.data
    assert found["kind"] == ("postgresql" if "://" in url else "sqlite")
    assert found["schema"] == found["known"]
    assert not found["pending"]
    assert found["runs"] == {"succeeded": 5}
    assert found["rows"]["tasks"] == 23
    assert found["rows"]["history"] > 20
    assert f"{found['rows']['history']:,} rows of history" in " ".join(shown.out.split())
    assert found["leader"]
    assert len(found["workers"]) == 1
    assert found["bytes"] > 50_000
    assert found["oldest"] < found["newest"] <= found["now"]
    assert found["checkpoint"] is None
    assert found["counters_agree"]
    if "://" in url:
        assert found["server"]["ours"] >= 2
    assert shown.code == 0
    assert "5 succeeded" in shown.out


def test_status_does_not_make_a_store(tmp_path: Path) -> None:
    said = locktender("db", "status", "--url", "none.db", cwd=tmp_path)
    assert said.code == 2
    assert "no store at" in said.err
    assert not (tmp_path / "none.db").exists()


async def test_prune_forgets_old_runs_and_audit_still_judges_the_rest(
    url: str, tmp_path: Path
) -> None:
    await fill(url, 6)
    prune = ["db", "prune", "--older-than", "0s", "--json", "--url", url]
    did = batch(
        {
            "dry": [*prune, "--dry-run"],
            "done": [*prune, "--keep", "2", "--batch", "2"],
        },
        tmp_path,
    )
    assert did["dry"].data["runs"] == 6
    assert did["dry"].data["checkpoint"] is None
    said = did["done"]
    assert said.code == 0, said.err
    assert (said.data["runs"], said.data["checkpoint"]["violations"]) == (4, 0)
    store = store_at(url)
    await store.open()
    assert len(await store.runs(RunFilter())) == 2
    rows = await store.events(EventFilter(run=HISTORY))
    told = [event.after for row in rows for event in unpack(row)]
    assert told == ["checked", "pruned", "pruned"]
    counts = await store.counts()
    assert counts.admitted[""] == counts.closed[""] == 6
    await store.close()
    await fill(url, 3)
    audits = {"text": ["audit", "--url", url], "json": ["audit", "--json", "--url", url]}
    audit = batch(audits, tmp_path)
    assert audit["text"].code == 0, audit["text"].out
    assert "4 runs up to" in audit["text"].out
    assert "were checked before and pruned" in audit["text"].out
    found = audit["json"].data
    assert found["pruned"]["runs"] == 4
    assert {peak["name"]: peak["peak"] for peak in found["peaks"]}["pool:db"] == 2


async def test_prune_beside_an_engine_under_load(url: str, tmp_path: Path) -> None:
    """Nothing fails, nothing is lost, what is active stays."""
    pruned = 0
    async with embedded_async(url, max_concurrent_runs=4) as engine:
        await engine.pools.set("db", limit=2)
        for round_ in range(2):
            several = [await engine.submit(build, n=4) for _ in range(15)]
            several += [await engine.submit(big, round_)]
            prune = asyncio.create_task(
                asyncio.to_thread(
                    locktender,
                    *("db", "prune", "--older-than", "0s", "--batch", "3", "--json", "--url", url),
                    cwd=tmp_path,
                )
            )
            for run in several:
                await run.wait(timeout="60s")
            while not prune.done():
                await (await engine.submit(build, n=2)).wait(timeout="60s")
            said = await prune
            assert said.code == 0, said.err
            pruned += said.data["runs"]
        left = [await engine.submit(build) for _ in range(3)]
        assert [await run.result(timeout="60s") for run in left] == [3, 3, 3]
    assert pruned > 5
    violations, found = await judged(url)
    assert violations == []
    assert found.runs == pruned
    store = store_at(url)
    await store.open()
    assert {row.state for row in await store.runs(RunFilter(limit=1_000))} == {"succeeded"}
    counts = await store.counts()
    assert counts.admitted[""] == counts.closed[""]
    await store.close()


async def test_pruners_and_submitters_come_one_after_the_other(postgres_url: str) -> None:
    """Whoever retries a run while it is pruned would queue what is not there."""
    await fill(postgres_url, 2)
    store = PostgresStore(postgres_url)
    await store.open()
    space, key = store.options.lock(SUBMITTERS)
    async with connected(postgres_url) as submitter, connected(postgres_url) as looker:
        await submitter.execute(f"BEGIN; SELECT pg_advisory_xact_lock({space}, {key})")
        prune = Prune(await store.now(), 2**62, "ops")
        pruning = asyncio.create_task(store.prune(prune))
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        async with asyncio.timeout(60):  # it waits for submitters
            while not await looker.fetchval(waits):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not pruning.done()
        await submitter.execute("ROLLBACK")
        assert (await pruning).runs == 2
    await store.close()


async def test_a_broken_history_is_pruned_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    await fill(str(path), 4)
    db = sqlite3.connect(path)
    with db:
        # The first run's end is lost: the history then says that a run which is terminal never ended.
        db.execute(
            "DELETE FROM event WHERE run = 1 AND seq = (SELECT max(seq) FROM event WHERE run = 1)"
        )
    db.close()
    prune = ["db", "prune", "--older-than", "0s", "--json", "--url", str(path)]
    said = batch(
        {
            "refused": prune,
            "status": ["db", "status", "--json", "--url", str(path)],
            "forced": [*prune, "--force"],
            "audit": ["audit", "--url", str(path)],
        },
        tmp_path,
    )
    refused, forced, audit = said["refused"], said["forced"], said["audit"]
    assert refused.code == 1
    assert refused.error["code"] == "history_broken"
    assert "--force" in refused.error["hint"]
    status = said["status"].data
    assert status["runs"] == {"succeeded": 4}
    assert status["checkpoint"]["violations"] > 0
    assert forced.code == 0, forced.err
    assert forced.data["runs"] == 4
    assert audit.code == 0, audit.out
    assert "passed over" in audit.out.replace("\n", " ")
    await fill(str(path), 2)
    again = locktender(*prune, cwd=tmp_path)
    assert (again.code, again.data["runs"]) == (0, 2)


@pytest.mark.parametrize(
    "given",
    [["--older-than", "soon"], [], ["--older-than", "1d", "--keep", "-1"], ["--older-than", "1d", "--batch", "0"]],
)  # fmt: skip
def test_prune_with_what_cannot_be_right(tmp_path: Path, given: list[str]) -> None:
    asyncio.run(fill(str(tmp_path / "locktender.db"), 1))
    said = locktender("db", "prune", *given, "--json", "--url", "locktender.db", cwd=tmp_path)
    assert said.code == 2
    assert said.error["message"]


async def test_retention_prunes_by_itself_what_was_checked(url: str) -> None:
    await fill(url, 5)
    store = store_at(url)
    await store.open()
    clock = ManualClock()
    checks: list[int] = []

    async def check(_before: int) -> bool:
        checks.append((await write_checkpoint(store, "leader")).seq)
        return True

    off = Retention(store, Settings(url=url), "leader", clock=clock, check=check)
    clock.advance(2 * PRUNE_EVERY_US)
    assert not off.due()
    # Two microseconds: everything that has ended is that old.
    settings = Settings(url=url, retention_us=2)
    retention = Retention(store, settings, "leader", clock=clock, check=check)
    assert not retention.due()
    clock.advance(PRUNE_EVERY_US)
    assert retention.due()
    assert await retention.work() == 5
    assert not retention.due()
    await fill(url, 2)
    clock.advance(PRUNE_EVERY_US)
    assert await retention.work() == 0, "not checked yet"
    assert len(checks) == 1
    clock.advance(CHECK_EVERY_US)
    assert await retention.work() == 2
    assert len(checks) == 2
    clock.advance(CHECK_EVERY_US)
    assert await retention.work() == 0
    assert len(checks) == 2, "nothing waits: nothing is checked"
    assert (await marks(store)).runs == 7
    await store.close()
    assert (await judged(url))[0] == []


async def test_retention_checks_in_a_process_of_its_own(url: str) -> None:
    await fill(url, 3)
    store = store_at(url)
    await store.open()
    clock = ManualClock()
    retention = Retention(store, Settings(url=url, retention_us=2), "leader", clock=clock)
    clock.advance(PRUNE_EVERY_US)
    assert await retention.work() == 3
    last = (await marks(store)).last
    assert last is not None
    assert last.violations == 0
    await store.close()


async def test_retention_goes_on_while_there_is_more(tmp_path: Path) -> None:
    url = str(tmp_path / "locktender.db")
    await fill(url, 1)
    file = sqlite3.connect(url)
    names = [row[1] for row in file.execute("PRAGMA table_info(run)")]
    others = ", ".join(name for name in names if name not in {"seq", "id"})
    with file:
        file.execute(
            f"WITH RECURSIVE n (k) AS (SELECT 2 UNION ALL SELECT k + 1 FROM n WHERE k < 5000)"
            f" INSERT INTO run (seq, id, {others}) SELECT k, 'r' || k, {others} FROM n, run"
        )
    file.close()
    store = store_at(url)
    await store.open()
    clock = ManualClock()

    async def check(_before: int) -> bool:
        return bool(await write_checkpoint(store, "leader"))

    settings = Settings(url=url, retention_us=2)
    retention = Retention(store, settings, "leader", clock=clock, check=check)
    clock.advance(PRUNE_EVERY_US)
    assert await retention.work() == 5_000
    await store.close()


def test_slices_of_pruning_leave_time_for_commits() -> None:
    slices = PruneSlices()
    assert slices.pause_us(20_000, behind=False) == 60_000
    assert (slices.pause_us(20_000, behind=True), slices.runs) == (20_000, 100)
    for _ in range(20):
        slices.pause_us(LONG_SLICE_US + 1, behind=True)
    assert slices.runs == MIN_RUNS_PER_SLICE
    for _ in range(20):
        slices.pause_us(1_000, behind=True)
    assert slices.runs == MAX_RUNS_PER_SLICE
