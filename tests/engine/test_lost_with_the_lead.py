"""A worker that loses its lease while its process leads leaves after the commits on their way, which name it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from locktender.base.config import Settings
from locktender.client.core import Core
from locktender.store.lease_thread import LeaseThread
from locktender.worker.executors.workdirs import WorkRoot


class LastTerm:
    """The leader in this process, whose commits are on their way."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: []


async def test_it_leaves_when_the_term_is_over(tmp_path: Path):
    settings = Settings(url=str(tmp_path / "locktender.db"), work_dir=str(tmp_path / "work"))
    core = await Core.open(settings, engine=True, lead=False, work=True)
    assert core.engine is not None
    membership = core.engine.membership
    assert membership is not None
    old, leader = membership.worker.id, LastTerm()
    membership.led_by(leader)
    membership.lease_lost("it could not be renewed in time")
    assert leader.closed
    for _ in range(200):  # round trips enough to leave and join again
        assert [row.id for row in await core.store.workers()] == [old]
    membership.led_by(None)
    async with asyncio.timeout(60):
        while membership.lost.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    [row] = await core.store.workers()
    assert row.id == membership.worker.id != old
    await core.close()


async def test_it_is_closed_once_if_it_ends_while_joining_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = Settings(url=str(tmp_path / "locktender.db"), work_dir=str(tmp_path / "work"))
    core = await Core.open(settings, engine=True, lead=False, work=True)
    assert core.engine is not None
    membership = core.engine.membership
    assert membership is not None
    joins = asyncio.Event()

    async def add(*_: object, **__: object) -> None:
        joins.set()
        await asyncio.Event().wait()  # a busy machine: it has not joined yet

    monkeypatch.setattr(LeaseThread, "add", add)
    membership.lease_lost("it could not be renewed in time")
    async with asyncio.timeout(60):
        await joins.wait()
        await core.close()
    assert list((tmp_path / "work").iterdir()) == []


def test_what_is_closed_twice_closes_nothing_of_others(tmp_path: Path):
    root = WorkRoot(tmp_path)
    root.close()
    other = os.dup2(
        os.open(tmp_path, os.O_RDONLY), root.lock_fd
    )  # the number is free, and given again
    root.close()
    os.fstat(other)
    os.close(other)
