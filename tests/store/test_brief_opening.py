"""A store that is opened for one command: what it opens, and what it does not miss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from locktender.base.clock import SECOND
from locktender.base.errors import NotFound, SchemaTooNew, StoreBusy, StoreError
from locktender.base.model import Request
from locktender.observe.why import explain_run
from locktender.store.postgres import PostgresStore
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import RunFilter
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.conformance.world import submitted
from locktender.testing.postgres_server import connected, with_options

pytest_plugins = ["locktender.testing.postgres"]


async def connections(url: str) -> int:
    """Of locktender, to this database."""
    async with connected(url) as conn:
        return await conn.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'locktender'"
        )


async def test_one_connection_reads_and_writes(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open(migrates=False, creates=False, brief=True)
    run = await submitted(store)
    assert await store.run(run.id) is not None
    assert await store.leader() is None
    assert await connections(postgres_url) == 1
    await store.close()
    usual = PostgresStore(postgres_url)
    await usual.open()
    assert await connections(postgres_url) > 1, "another client listens, too"
    await usual.close()


async def test_what_a_command_reads_needs_no_question_for_types(postgres_url: str) -> None:
    """asyncpg asks the server for each type it does not know, which takes longer than all that is read here."""
    submitter = PostgresStore(postgres_url)
    await submitter.open()
    run = await submitted(submitter)
    await submitter.close()
    store = PostgresStore(postgres_url)
    asked: list[str] = []
    await store.open(migrates=False, creates=False, brief=True)

    async def follow(tx: PostgresSession) -> None:
        tx.conn.add_query_logger(lambda record: asked.append(record.query))

    async def rows_of_rows(tx: PostgresSession) -> None:
        await tx.fetch("SELECT ARRAY(SELECT ROW(1))")

    query = store._query  # pyright: ignore[reportPrivateUsage]
    await query(follow)
    await store.runs(RunFilter(limit=10))
    await explain_run(store, run.id)
    await store.held_up()
    await store.load()
    await store.ask([Request("why", run.id, reason="a question")])
    await store.answer_to("a question")
    assert len(asked) > 10
    assert [query for query in asked if "typeinfo" in query] == []
    await query(rows_of_rows)
    assert [query for query in asked if "typeinfo" in query], "nor did the opening ask"
    await store.close()


async def test_who_begins_to_wait_late_is_told_of_what_comes(postgres_url: str) -> None:
    brief, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    await brief.open(brief=True)
    await other.open()
    mark = await brief.wait(0, since=-1)
    # It listens from the first wait on: what was committed until then counts as news.
    seen, mark = mark, await brief.wait(60 * SECOND, since=mark)
    assert mark > seen
    assert brief.listens
    await submitted(other)
    assert await brief.wait(60 * SECOND, since=mark) > mark
    await brief.close()
    await other.close()


async def test_a_schema_that_is_not_there_is_not_made(postgres_url: str) -> None:
    store = PostgresStore(with_options(postgres_url, schema="none_yet"))
    with pytest.raises(NotFound, match=r"there is no store at .* schema none_yet yet"):
        await store.open(migrates=False, creates=False, brief=True)
    async with connected(postgres_url) as conn:
        assert await conn.fetchval("SELECT to_regnamespace('none_yet') IS NULL")


async def test_a_schema_of_a_newer_locktender_is_refused(postgres_url: str) -> None:
    async with connected(postgres_url) as conn:
        await conn.execute(
            "INSERT INTO locktender.migration (number, name, checksum, applied_at)"
            " VALUES (999, 'later', '', 0)"
        )
    with pytest.raises(SchemaTooNew):
        await PostgresStore(postgres_url).open(migrates=False, creates=False, brief=True)


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    with pytest.raises(NotFound, match="there is no store at"):
        await SqliteStore(path).open(migrates=False, creates=False, brief=True)
    assert not path.exists()


async def test_a_file_is_read_while_another_process_writes(tmp_path: Path) -> None:
    """A reader stands in no line for the write lock."""
    path = tmp_path / "locktender.db"
    made = SqliteStore(path)
    await made.open()
    run = await submitted(made)
    lock = made._opened.write_lock  # pyright: ignore[reportPrivateUsage]
    lock.enter()
    try:
        reader = SqliteStore(path, busy_timeout_us=1)
        await reader.open(migrates=False, creates=False, brief=True)
        assert await reader.run(run.id) is not None
        await reader.close()
    finally:
        lock.leave()
    writer = SqliteStore(path)
    await writer.open(migrates=False, brief=True)
    assert (await submitted(writer)).id != run.id
    await writer.close()
    await made.close()


async def test_a_first_write_that_found_the_file_busy_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    made = SqliteStore(path)
    await made.open()
    lock = made._opened.write_lock  # pyright: ignore[reportPrivateUsage]
    store = SqliteStore(path, busy_timeout_us=1)
    await store.open(migrates=False, creates=False, brief=True)
    lock.enter()
    try:
        for _ in range(2):
            with pytest.raises(StoreBusy):
                await submitted(store)
    finally:
        lock.leave()
    assert await submitted(store)
    await store.close()
    await made.close()


async def test_a_store_is_closed_while_its_first_write_waits(tmp_path: Path) -> None:
    path = tmp_path / "locktender.db"
    made = SqliteStore(path)
    await made.open()
    lock = made._opened.write_lock  # pyright: ignore[reportPrivateUsage]
    store = SqliteStore(path, busy_timeout_us=SECOND // 10)
    await store.open(migrates=False, creates=False, brief=True)
    lock.enter()
    try:
        write = asyncio.create_task(submitted(store))
        await asyncio.sleep(0)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        # The thread that waits for the lock ends when it has waited for long enough.
        async with asyncio.timeout(60):
            await store.close()
    finally:
        lock.leave()
    with pytest.raises(StoreError, match="not open"):
        await submitted(store)
    await made.close()


async def test_a_missing_file_is_made_for_a_command_that_writes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open(migrates=False, brief=True)
    run = await submitted(store)
    assert await store.run(run.id) is not None
    await store.close()
