"""What a listener has received and the process has not taken yet: offers, ends of runs, other commits."""

from __future__ import annotations

import asyncio

from locktender.store.carried_runs import read_carried
from locktender.store.protocol import ChangeNotice, OfferNotice, RunsEnded

MAX_ENDED_RUNS = 2_000
"""Of a commit that ends more, clients are told that some have ended; so are those that took no names for long."""
MAX_QUEUED_RUNS = 200
"""Notifications name at most so many new runs to a leader; it finds more of them in the history."""


def number_of(text: str) -> int:
    found = int(text)
    if not 0 < found < 2**63:
        raise ValueError(text)
    return found


class Inbox:
    """Notifications to one worker that it has not received yet."""

    def __init__(self) -> None:
        self.offers: list[tuple[int, int]] = []
        self.look: bool = True
        self.filled: asyncio.Event = asyncio.Event()

    def put(self, told: OfferNotice) -> None:
        self.offers += told.offers
        self.look = self.look or told.look
        if told.offers or told.look:
            self.filled.set()

    def receive(self) -> OfferNotice:
        received = OfferNotice(self.offers, self.look)
        self.offers, self.look = [], False
        self.filled.clear()
        return received


class ReceivedEnds:
    """Ends of runs that the client of this process has not been given yet."""

    def __init__(self) -> None:
        self._runs: list[int] = []
        self._look = True
        self._filled = asyncio.Event()
        self._filled.set()  # the first time there may be some already

    def put(self, runs: list[int] | None) -> None:
        """`None`: there were some."""
        self._look = self._look or runs is None
        # There may be no reader: what piles up is dropped, and the next reader reads the store.
        if runs and len(self._runs) < MAX_ENDED_RUNS:
            self._runs += runs
        elif runs:
            self._runs, self._look = [], True
        self._filled.set()

    async def receive(self, timeout_seconds: float) -> RunsEnded:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._filled.wait()
        except TimeoutError:
            self._look = True
        found = RunsEnded(self._runs, self._look)
        self._runs, self._look = [], False
        self._filled.clear()
        return found


class ReceivedCommits:
    """Commits of other processes that the leader of this one has not been told of yet."""

    def __init__(self) -> None:
        self._look = True
        self._accepted_by: set[str] = set()
        self._queued: list[int] = []
        self._carried: list[tuple[int, int, str]] = []
        """First and last run, and the text of their rows."""
        self._mailed: list[tuple[int, int]] = []
        self._outbox = False
        self._filled = asyncio.Event()
        self._filled.set()  # the first time there may be some already

    def outbox(self) -> None:
        self._outbox = True
        self._filled.set()

    def request_read(self) -> None:
        self._look = True
        self._filled.set()

    def accepted(self, worker: str) -> None:
        self._accepted_by.add(worker)
        self._filled.set()

    def queued(self, first: str = "", last: str = "", rows: str = "") -> None:
        """Runs with these numbers and those between them; `rows`: what was carried of them."""
        try:
            lowest, highest = number_of(first), number_of(last)
        except ValueError:
            self.request_read()
            return
        if len(self._queued) + highest - lowest < MAX_QUEUED_RUNS:
            self._queued += range(lowest, highest + 1)
            if rows:
                self._carried.append((lowest, highest, rows))
            self._filled.set()
        else:
            self.request_read()

    def mailed(self, parts: list[str]) -> None:
        try:
            run, number = map(number_of, parts)
        except ValueError:
            self.request_read()  # of a topic
            return
        if len(self._mailed) < MAX_QUEUED_RUNS:
            self._mailed.append((run, number))
            self._filled.set()
        else:
            self.request_read()

    async def receive(self, timeout_seconds: float) -> ChangeNotice:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._filled.wait()
        except TimeoutError:
            self._look = True
        found = ChangeNotice(
            self._look,
            frozenset(self._accepted_by),
            tuple(self._queued),
            tuple(self._mailed),
            self._outbox,
            tuple(row for told in self._carried for row in read_carried(*told)),
        )
        self._look = self._outbox = False
        self._accepted_by.clear()
        self._queued.clear()
        self._carried.clear()
        self._mailed.clear()
        self._filled.clear()
        return found
