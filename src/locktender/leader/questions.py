"""Questions about what is open, answered by the leader's own scheduler when it has decided (`observe/live.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from locktender.base.background import BackgroundTasks
from locktender.base.errors import LocktenderError
from locktender.base.model import StoredRequest
from locktender.base.names import Declared
from locktender.kernel.scheduler import Scheduler
from locktender.observe import live
from locktender.observe.live import Question
from locktender.observe.pool_use import pool_use
from locktender.observe.why_executing import answer_for
from locktender.store.protocol import Answer, Store

log: logging.Logger = logging.getLogger(__name__)
Asked = tuple[Question[Any], asyncio.Future[Any]]


class Questions:
    """Of one term. A question is answered after the first cycle that read the store when it had been asked."""

    def __init__(self, store: Store, labels: Declared | None, wake: Callable[[], None]) -> None:
        self._store = store
        self._labels = labels
        self._wake = wake
        self._background = BackgroundTasks()
        self._stored: set[int] = set()
        """Questions of other processes that were read."""
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

    def put(self, stored: StoredRequest) -> bool:
        """A request that was read; True: it is a question, and answered after this cycle."""
        request, scheduler = stored.request, self._scheduler
        if request is None or request.kind != "why" or scheduler is None:
            return False
        if stored.seq not in self._stored:
            self._stored.add(stored.seq)
            answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            self._reading.append((self._question(request.subject), answer))
            written = self._write(scheduler.term, stored.seq, request.reason, answer)
            self._background.start(written, "answer a question")
        return True

    def _question(self, subject: str) -> Question[bytes]:
        if subject == live.POOLS:
            return lambda scheduler, _: msgspec.json.encode(pool_use(scheduler))
        return answer_for(subject, self._labels)

    async def _write(
        self, term: int, seq: int, question: str, answer: asyncio.Future[bytes | None]
    ) -> None:
        body = await answer or b""
        try:
            await self._store.answer(Answer(term, seq, question, body))
        except LocktenderError as error:
            log.warning("failed to write the answer to a question: %s", error)

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
            except Exception:
                # The asker gets its answer from rows; the leader continues.
                log.exception("failed to answer a question of `why` or of a list")
                answer.set_result(None)

    async def end(self) -> None:
        """The term is over: askers get their answers from rows."""
        self._scheduler = None
        live.led(self._store)
        for _, answer in self._asked + self._reading:
            if not answer.done():
                answer.set_result(None)
        self._asked, self._reading = [], []
        await self._background.end()
