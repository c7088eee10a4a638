"""The ends of a worker's attempts: log and large result are stored first, then the end is delivered."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from locktender.base.background import BackgroundTasks
from locktender.base.changes import End
from locktender.base.errors import LocktenderError
from locktender.base.model import Failure, LogRow
from locktender.base.states import TaskState
from locktender.store.blob_values import FILE_MARK, BlobValues
from locktender.store.protocol import Store
from locktender.worker.executors.protocol import Attempt, Outcome
from locktender.worker.reports import LogReports

_dump = msgspec.json.Encoder().encode


class AttemptEnds:
    def __init__(
        self,
        worker: str,
        deliver: Callable[[End], None],
        store: Store,
        blobs: BlobValues,
        blob_over_bytes: int,
        background: BackgroundTasks,
    ) -> None:
        """A result over `blob_over_bytes` is stored as a blob of its own."""
        self.lost: bool = False
        """The lease is lost: other workers may run these attempts, and no end is delivered any more."""
        self._worker = worker
        self._deliver = deliver
        self._blobs = blobs
        self._blob_over_bytes = blob_over_bytes
        self._background = background
        self._logs = LogReports(store)
        self._missing: dict[int, Attempt] = {}
        """By token: attempts that were started and whose end was not delivered yet."""
        self._logged: dict[int, int] = {}
        """Token → lines that are stored, of attempts that run and have logged."""

    def expect(self, attempt: Attempt) -> None:
        """The attempt was started: its end is missing until it is delivered."""
        self._missing[attempt.token] = attempt

    def missing(self) -> list[tuple[int, int]]:
        """(task, token) of attempts whose end was not delivered yet. Called from any thread."""
        return [(attempt.task, token) for token, attempt in list(self._missing.items())]

    def store_lines(self) -> None:
        """Stores what running attempts have logged since the last time. Nothing is written for the others."""
        for token, attempt in self._missing.items():
            lines = attempt.lines
            if lines is None or lines.count <= self._logged.get(token, 0):
                continue
            body, count, last_at = lines.peek()
            self._logged[token] = count
            row = LogRow(attempt.task, token, attempt.number, body, count, last_at)
            self._logs.keep_soon(row)

    def finish(self, attempt: Attempt, outcome: Outcome, state: str) -> None:
        """Store what the body logged and returned, then deliver."""
        self._logged.pop(attempt.token, None)
        if outcome.log is not None:
            work = self._keep_log(attempt, outcome, state, outcome.log)
            self._background.start(work, "store the log of an attempt")
        else:
            self._end(attempt, outcome, state)

    def refuse(
        self,
        task: int,
        token: int,
        message: str,
        *,
        retryable: bool = True,
        kind: str = "internal",
    ) -> None:
        error = _dump(Failure(kind, f"{kind}: {message}", retryable=retryable))
        self.deliver(task, token, TaskState.FAILED, error=error)

    def deliver(
        self,
        task: int,
        token: int,
        state: str,
        output: bytes | None = None,
        error: bytes | None = None,
        reason: str = "",
    ) -> None:
        self._missing.pop(token, None)
        self._logged.pop(token, None)
        if not self.lost:
            self._deliver(End(task, token, state, output, error, reason, self._worker))

    async def _keep_log(self, attempt: Attempt, outcome: Outcome, state: str, lines: bytes) -> None:
        """The log first: a client that sees the end finds the lines."""
        await self._logs.keep(
            LogRow(
                attempt.task,
                attempt.token,
                attempt.number,
                lines,
                outcome.log_lines,
                outcome.log_at,
            )
        )
        self._end(attempt, outcome, state)

    def _end(self, attempt: Attempt, outcome: Outcome, state: str) -> None:
        output = outcome.output
        if output is not None and len(output) > self._blob_over_bytes:
            if FILE_MARK in output:
                # The sweep reads rows alone: it would not find files that a large value names.
                message = f"the result names files and has more than {self._blob_over_bytes:,} bytes (blob_over)"
                self.refuse(attempt.task, attempt.token, message, retryable=False)
                return
            self._background.start(self._put_blob(attempt, output), "store a large result")
            return
        error = None if outcome.failure is None else _dump(outcome.failure)
        self.deliver(attempt.task, attempt.token, state, output, error, outcome.reason or "")

    async def _put_blob(self, attempt: Attempt, output: bytes) -> None:
        try:
            ref = await self._blobs.put(output)
        except LocktenderError as error:
            self.refuse(attempt.task, attempt.token, f"the result cannot be kept: {error}")
            return
        self.deliver(attempt.task, attempt.token, TaskState.COMPLETED, ref)
