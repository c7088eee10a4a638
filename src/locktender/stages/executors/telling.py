"""A child process's side of the line to its worker.

The end of a body is sent by the thread that ran it. What the body logs and how
far it is goes out beside it, a few times a second, from a thread that is
started with the first such word: the body never waits for the line, a body
that says nothing has no thread, and when the child is killed at most the last
moment's lines are lost with it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

import msgspec

from locktender.base.model import Progress
from locktender.stages.executors.frames import Report, frame
from locktender.stages.executors.protocol import Job

PAUSE_SECONDS = 0.2


class Teller:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._pid = os.getpid()
        self.spent: bool = False
        """What the last body left behind makes this process unfit for another: told with its end."""
        self._lock = threading.Lock()
        # Not an event: a signal handler that logs may come into the middle of `put`, and only this
        # kind of queue is made for that.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._told = True
        self._thread: threading.Thread | None = None
        self._job: Job | None = None
        self._progress: Progress | None = None

    def send(self, report: Report) -> None:
        with self._lock:
            self._line.sendall(frame(report))

    def begin(self, job: Job) -> None:
        with self._lock:
            self._job, self._progress = job, None

    def end(self, report: Report) -> None:
        """The body's end, with the lines that have not been told yet. Nothing is told of it after that."""
        with self._lock:
            job, self._job = self._job, None
            if job is not None and job.lines is not None:
                report = msgspec.structs.replace(report, log=job.lines.take(last=True))
            if self.spent:
                report = msgspec.structs.replace(report, spent=True)
            self._line.sendall(frame(report))

    def put(self, progress: Progress) -> None:
        job = self._job
        if job is not None and job.token == progress.token:
            self._progress = progress
            self.wake()

    def forget(self, token: int) -> None:
        """The worker forgets by itself, at the end."""

    def wake(self) -> None:
        # A process that the body forked has this object too, but the line is not its to write on.
        if os.getpid() != self._pid:
            return
        if self._told:
            self._told = False
            self._news.put(None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._talk, name="locktender-notes", daemon=True)
            self._thread.start()

    def _talk(self) -> None:
        with suppress(OSError):  # the worker is gone: so are we, soon
            while True:
                self._news.get()
                self._told = True  # first: what comes from here on has a wake of its own
                self._tell()
                time.sleep(PAUSE_SECONDS)

    def _tell(self) -> None:
        with self._lock:
            job = self._job
            if job is None:
                return
            progress, self._progress = self._progress, None
            log = None if job.lines is None else job.lines.take()
            self._line.sendall(frame(Report(job.token, "note", log=log, progress=progress)))
