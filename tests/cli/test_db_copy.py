"""`locktender db copy`: from any store to any other, whole or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.support.cli_harness import batch, locktender, started, until
from tests.support.db_stores import LARGE, big, build, fill, judged, numbers, store_at, waiting

from locktender import embedded_async
from locktender.base.errors import InvalidInput, StoreError
from locktender.observe.checkpoint import write_checkpoint
from locktender.store.copy_tables import TABLES
from locktender.store.copying import check_source, copy
from locktender.store.open import place_for
from locktender.store.protocol import Prune
from locktender.testing.postgres_server import connected, with_options

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late

pytest_plugins = ["locktender.testing.postgres"]

LEFT_OUT = {
    "meta", "leader", "migration", "frozen_clock", "closed", "blob", "asked_worker", "provisioner",
    "audit_state", "event_reader", "idempotency", "workers_version", "answer",
}  # fmt: skip
"""Tables that are not copied row by row: marks, cursors, and what each dialect keeps in its own way."""


async def every_kind_of_work(url: str, tmp_path: Path) -> dict[str, str]:
    """Runs that ended, one that failed with its engine, several that wait, large values, limits; their ids."""
    await fill(url, 3)
    async with embedded_async(url, max_concurrent_runs=1) as engine:
        large = await engine.submit(big, 7)
        await large.result(timeout="60s")
        await engine.limits.set_tag("tenant", limit=1, per_value=True, max_active=50)
        held = await engine.submit(waiting, str(tmp_path / "gate"), tags={"tenant": "a"})
        while await held.status() != "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        queued = [
            await engine.submit(build, n=4, tags={"tenant": name}, key=f"k-{name}", priority=n)
            for n, name in enumerate("bcd")
        ]
        await engine.close(grace=0)
    return {"large": large.id, "held": held.id, **{f"q{n}": run.id for n, run in enumerate(queued)}}


async def finish_there(url: str, ids: dict[str, str], tmp_path: Path) -> None:
    """An engine on the copy does what was left, after what was there, above its numbers."""
    before = await numbers(url)
    (tmp_path / "gate").touch()
    async with embedded_async(url) as engine:
        large = await engine.runs.get(ids["large"])
        assert await large.result(timeout="60s") == "7" * LARGE
        assert await (await engine.runs.get(ids["held"])).result(timeout="60s") == "there"
        for n in range(3):
            assert await (await engine.runs.get(ids[f"q{n}"])).result(timeout="60s") == 6
        new = await engine.submit(build, n=3)
        assert await new.result(timeout="60s") == 3
        limits = await engine.pools.get("db")
        assert limits.limit == 2
    after = await numbers(url)
    assert all(new > old for new, old in zip(after, before, strict=True)), (before, after)
    assert (await judged(url))[0] == []


async def test_a_file_goes_to_postgresql_and_back(tmp_path: Path, postgres_url: str) -> None:
    source, back = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    ids = await every_kind_of_work(source, tmp_path)
    said = locktender("db", "copy", source, postgres_url, "--json", cwd=tmp_path)
    assert said.code == 0, said.err
    assert said.data["rows"]["run"] == 8
    assert said.data["rows"]["blob"] == 1
    assert said.data["violations"] == 0
    again = locktender("db", "copy", postgres_url, back, cwd=tmp_path)
    assert again.code == 0, again.err
    assert "all kept" in again.out
    for each in (source, postgres_url, back):
        store = store_at(each)
        await store.open()
        snapshot = await store.load()
        queue = [entry.run.id for entry in await store.queue(10)]
        counts = await store.counts()
        assert counts.admitted[""] - counts.closed[""] == counts.active[""] == 4
        assert len(queue) + len(snapshot.runs) == 4
        await store.close()
    await finish_there(postgres_url, ids, tmp_path)
    (tmp_path / "gate").unlink()
    await finish_there(back, ids, tmp_path)


async def test_a_pruned_history_is_still_right_in_a_copy(tmp_path: Path) -> None:
    source, target = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    await fill(source, 4)
    pruned = locktender(
        "db", "prune", "--older-than", "0s", "--keep", "1", "--url", source, cwd=tmp_path
    )
    assert pruned.code == 0, pruned.err
    assert locktender("db", "copy", source, target, cwd=tmp_path).code == 0
    violations, marks = await judged(target)
    assert (violations, marks.runs) == ([], 3)
    await fill(target, 2)
    assert (await numbers(target))[0] == 6


async def test_numbers_a_young_server_would_give_again_are_given_anew(
    tmp_path: Path, postgres_url: str
) -> None:
    """As for a file that came from a server with a long life."""
    source = tmp_path / "a.db"
    ids = await every_kind_of_work(str(source), tmp_path)
    store = store_at(str(source))
    await store.open()
    checkpoint = await write_checkpoint(store, "ops")
    pruned = await store.prune(Prune(await store.now(), checkpoint.seq, "ops", below=3))
    assert pruned.runs == 2
    await store.close()
    shift = 1 << 55
    db = sqlite3.connect(source)
    with db:
        db.execute("UPDATE event SET seq = -seq")
        db.execute(f"UPDATE event SET seq = {shift} - seq")
        db.execute(
            "UPDATE event SET body = CAST(replace(replace(CAST(body AS TEXT),"
            f" '\"seq\":{checkpoint.seq},', '\"seq\":{shift + checkpoint.seq},'),"
            f" '\"checked\":{checkpoint.seq},', '\"checked\":{shift + checkpoint.seq},') AS BLOB)"
            " WHERE run = -1"
        )
        db.execute(f"UPDATE sqlite_sequence SET seq = seq + {shift} WHERE name = 'event'")
    db.close()
    said = locktender("db", "copy", str(source), postgres_url, "--json", cwd=tmp_path)
    assert said.code == 0, said.err
    assert said.data["renumbered"]
    violations, marks = await judged(postgres_url)
    assert violations == []
    assert marks.runs == 2
    assert 0 < marks.checked < said.data["rows"]["event"]
    await finish_there(postgres_url, ids, tmp_path)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_copy_that_was_cut_short_is_refused_and_starts_over(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    source = str(tmp_path / "a.db")
    target = str(tmp_path / "b.db") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    ids = await every_kind_of_work(source, tmp_path)

    def cut(table: str, _done: int) -> None:
        if table == "event":
            raise ConnectionError("the cable")

    with pytest.raises((ConnectionError, StoreError)):
        await copy(place_for(source), place_for(target), cut)
    status = await place_for(target).status()
    assert status.copying
    with pytest.raises(StoreError, match="not finished"):
        await store_at(target).open()
    where = ("--json", "--url", target)
    said = batch(
        {
            "list": ["runs", "list", *where],
            "migrate": ["db", "migrate", *where],
            "prune": ["db", "prune", "--older-than", "1d", *where],
            "status": ["db", "status", "--url", target],
        },
        tmp_path,
    )
    assert "not finished" in said.pop("status").out
    for refused in said.values():
        assert refused.code == 2, refused.out
        assert "db copy" in refused.error["hint"]
    with pytest.raises(StoreError, match="not finished"):
        await check_source(place_for(target), force=True)
    assert locktender("db", "copy", source, target, cwd=tmp_path).code == 0
    await finish_there(target, ids, tmp_path)


@pytest.mark.parametrize("pooled", ["false", "true"])
async def test_a_schema_that_is_copied_into_is_refused(
    tmp_path: Path, postgres_url: str, pooled: str
) -> None:
    """Also behind a pooler, where a connection belongs to nobody."""
    source = str(tmp_path / "a.db")
    await fill(source, 2)
    target = with_options(postgres_url, pooled=pooled, listen="off")
    refused: list[str] = []

    def second(table: str, _done: int) -> None:
        if table == "event":
            said = locktender("db", "copy", source, target, "--json", cwd=tmp_path)
            refused.append(said.error["message"])

    await copy(place_for(source), place_for(target), second)
    assert refused
    assert all("another copy into" in message for message in refused), refused
    assert (await judged(target))[0] == []
    assert sum((await place_for(target).status()).runs.values()) == 2


async def test_a_store_is_not_copied_onto_itself(tmp_path: Path, postgres_url: str) -> None:
    await fill(str(tmp_path / "a.db"), 1)
    (tmp_path / "b.db").symlink_to("a.db")
    for source, target in (("a.db", "./a.db"), ("a.db", "b.db"), (postgres_url, postgres_url)):
        refused = locktender("db", "copy", source, target, "--json", cwd=tmp_path)
        assert refused.code == 2
        assert "the same store" in refused.error["message"]


async def test_a_target_that_is_used_is_refused_and_left_alone(
    tmp_path: Path, postgres_url: str
) -> None:
    source, used = str(tmp_path / "a.db"), str(tmp_path / "b.db")
    await fill(source, 1)
    for target in (used, postgres_url):
        await fill(target, 2)
        refused = locktender("db", "copy", source, target, "--json", cwd=tmp_path)
        assert refused.code == 2
        assert "not empty" in refused.error["message"]
        assert (await judged(target))[0] == []
    other = with_options(postgres_url, schema="second")
    assert locktender("db", "copy", source, other, cwd=tmp_path).code == 0
    assert (await judged(other))[0] == []
    assert locktender("db", "copy", "none.db", other, cwd=tmp_path).code == 2


async def test_a_store_that_is_worked_on_is_copied_only_by_force(tmp_path: Path) -> None:
    source = str(tmp_path / "a.db")
    async with embedded_async(source) as engine:
        await (await engine.submit(build)).result(timeout="60s")
        asked = ("db", "copy", source, str(tmp_path / "b.db"))
        refused = await asyncio.to_thread(locktender, *asked, "--json", cwd=tmp_path)
        assert refused.code == 2
        assert "leads" in refused.error["message"]
        assert "--force" in refused.error["hint"]
        with pytest.raises(InvalidInput):
            await check_source(place_for(source), force=False)
        forced = await asyncio.to_thread(locktender, *asked, "--force", cwd=tmp_path)
        assert forced.code == 0, forced.err
        await (await engine.submit(build)).result(timeout="60s")
    assert (await judged(str(tmp_path / "b.db")))[0] == []
    await fill(str(tmp_path / "b.db"), 1)


async def test_every_table_and_column_is_copied(tmp_path: Path, postgres_url: str) -> None:
    """A table or column that is added must be added to the copy."""
    locktender("db", "migrate", "--url", "a.db", cwd=tmp_path)
    db = sqlite3.connect(tmp_path / "a.db")
    names = {
        row[0]
        for row in db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
    }
    assert names - LEFT_OUT == set(TABLES)
    for table in TABLES:
        columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        assert columns == set(TABLES[table].columns), table
    db.close()
    async with connected(postgres_url) as conn:
        rows = await conn.fetch(
            "SELECT table_name, column_name FROM information_schema.columns"
            " WHERE table_schema = 'locktender'"
        )
    assert {table for table, _ in rows} - LEFT_OUT == set(TABLES)
    own = {("lane", "digest"), ("counter", "closed")}
    for table in TABLES:
        columns = {(table, column) for name, column in rows if name == table}
        assert columns ^ {(table, column) for column in TABLES[table].columns} <= own, table


async def test_a_copy_of_a_killed_engines_file(tmp_path: Path) -> None:
    """What its worker had in hand is taken up on the copy."""
    (tmp_path / "flows.py").write_text(
        "import asyncio\nfrom pathlib import Path\nfrom locktender import flow, step\n\n\n"
        "@step\nasync def once(here: str, gate: str) -> int:\n"
        "    with Path(here).open('a') as file:\n        file.write('x')\n"
        "    while not Path(gate).exists():\n        await asyncio.sleep(0.01)\n    return 1\n\n\n"
        "@flow\ndef one(here: str, gate: str):\n    return once(here, gate)\n"
    )
    here, gate = tmp_path / "here", tmp_path / "gate"
    arguments = ("--arg", f"here={here}", "--arg", f"gate={gate}", "--url", "a.db")
    with started("run", "flows.py:one", *arguments, cwd=tmp_path):
        until(lambda: here.exists() and here.read_text() == "x", "the body")
    [run] = locktender("runs", "list", "--json", "--url", "a.db", cwd=tmp_path).data
    assert run["state"] == "running"
    said = locktender("db", "copy", "a.db", "b.db", cwd=tmp_path)
    assert said.code == 0, said.err
    gate.touch()
    with started("dev", "flows.py", "--url", "b.db", cwd=tmp_path):
        until(lambda: _states(tmp_path) == {"succeeded"}, "the copied run")
    assert here.read_text() == "xx"


def _states(folder: Path) -> set[str]:
    found = locktender("runs", "list", "--json", "--url", "b.db", cwd=folder).data
    return {each["state"] for each in found}
