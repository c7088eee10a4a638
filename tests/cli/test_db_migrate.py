"""`locktender db migrate`: beside engines that work, from nothing, and what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.support.cli_harness import batch, locktender
from tests.support.db_stores import build, judged, store_at

from locktender import connect_async, embedded_async
from locktender.base.errors import SchemaTooNew, StoreError
from locktender.store.migrate import Migration
from locktender.store.open import place_for
from locktender.store.postgres import opening as postgres
from locktender.store.sqlite import opening as sqlite
from locktender.testing.postgres_server import connected, execute, with_options

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.postgres"]

LATER = """
ALTER TABLE {}task ADD COLUMN later bigint;
ALTER TABLE {}run ADD COLUMN later text;
CREATE TABLE {}later (x bigint);
CREATE INDEX later_event ON {}event (at);
"""
"""Only for these tests: a change of the tables that an engine writes all the time."""


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


def later(url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """This code knows one migration more from here on; its number."""
    dialect, schema = (postgres, "locktender.") if "://" in url else (sqlite, "")
    number = len(dialect.MIGRATIONS) + 1
    extra = Migration(number, "later", LATER.replace("{}", schema))
    monkeypatch.setattr(dialect, "MIGRATIONS", [*dialect.MIGRATIONS, extra])
    return number


async def test_a_migration_beside_an_engine_under_load(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing fails, nothing is lost; who opens it with older code is refused."""
    place = place_for(url)
    async with embedded_async(url, max_concurrent_runs=4) as engine:
        submitted = [await engine.submit(build, n=5) for _ in range(30)]
        await submitted[0].result(timeout="60s")
        with monkeypatch.context() as patch:
            number = later(url, patch)
            assert (await place.status()).pending == 1
            migrating = asyncio.create_task(place.migrate())
            while not migrating.done():
                submitted.append(await engine.submit(build, n=5))
                await submitted[-1].wait(timeout="60s")
            done = await migrating
            assert (done.before, done.after) == (number - 1, number)
            again = await place.migrate()
            assert (again.before, again.after) == (number, number)
        submitted += [await engine.submit(build, n=5) for _ in range(5)]
        assert [await run.result(timeout="60s") for run in submitted] == [10] * len(submitted)
    with pytest.raises(SchemaTooNew):
        await store_at(url).open()
    status = await place.status()
    assert status.schema == status.known + 1
    assert status.runs == {"succeeded": len(submitted)}
    later(url, monkeypatch)
    assert (await judged(url))[0] == []


async def test_a_migration_waits_for_a_moment_only_and_tries_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign transaction holds the table: whoever comes behind the migration is not held up by it."""
    number = later(postgres_url, monkeypatch)
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'locktender.task'::regclass"
    async with (
        connected(postgres_url) as foreign,
        connected(postgres_url) as reader,
        connected(postgres_url) as looker,
        asyncio.timeout(100),
    ):
        await foreign.execute("BEGIN; LOCK TABLE locktender.task IN ACCESS SHARE MODE")
        migrating = asyncio.create_task(place_for(postgres_url).migrate())
        for _ in range(2):
            while not await looker.fetch(waits):  # noqa: ASYNC110 — it waits, once and again
                await asyncio.sleep(0.005)
            # The foreign transaction goes on: this passes only because the migration gives up its place.
            await reader.fetch("SELECT count(*) FROM locktender.task")
        assert not migrating.done()
        await foreign.execute("ROLLBACK")
        assert (await migrating).after == number


async def test_f9_a_newer_client_changes_nothing_in_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused while it would have to migrate: older engines and clients go on."""
    place = place_for(url)
    async with embedded_async(url) as engine:
        before = (await place.status()).schema
        with monkeypatch.context() as patch:
            number = later(url, patch)
            with pytest.raises(StoreError) as refused:
                async with connect_async(url):
                    pass
        assert refused.value.got == before == number - 1
        assert "locktender db migrate" in refused.value.hint
        assert (await place.status()).schema == before
        async with connect_async(url) as older:
            assert await (await older.submit(build, n=2)).result(timeout="60s") == await (
                await engine.submit(build, n=2)
            ).result(timeout="60s")
        with monkeypatch.context() as patch:
            later(url, patch)
            async with embedded_async(url):  # an engine migrates
                assert (await place.status()).schema == number


def test_migrate_from_nothing_and_check(tmp_path: Path) -> None:
    migrate = ["db", "migrate", "--json", "--url", "new.db"]
    said = batch(
        {
            "before": [*migrate, "--check"],
            "looked": ["db", "status", "--url", "new.db"],
            "done": migrate,
            "after": [*migrate, "--check"],
            "again": ["db", "migrate", "--url", "new.db"],
        },
        tmp_path,
    )
    assert said["before"].code == 1
    assert said["looked"].code == 2, "looking made it"
    assert said["done"].code == 0, said["done"].err
    assert said["done"].data == {"from": 0, "to": len(sqlite.MIGRATIONS)}
    assert said["after"].code == 0
    assert "up to date" in said["again"].out


async def test_migrate_makes_a_schema_and_check_says_so(postgres_url: str, tmp_path: Path) -> None:
    url = with_options(postgres_url, schema="other")
    asked = ["db", "migrate", "--json", "--url", url]
    commands = {"before": [*asked, "--check"], "done": asked, "after": [*asked, "--check"]}
    said = batch(commands, tmp_path)
    assert said["before"].code == 1
    assert said["done"].data == {"from": 0, "to": len(postgres.MIGRATIONS)}
    assert said["after"].code == 0
    last = len(postgres.MIGRATIONS)
    await execute(postgres_url, f"DELETE FROM other.migration WHERE number = {last}")
    assert locktender(*asked, "--check", cwd=tmp_path).code == 1


def test_a_newer_store_is_looked_at_and_refused(tmp_path: Path) -> None:
    locktender("db", "migrate", "--url", "new.db", cwd=tmp_path)
    db = sqlite3.connect(tmp_path / "new.db")
    with db:
        db.execute("INSERT INTO migration VALUES (99, 'future', 'x', 0)")
    db.close()
    where = ("--json", "--url", "new.db")
    said = batch(
        {
            "migrate": ["db", "migrate", *where],
            "prune": ["db", "prune", "--older-than", "1d", *where],
            "list": ["runs", "list", *where],
            "status": ["db", "status", "--url", "new.db"],
        },
        tmp_path,
    )
    status = said.pop("status")
    assert status.code == 0
    assert "newer" in status.out
    for refused in said.values():
        assert refused.code == 2
        assert refused.error["code"] == "schema_too_new"
