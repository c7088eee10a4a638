"""Namespace `client.events`: events that are sent to topics, and who waits for which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.mailing import EventWaitInfo, answer, send_to_topic, waits_of


@public
class AsyncEvents:
    """Namespace `client.events`: sends events to topics, and lists who waits for which event."""

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

    async def waiting(self, *, limit: int = 10_000) -> list[EventWaitInfo]:
        """Who waits for which event, since when and until when; the first that times out first."""
        self._core.guard.check()
        return await waits_of(self._core, limit)


@public
class SyncEvents:
    """Namespace `client.events`: sends events to topics, and lists who waits for which event."""

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

    def waiting(self, *, limit: int = 10_000) -> list[EventWaitInfo]:
        """Who waits for which event, since when and until when; the first that times out first."""
        return self._bridge.call(self._events.waiting(limit=limit))
