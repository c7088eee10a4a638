"""Questions about what is open, answered by the leader's own scheduler when it has decided (`observe/live.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from locktender.kernel.scheduler import Scheduler
from locktender.observe import live
from locktender.observe.live import Question
from locktender.store.protocol import Store

log: logging.Logger = logging.getLogger(__name__)
Asked = tuple[Question[Any], asyncio.Future[Any]]


class Questions:
    """Of one term. A question is answered after the first cycle that read the store when it had been asked."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store = store
        self._wake = wake
        self._scheduler: Scheduler | None = None
        self._asked: list[Asked] = []
        self._reading: list[Asked] = []

    @property
    def open_tasks(self) -> int:
        return 0 if self._scheduler is None else len(self._scheduler.lifecycle.tasks)

    def ask(self, question: Question[Any]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append((question, answer))
        self._wake()
        return answer

    def begin(self, scheduler: Scheduler) -> None:
        """A term has begun."""
        self._scheduler = scheduler
        live.leads(self._store, self)

    def reading(self) -> None:
        """The store is read now: those who have asked so far are answered after this cycle."""
        self._reading += self._asked
        self._asked = []

    def answer(self, scheduler: Scheduler, now: int) -> None:
        """What was read has been decided."""
        several, self._reading = self._reading, []
        for question, answer in several:
            if answer.done():
                continue
            try:
                answer.set_result(question(scheduler, now))
            except Exception as error:
                # Whoever asked is told from rows; the leader goes on.
                log.exception("failed to answer a question about what is open")
                answer.set_exception(error)

    def end(self) -> None:
        """The term is over: whoever asked is told from rows."""
        self._scheduler = None
        live.led(self._store)
        for _, answer in self._asked + self._reading:
            if not answer.done():
                answer.set_result(None)
        self._asked, self._reading = [], []
