"""A worker that loses its lease while its process leads leaves after the commits on their way, which name it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from locktender.base.config import Settings
from locktender.client.core import Core


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
