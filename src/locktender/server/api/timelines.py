"""Timelines of large runs that have ended: each is drawn once, for all clients that ask, and kept for a while.

The page of a run begins the drawing before its script asks: a browser takes a while to start the script, and
the server draws meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from datetime import datetime
from functools import partial

from locktender.base.background import end_tasks
from locktender.base.states import TERMINAL_RUNS
from locktender.client.core import Core
from locktender.client.run_details import timeline
from locktender.client.views import RunInfo
from locktender.observe.timeline import Timeline, TimelinePart

log: logging.Logger = logging.getLogger(__name__)
LARGE_TIMELINE, TIMELINES_KEPT = 2_000, 16
"""Tasks of a run whose timeline is kept, and how many are: some 10 kB each."""
MAX_DRAWN = 4
"""At once: a client that has gone does not stop its drawing, and each reads the whole history of a run."""
MAX_BEGUN = 2
"""Drawings in progress beyond which none is begun ahead."""

Key = tuple[str, int, datetime | None, TimelinePart]
"""A run that is run again has another generation and another end."""


class Timelines:
    """One per server."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Timeline] = OrderedDict()
        self._drawing: dict[Key, asyncio.Task[Timeline]] = {}
        self._room = asyncio.Semaphore(MAX_DRAWN)

    async def of(self, core: Core, info: RunInfo, part: TimelinePart) -> Timeline:
        if info.state not in TERMINAL_RUNS:
            return await timeline(core, info.id, part)
        key = _key(info, part)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        task = self._drawing.get(key) or self._draw(core, key)
        # A client that disconnects does not cancel what others wait for.
        return await asyncio.shield(task)

    def begin(self, core: Core, info: RunInfo, tasks: int) -> None:
        """The script of a page will ask for it. Only where it takes long, and never changes."""
        key = _key(info, TimelinePart())
        if (
            info.state in TERMINAL_RUNS
            and tasks >= LARGE_TIMELINE
            and len(self._drawing) < MAX_BEGUN
            and key not in self._kept
            and key not in self._drawing
        ):
            self._draw(core, key)

    async def close(self) -> None:
        await end_tasks(list(self._drawing.values()))

    def _draw(self, core: Core, key: Key) -> asyncio.Task[Timeline]:
        task = asyncio.create_task(self._in_turn(core, key), name="locktender-timeline")
        self._drawing[key] = task
        task.add_done_callback(partial(self._drawn, key))
        return task

    async def _in_turn(self, core: Core, key: Key) -> Timeline:
        async with self._room:
            return await timeline(core, key[0], key[3])

    def _drawn(self, key: Key, task: asyncio.Task[Timeline]) -> None:
        self._drawing.pop(key, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.debug("failed to draw the timeline of run %s: %s", key[0], error)
            return
        drawn = task.result()
        if not drawn.goes_on and drawn.tasks >= LARGE_TIMELINE:
            self._kept[key] = drawn
            while len(self._kept) > TIMELINES_KEPT:
                self._kept.popitem(last=False)


def _key(info: RunInfo, part: TimelinePart) -> Key:
    return info.id, info.generation, info.ended_at, part
