"""Timelines of large runs that have ended: one drawing for all clients that ask."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.server_harness import until

from locktender.client.core import Core
from locktender.client.views import RunInfo
from locktender.observe.timeline import TimelinePart
from locktender.server.api import timelines
from locktender.server.api.timelines import MAX_BEGUN, Timelines

CORE = cast("Core", None)
LARGE = timelines.LARGE_TIMELINE


class Drawing:
    """Goes on when `done` is set; fails where `error` is one."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, _core: Core, run: str, _part: object = None) -> Any:
        self.begun.append(run)
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return SimpleNamespace(run=run, goes_on=False, tasks=LARGE)


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Drawing:
    found = Drawing()
    monkeypatch.setattr(timelines, "timeline", found)
    return found


def ended(run: str = "a") -> RunInfo:
    return cast("RunInfo", SimpleNamespace(id=run, state="succeeded", generation=0, ended_at=None))


async def test_what_a_page_began_is_not_drawn_again(drawing: Drawing):
    shared = Timelines()
    shared.begin(CORE, ended(), LARGE)
    shared.begin(CORE, ended(), LARGE)
    asked = asyncio.create_task(shared.of(CORE, ended(), TimelinePart()))
    drawing.done.set()
    assert (await asked).run == "a"
    assert (await shared.of(CORE, ended(), TimelinePart())).run == "a"
    assert drawing.begun == ["a"]


async def test_a_client_that_disconnects_cancels_no_other(drawing: Drawing):
    shared = Timelines()
    gone, stays = (asyncio.create_task(shared.of(CORE, ended(), TimelinePart())) for _ in range(2))
    await until(lambda: bool(drawing.begun), "the drawing")
    gone.cancel()
    drawing.done.set()
    assert (await stays).run == "a"
    assert drawing.begun == ["a"]


async def test_few_are_begun_ahead_and_all_asked_for_are_drawn(drawing: Drawing):
    shared = Timelines()
    for number in range(MAX_BEGUN + 3):
        shared.begin(CORE, ended(f"run {number}"), LARGE)
    asked = asyncio.create_task(shared.of(CORE, ended("last"), TimelinePart()))
    drawing.done.set()
    await asked
    assert drawing.begun == [*(f"run {number}" for number in range(MAX_BEGUN)), "last"]
    await shared.close()


async def test_a_drawing_that_failed_is_tried_again(drawing: Drawing):
    shared = Timelines()
    drawing.error = ConnectionError("away")
    drawing.done.set()
    with pytest.raises(ConnectionError):
        await shared.of(CORE, ended(), TimelinePart())
    drawing.error = None
    assert (await shared.of(CORE, ended(), TimelinePart())).run == "a"


async def test_a_server_that_closes_ends_its_drawings(drawing: Drawing):
    shared = Timelines()
    shared.begin(CORE, ended(), LARGE)
    await asyncio.sleep(0)
    await shared.close()
    assert drawing.begun == ["a"]
    drawing.done.set()
    shared.begin(CORE, ended(), LARGE)  # none is left in progress
    assert (await shared.of(CORE, ended(), TimelinePart())).run == "a"
    assert drawing.begun == ["a", "a"]
