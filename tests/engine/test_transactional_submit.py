"""Runs submitted inside a transaction of the application: they exist if, and only if, it commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import msgspec
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.support.django_site import configured, use_database

from locktender import (
    AdmissionRejected,
    AsyncClient,
    DuplicateKey,
    InvalidInput,
    NotFound,
    RunState,
    connect,
    connect_async,
    embedded,
    embedded_async,
    flow,
    step,
)
from locktender.leader import outbox
from locktender.observe.checker import check
from locktender.store.copying import copy
from locktender.store.open import place_for
from locktender.testing import eventually, load_history
from locktender.testing.postgres_server import connected, with_options

pytest_plugins = ["locktender.testing.postgres"]
SECONDS = 60


@step
async def double(n: int) -> int:
    return 2 * n


@flow(name="outbox doubled")
def doubled(n: int) -> int:
    return double(n)


@pytest.fixture
async def client(postgres_url: str, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with embedded_async(postgres_url, work_dir=str(tmp_path)) as made:
        yield made
    assert check(await asyncio.to_thread(load_history, postgres_url)) == []


async def rows(url: str, table: str = "outbox") -> int:
    async with connected(url) as raw:
        return await raw.fetchval(f"SELECT count(*) FROM locktender.{table}")


async def test_i4_a_commit_makes_the_run_and_a_rollback_none(
    client: AsyncClient, postgres_url: str
):
    async with connected(postgres_url) as raw:
        await raw.execute("CREATE TABLE item (n integer)")
        async with raw.transaction():
            await raw.execute("INSERT INTO item VALUES (21)")
            run = await client.submit(doubled, 21, connection=raw)
            assert run.submitted == "submitted"
            # Nothing of it can be seen from outside yet.
            with pytest.raises(NotFound):
                await run.status()
        assert await run.result(SECONDS) == 42
        rolled_back = raw.transaction()
        await rolled_back.start()
        gone = await client.submit(doubled, 1, connection=raw)
        await rolled_back.rollback()
    with pytest.raises(NotFound):
        await gone.status()
    assert await rows(postgres_url) == 0
    assert await rows(postgres_url, "run") == 1


async def test_without_a_notification_the_leader_looks_by_itself(
    client: AsyncClient, postgres_url: str
):
    async with connected(postgres_url) as raw:
        run = await client.submit(doubled, 2, connection=raw, notify=False)
        assert await run.result(SECONDS) == 4


async def test_two_callers_do_not_wait_for_each_other(client: AsyncClient, postgres_url: str):
    async with connected(postgres_url) as one, connected(postgres_url) as other:
        await one.execute("SET lock_timeout = '20s'")
        async with other.transaction():
            open_one = await client.submit(doubled, 1, connection=other, key="k")
            # Same key, same flow, same graph: the first caller's transaction is still open.
            closed_one = await client.submit(doubled, 1, connection=one, key="k")
            assert await closed_one.result(SECONDS) == 2
        assert await open_one.result(SECONDS) == 2


async def test_a_refused_one_is_rejected_with_its_reason(client: AsyncClient, postgres_url: str):
    await client.limits.pause()
    await client.limits.set_max_active(1)
    await client.submit(doubled, 0)
    async with connected(postgres_url) as raw:
        run = await client.submit(doubled, 1, connection=raw)
        with pytest.raises(AdmissionRejected) as refused:
            await run.result(SECONDS)
        assert refused.value.field == "max_active"
        assert await run.status() == RunState.REJECTED
        assert "ceiling max_active" in str((await run.info()).error)
        assert "ceiling max_active" in (await run.why()).note
        listed = await client.runs.list("rejected", flow="outbox doubled")
        assert [(each.id, each.state) for each in listed] == [(run.id, RunState.REJECTED)]
        assert await client.runs.list(["rejected", "failed"], tags={"tenant": "other"}) == []
        assert run.id not in [each.id for each in await client.runs.list()]
        await client.limits.set_max_active(10)
        await client.limits.resume()
        other = await client.submit(doubled, 1, connection=raw)
        assert await other.result(SECONDS) == 2


async def test_a_key_attaches_or_refuses(client: AsyncClient, postgres_url: str):
    await client.limits.pause()
    first = await client.submit(doubled, 1, key="one")
    async with connected(postgres_url) as raw:
        same = await client.submit(doubled, 1, key="one", connection=raw)
        another = await client.submit(doubled, 2, key="one", connection=raw)
        with pytest.raises(DuplicateKey):
            await another.result(SECONDS)
    assert (await same.info()).id == first.id
    await client.limits.resume()
    assert await same.result(SECONDS) == 2


async def test_what_is_no_submission_is_named_and_stops_nothing(
    client: AsyncClient, postgres_url: str
):
    good = "0" * 25
    async with connected(postgres_url) as raw:
        call = "SELECT locktender.submit_run($1, $2)"
        await raw.execute(call, good + "1", b"nonsense")
        await raw.execute(call, good + "2", msgspec.msgpack.encode([{"id": 1}, b"{}"]))
        for wrong in ("", "../../x", "A" * 26, "a" * 27):
            with pytest.raises(asyncpg.InvalidParameterValueError, match="no id of a run"):
                await raw.execute(call, wrong, b"")
        with pytest.raises(asyncpg.InvalidParameterValueError, match="at most"):
            await raw.execute(call, good + "3", b"x" * (8 << 20 | 1))
        run = await client.submit(doubled, 3, connection=raw)
        assert await run.result(SECONDS) == 6
    for bad in ("1", "2"):
        unreadable = await client.runs.get(good + bad)
        with pytest.raises(InvalidInput, match="was refused: the submission cannot be read"):
            await unreadable.result(SECONDS)


async def test_the_same_id_twice_is_one_run(client: AsyncClient, postgres_url: str):
    async with connected(postgres_url) as raw:
        run = await client.submit(doubled, 3, connection=raw)
        assert await run.result(SECONDS) == 6
        body = await raw.fetchval("SELECT count(*) FROM locktender.run")
        assert body == 1


async def test_a_leader_that_dies_after_the_move_makes_no_second_run(
    client: AsyncClient, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The entries are read again after their answer was lost."""
    moved: list[int] = []
    original = outbox.OutboxMover.move

    async def twice(self: Any, term: int) -> bool:
        store = self._store
        entries = await store.outbox(10)
        done = await original(self, term)
        if entries:
            limits, _ = await store.limits()
            again = [await self._judge(entry, limits) for entry in entries]
            moved.append(await store.move_outbox(term, again))
        return done

    monkeypatch.setattr(outbox.OutboxMover, "move", twice)
    async with connected(postgres_url) as raw:
        run = await client.submit(doubled, 4, connection=raw)
        assert await run.result(SECONDS) == 8
    assert await rows(postgres_url, "run") == 1
    assert set(moved) <= {0}


async def test_large_arguments_are_stored_like_any(client: AsyncClient, postgres_url: str):
    @flow(name="outbox length")
    def size(text: str) -> str:
        return text

    async with connected(postgres_url) as raw:
        run = await client.submit(size, "x" * 300_000, connection=raw)
        assert await run.result(SECONDS) == "x" * 300_000


async def test_connections_that_do_not_fit_are_refused(client: AsyncClient, tmp_path: Path):
    with pytest.raises(InvalidInput, match="not a connection that is known") as unknown:
        await client.submit(doubled, 1, connection=object())
    assert unknown.value.field == "connection"
    async with embedded_async(tmp_path / "file.db") as file, connected(client.settings.url) as raw:
        with pytest.raises(InvalidInput, match="only a store on PostgreSQL"):
            await file.submit(doubled, 1, connection=raw)


def test_connections_of_plain_code(postgres_url: str, tmp_path: Path):
    with embedded(postgres_url, work_dir=str(tmp_path)) as engine:
        with psycopg.connect(postgres_url) as one, one.transaction():
            first = engine.submit(doubled, 1, connection=one)
        two = psycopg2.connect(postgres_url)
        second = engine.submit(doubled, 2, connection=two)
        two.commit()
        two.close()
        made = sqlalchemy.create_engine(_dialect(postgres_url, "psycopg"))
        with made.begin() as three:
            third = engine.submit(doubled, 3, connection=three)
        with Session(made) as session, session.begin():
            fourth = engine.submit(doubled, 4, connection=session)
        made.dispose()
        fifth = _by_django(engine, postgres_url)
        runs = (first, second, third, fourth, fifth)
        assert [run.result(SECONDS) for run in runs] == [2, 4, 6, 8, 10]


async def test_connections_of_async_code(client: AsyncClient, postgres_url: str):
    one = await psycopg.AsyncConnection.connect(postgres_url)
    async with one, one.transaction():
        first = await client.submit(doubled, 1, connection=one)
    made = create_async_engine(_dialect(postgres_url, "asyncpg"))
    async with made.begin() as two:
        second = await client.submit(doubled, 2, connection=two)
    async with AsyncSession(made) as session, session.begin():
        third = await client.submit(doubled, 3, connection=session)
    await made.dispose()
    async with (
        asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool,
        pool.acquire() as raw,
    ):
        fourth = await client.submit(doubled, 4, connection=raw)
    runs = (first, second, third, fourth)
    assert [await run.result(SECONDS) for run in runs] == [2, 4, 6, 8]
    wrong = pytest.raises(InvalidInput, match="the call is async")
    with psycopg.connect(postgres_url) as blocking, wrong:
        await client.submit(doubled, 1, connection=blocking)


def test_an_async_connection_is_refused_by_plain_code(postgres_url: str, tmp_path: Path):
    class AsyncConnection(psycopg.AsyncConnection[Any]):
        def __init__(self) -> None:
            pass

        def __del__(self) -> None:
            pass

    wrong = pytest.raises(InvalidInput, match="the connection is async")
    with embedded(postgres_url, work_dir=str(tmp_path)) as engine, wrong:
        engine.submit(doubled, 1, connection=AsyncConnection())


def test_another_schema_has_its_own(postgres_url: str, tmp_path: Path):
    with embedded(with_options(postgres_url, schema="tasks"), work_dir=str(tmp_path)) as engine:
        with psycopg.connect(postgres_url) as raw:
            run = engine.submit(doubled, 5, connection=raw)
        assert run.result(SECONDS) == 10


async def test_without_a_leader_it_stays_submitted(postgres_url: str, tmp_path: Path):
    with embedded(postgres_url, work_dir=str(tmp_path)):
        pass
    async with connect_async(postgres_url) as client, connected(postgres_url) as raw:
        run = await client.submit(doubled, 6, connection=raw)
        assert await run.status() == RunState.SUBMITTED
        assert "transaction of an application" in str(await run.why())
        assert (await run.tasks(), await run.events(), await run.logs()) == ([], [], [])
        for verb in (run.cancel, run.blame):
            with pytest.raises(InvalidInput, match="only submitted"):
                await verb()
        async with embedded_async(postgres_url, work_dir=str(tmp_path)):
            assert await run.result(SECONDS) == 12


def test_a_plain_client_asks_for_it_by_id(postgres_url: str, tmp_path: Path):
    with embedded(postgres_url, work_dir=str(tmp_path)) as engine:
        with psycopg.connect(postgres_url) as raw:
            run_id = engine.submit(doubled, 7, connection=raw).id
        with connect(postgres_url) as other:
            eventually(lambda: other.runs.get(run_id).status() == RunState.SUCCEEDED, SECONDS)


def _dialect(url: str, driver: str) -> str:
    return urlsplit(url)._replace(scheme=f"postgresql+{driver}").geturl()


def _by_django(engine: Any, url: str) -> Any:
    from django.db import connections, transaction

    configured()
    use_database(url)
    try:
        with transaction.atomic():
            return engine.submit(doubled, 5, connection=connections["default"])
    finally:
        connections.close_all()


async def test_a_copy_in_a_file_takes_them_up(postgres_url: str, tmp_path: Path):
    with embedded(postgres_url, work_dir=str(tmp_path)):
        pass
    async with connect_async(postgres_url) as client, connected(postgres_url) as raw:
        good = await client.submit(doubled, 8, connection=raw)
        refused = "0" * 26
        await raw.execute("SELECT locktender.submit_run($1, $2)", refused, b"nonsense")
    file = str(tmp_path / "copy.db")
    await copy(place_for(postgres_url), place_for(file))
    async with embedded_async(file) as client:
        assert await (await client.runs.get(good.id)).result(SECONDS) == 16
        with pytest.raises(InvalidInput, match="cannot be read"):
            await (await client.runs.get(refused)).result(SECONDS)
    assert check(await asyncio.to_thread(load_history, file)) == []
