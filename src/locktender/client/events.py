"""Namespace `client.events`: events that are sent to topics, and who waits for which."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any

from locktender.base import names
from locktender.base.events import Event, unpack
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge, documented_as
from locktender.client.core import Core
from locktender.client.history import EventReaderInfo, Follower, HistoryEvent, checked_reader
from locktender.client.mailing import EventWaitInfo, answer, send_to_topic, waits_of
from locktender.client.views import instant
from locktender.store.protocol import EventFilter


@public
class AsyncEvents:
    """Namespace `client.events`: sends events to topics, lists who waits for which, follows the history."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        match: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> bool:
        """Sends an event to all runs that wait for it: `wait_event(topic)`. Each takes it once.

        topic    the name that flows wait for
        payload  any JSON value up to 256 kB; default None
        match    only waits whose own `match` agrees in each of these values; default None: all
        id       a second event of the same topic and id changes nothing; default one of its own

        It also reaches runs that were submitted before it and begin to wait within `topic_retention` (7 days).
        Returns whether it is new. To one run: `run.send`.
        """
        self._core.guard.check()
        return await send_to_topic(self._core, topic, payload, match, id)

    async def answer(self, token: str, payload: Any = None) -> bool:
        """Answers one wait by its token, as `run.waits()` shows it: a link in an e-mail can carry it.

        Returns whether it is the first answer. Raises `InvalidInput` if the token is not genuine, or its
        wait is over.
        """
        self._core.guard.check()
        return await answer(self._core, token, payload)

    async def follow(
        self,
        run: str | None = None,
        *,
        after: str | None = None,
        reader: str | None = None,
        wait: bool = True,
        skip_pruned: bool = False,
    ) -> AsyncGenerator[HistoryEvent]:
        """Every change of state, in order, once; with `wait` (default) it goes on with what happens.

        run          only of this run, until it has ended: its whole id
        after        the `cursor` of an event: goes on behind it; "start" or "now". Default: the beginning
                     of a run, else now
        reader       a name under which the cursor is stored: the next call goes on where this one ended.
                     A new reader begins at the start; what it took shortly before it was killed comes again
        wait         False: ends with what there is now
        skip_pruned  True: goes on where retention has removed events behind the cursor; default False:
                     raises `EventsPruned`

            async for event in client.events.follow(reader="billing"):
                await book(event)
        """
        self._core.guard.check()
        follower = Follower(self._core, run, checked_reader(reader))
        async for event in follower.follow(after, wait=wait, skip_pruned=skip_pruned):
            yield event

    async def latest(self, limit: int = 100) -> list[Event]:
        """The last changes of state of all runs, in order. `limit`: 1 to 100,000; default 100."""
        self._core.guard.check()
        most = names.count(limit, "limit", maximum=100_000)
        # A row holds at least one, so that as many rows are enough.
        rows = await self._core.store.events(EventFilter(limit=most, newest=True))
        return [event for row in rows for event in unpack(row)][-most:]

    async def readers(self) -> list[EventReaderInfo]:
        """The named readers of the history, each with the cursor behind which it goes on."""
        self._core.guard.check()
        found = await self._core.store.event_readers()
        return [EventReaderInfo(each.name, each.cursor, instant(each.at)) for each in found]

    async def forget_reader(self, name: str) -> bool:
        """Removes the stored cursor of a reader; whether there was one."""
        self._core.guard.check()
        return await self._core.store.forget_event_reader(name)

    async def waiting(self, *, limit: int = 10_000) -> list[EventWaitInfo]:
        """Who waits for which event, since when and until when; the first that times out first."""
        self._core.guard.check()
        return await waits_of(self._core, limit)


@public
class SyncEvents:
    """Namespace `client.events`: sends events to topics, lists who waits for which, follows the history."""

    def __init__(self, bridge: Bridge, events: AsyncEvents) -> None:
        self._bridge = bridge
        self._events = events

    def send(
        self,
        topic: str,
        payload: Any = None,
        *,
        match: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> bool:
        """Sends an event to all runs that wait for it: `wait_event(topic)`. Each takes it once.

        topic    the name that flows wait for
        payload  any JSON value up to 256 kB; default None
        match    only waits whose own `match` agrees in each of these values; default None: all
        id       a second event of the same topic and id changes nothing; default one of its own

        It also reaches runs that were submitted before it and begin to wait within `topic_retention` (7 days).
        Returns whether it is new. To one run: `run.send`.
        """
        return self._bridge.call(self._events.send(topic, payload, match=match, id=id))

    def answer(self, token: str, payload: Any = None) -> bool:
        """Answers one wait by its token, as `run.waits()` shows it: a link in an e-mail can carry it.

        Returns whether it is the first answer. Raises `InvalidInput` if the token is not genuine, or its
        wait is over.
        """
        return self._bridge.call(self._events.answer(token, payload))

    def follow(
        self,
        run: str | None = None,
        *,
        after: str | None = None,
        reader: str | None = None,
        wait: bool = True,
        skip_pruned: bool = False,
    ) -> Generator[HistoryEvent]:
        """Every change of state, in order, once; with `wait` (default) it goes on with what happens.

        run          only of this run, until it has ended: its whole id
        after        the `cursor` of an event: goes on behind it; "start" or "now". Default: the beginning
                     of a run, else now
        reader       a name under which the cursor is stored: the next call goes on where this one ended.
                     A new reader begins at the start; what it took shortly before it was killed comes again
        wait         False: ends with what there is now
        skip_pruned  True: goes on where retention has removed events behind the cursor; default False:
                     raises `EventsPruned`

            for event in client.events.follow(reader="billing"):
                book(event)
        """
        return self._bridge.iterate(
            self._events.follow(run, after=after, reader=reader, wait=wait, skip_pruned=skip_pruned)
        )

    @documented_as(AsyncEvents.latest)
    def latest(self, limit: int = 100) -> list[Event]:
        return self._bridge.call(self._events.latest(limit))

    def readers(self) -> list[EventReaderInfo]:
        """The named readers of the history, each with the cursor behind which it goes on."""
        return self._bridge.call(self._events.readers())

    def forget_reader(self, name: str) -> bool:
        """Removes the stored cursor of a reader; whether there was one."""
        return self._bridge.call(self._events.forget_reader(name))

    def waiting(self, *, limit: int = 10_000) -> list[EventWaitInfo]:
        """Who waits for which event, since when and until when; the first that times out first."""
        return self._bridge.call(self._events.waiting(limit=limit))
