"""Submissions that wait together are written together: a commit costs the same whatever it holds."""

from __future__ import annotations

import asyncio

from locktender.store.postgres.client_verbs import Answer, submit_all
from locktender.store.postgres.connection import Connection
from locktender.store.postgres.server_clock import ServerClock
from locktender.store.postgres.session import PostgresSession
from locktender.store.protocol import Submit, Submitted

MAX_RUNS = 2_000
"""Runs of one group, unless a single submission has more."""
MAX_WAITING = 10_000


class SubmitBatcher:
    """Accepts submissions one by one and writes them in groups."""

    def __init__(self, line: Connection, clock: ServerClock) -> None:
        self._line = line
        self._clock = clock
        self._waiting: list[tuple[Submit, asyncio.Future[list[Submitted]]]] = []
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._busy = False

    async def submit(self, submit: Submit) -> list[Submitted]:
        async with self._room:
            answer: asyncio.Future[list[Submitted]] = asyncio.get_running_loop().create_future()
            self._waiting.append((submit, answer))
            if not self._busy:
                self._busy = True
                task = asyncio.get_running_loop().create_task(self._serve())
                self._task = task
            return await answer

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._group(self._next_group())
        finally:
            self._busy = False

    def _next_group(self) -> list[tuple[Submit, asyncio.Future[list[Submitted]]]]:
        runs = 0
        for taken, (submit, _) in enumerate(self._waiting):
            runs += len(submit.runs)
            if taken and runs > MAX_RUNS:
                break
        else:
            taken = len(self._waiting)
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return group

    async def _group(self, group: list[tuple[Submit, asyncio.Future[list[Submitted]]]]) -> None:
        submits = [each for each, _ in group]

        async def verb(tx: PostgresSession) -> list[Answer]:
            return await submit_all(tx, submits, self._clock)

        try:
            answers = await self._line.call(verb)
            if len(answers) != len(group):
                raise AssertionError(f"{len(answers)} answers to {len(group)} submissions")
        except Exception as error:  # noqa: BLE001 — the error goes to every caller of the group
            answers: list[Answer] = [error] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception):
                if not future.done():
                    future.set_exception(answer)
                continue
            if not future.done():
                future.set_result(answer)
