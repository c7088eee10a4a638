"""A worker announces the flows that it knows, once each, and the schedules that they declare.

Nothing of the process waits for it: a flow that is not announced yet can be submitted with its code.
"""

from __future__ import annotations

import asyncio
import logging

from locktender.base.announced import AnnouncedFlow
from locktender.base.background import BackgroundTasks
from locktender.base.errors import LocktenderError
from locktender.flows.by_name import announcement
from locktender.flows.registry import Registry
from locktender.store.protocol import Naming, SetSchedule

log: logging.Logger = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
FLOWS_AT_ONCE = 20
"""Schemas made between two turns of the loop."""


class FlowAnnouncer:
    def __init__(self, store: Naming, known: Registry) -> None:
        self._store = store
        self._known = known
        self._seen = 0
        self._announced: dict[str, str] = {}
        """Flow → signature."""
        self._background = BackgroundTasks()

    def notice(self) -> None:
        """Flows may have been defined since the last call."""
        if len(self._known.flows) != self._seen:
            self._seen = len(self._known.flows)
            self._background.start(self._announce(), "announce flows")

    async def close(self) -> None:
        await self._background.end()

    async def _announce(self) -> None:
        news: list[AnnouncedFlow] = []
        for number, (name, flow) in enumerate(dict(self._known.flows).items(), 1):
            if self._announced.get(name) != flow.signature:
                news.append(announcement(flow))
                if not number % FLOWS_AT_ONCE:
                    await asyncio.sleep(0)
        while news:
            try:
                await self._store.announce(news)
                await self._declare(news)
            except LocktenderError as error:
                log.warning("failed to announce flows, trying again: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._announced |= {each.name: each.signature for each in news}
                return

    async def _declare(self, news: list[AnnouncedFlow]) -> None:
        """Schedules that their code declares, or declares no more. Mostly there is nothing to write."""
        names = [each.name for each in news]
        stored = {row.name: row.declared for row in await self._store.schedules(names)}
        for name in names:
            flow = self._known.flows.get(name)
            spec = None if flow is None else flow.schedule
            if spec != stored.get(name):
                await self._store.set_schedule(SetSchedule(name, "declared", "code", spec))
