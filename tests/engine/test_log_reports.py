"""Log lines of attempts are written in batches, and never delay the end of an attempt."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from locktender.base.model import LogFilter, LogRow
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.reports import LogReports


class Counted(SqliteStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.batches: list[int] = []

    async def keep_logs(self, rows: list[LogRow]) -> None:
        self.batches.append(len(rows))
        await super().keep_logs(rows)


def row(number: int) -> LogRow:
    return LogRow((1 << 20) + number, 1, 1, b"lines")


async def test_what_comes_meanwhile_goes_together(tmp_path: Path):
    store = Counted(tmp_path / "db")
    await store.open()
    keeper = LogReports(store)

    async with asyncio.timeout(60):
        await asyncio.gather(*(keeper.keep(row(number)) for number in range(250)))

    assert store.batches == [100, 100, 50]
    found = await store.logs(LogFilter(1, limit=1_000))
    assert found == [row(number) for number in range(250)]
    await store.close()


async def test_a_store_that_does_not_take_them_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    keeper = LogReports(SqliteStore(tmp_path / "never-opened"))

    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(60):
            await asyncio.gather(keeper.keep(row(1)), keeper.keep(row(2)))

    assert [each.getMessage() for each in caplog.records] == [
        "failed to store the log of 2 attempts: the store is not open. Call open() first."
    ]


async def test_whoever_is_cancelled_leaves_nobody_waiting(tmp_path: Path):
    store = SqliteStore(tmp_path / "db")
    await store.open()
    keeper = LogReports(store)
    first = asyncio.create_task(keeper.keep(row(1)))
    await asyncio.sleep(0)
    second = asyncio.create_task(keeper.keep(row(2)))
    await asyncio.sleep(0)

    first.cancel()

    async with asyncio.timeout(60):
        await keeper.keep(row(3))
        await second
    assert row(2) in await store.logs(LogFilter(1))
    await store.close()
