"""One reading for all pages: a page that got an older one than the last change is told to ask again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message
from tests.support.server_harness import until

from locktender.base.errors import StoreError
from locktender.client.core import Core
from locktender.server.ui import live, reading
from locktender.server.ui.reading import SharedReadings


class History:
    """Of which only the end is read; `None`: it cannot be read."""

    def __init__(self) -> None:
        self.end: str | None = "1"
        self.reads = 0

    async def now(self) -> str:
        self.reads += 1
        if self.end is None:
            raise StoreError("away")
        return self.end

    async def moved(self, after: str) -> tuple[str, bool]:
        end = await self.now()
        return end, end != after


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    found = History()
    monkeypatch.setattr(live, "HistoryPages", lambda _core: found)
    monkeypatch.setattr(live, "READ_SECONDS", 0.001)
    monkeypatch.setattr(live, "AWAY_SECONDS", 0.001)
    monkeypatch.setattr(reading, "WORK_SECONDS", 3600.0)

    async def work(_store: object) -> Any:
        return SimpleNamespace(running=0, offered=0, gates=[])

    monkeypatch.setattr(reading, "read_work", work)
    return found


def readings() -> SharedReadings:
    async def traffic(*_: object) -> None: ...

    return SharedReadings(cast("Core", SimpleNamespace(store=SimpleNamespace(traffic=traffic))))


async def test_a_reading_from_before_a_change_is_told_stale(history: History):
    shared = readings()
    feed = shared.feed
    assert not (await shared.work())[1]  # it was read for this question
    assert (await shared.work())[1]  # nobody follows the history: it may have changed since
    feed.open()
    await until(lambda: feed.mark is not None, "the history is followed")
    assert (await shared.work())[1]
    shared.changed()
    assert not (await shared.work())[1]
    assert not (await shared.work())[1]

    history.end, before = "2", feed.number
    await until(lambda: feed.number > before, "the history is followed")
    assert (await shared.work())[1]
    shared.changed()
    assert not (await shared.work())[1]

    await feed.closed()  # changes are not noticed any more
    history.end = "3"
    feed.open()
    await until(lambda: feed.mark is not None, "the history is followed")
    assert (await shared.work())[1]
    await shared.close()


async def test_a_history_that_cannot_be_read_makes_nothing_fresh(history: History):
    history.end = None
    shared = readings()
    shared.feed.open()
    await until(lambda: history.reads > 2, "the history is followed")
    assert shared.feed.mark is None
    assert not (await shared.work())[1]
    assert (await shared.work())[1]
    history.end = "1"
    await until(lambda: shared.feed.mark is not None, "the history is followed")
    shared.changed()
    assert not (await shared.work())[1]
    await shared.close()


async def test_a_stream_is_ready_when_the_history_is_followed(
    history: History, monkeypatch: pytest.MonkeyPatch
):
    """A change between the two would refresh no page."""
    monkeypatch.setattr(live, "QUIET_SECONDS", 0.001)
    history.end = None
    feed = readings().feed
    said: list[str] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        said.append(message.get("body", b"").decode())

    stream = asyncio.create_task(live.LiveStream(feed)({}, receive, send))
    await until(lambda: ": quiet\n\n" in said, "the stream")
    assert not any("ready" in each for each in said)
    feed.number = 7
    history.end = "1"
    await until(lambda: "retry: 2000\nevent: ready\ndata: 7\n\n" in said, "the stream is ready")
    history.end = "2"
    await until(lambda: "event: changed\ndata: 8\n\n" in said, "the change")
    await feed.close()
    await stream
