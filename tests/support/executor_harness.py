"""Drives one executor in a test: starts jobs, waits for conditions with a bound, counts every `done`."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from locktender.base.clock import SystemClock
from locktender.testing import eventually
from locktender.worker.executors import sources
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.protocol import Attempt, Outcome, StopReason
from locktender.worker.executors.thread import ThreadExecutor

SOURCE = sources.CodeSource(
    "locktender_executor_steps", str(Path(__file__).parents[1] / "steps" / "executor_steps.py")
)
STEPS: dict[str, Any] = sources.load(SOURCE).STEPS
KINDS = ("async", "thread", "process")
PATIENCE = 60.0
LONG = 60_000_000


async def until(condition: Callable[[], object], what: str = "condition") -> None:
    """A bounded wait for something another process or thread does."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 — what is waited for happens outside of the loop
            await asyncio.sleep(0.002)


def alive(pid: int) -> bool:
    """Whether it still runs: a zombie that nobody has reaped yet does not."""
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def group_alive(pgid: int) -> bool:
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == pgid and alive(pid):
                return True
    return False


class Harness:
    def __init__(self, kind: str, root: Path, permits: int = 2, **options: Any) -> None:
        make: dict[str, Callable[..., Any]] = {
            "async": AsyncExecutor,
            "thread": ThreadExecutor,
            "process": ProcessExecutor,
        }
        if kind == "process":
            options.setdefault("steps", "locktender_executor_steps:STEPS")
        self.kind = kind
        self.root = root
        self.executor = make[kind](permits, clock=SystemClock(), **options)
        self.ends: list[tuple[int, Outcome]] = []
        self._tokens = itertools.count(1001)
        self._thread = threading.get_ident()

    def start(self, step: str, *args: Any, timeout_us: int | None = None, **fields: Any) -> Attempt:
        if self.kind == "async":
            step = f"{step}_async"
        token = next(self._tokens)
        job = Attempt(
            task=token - 1000,
            token=token,
            run_id="run",
            step=STEPS[step],
            call=json.dumps(args).encode(),
            timeout_us=timeout_us,
            work_root=self.root,
            source=SOURCE,
            **fields,
        )
        self.executor.start(job, self._done)
        return job

    def _done(self, job: Attempt, outcome: Outcome) -> None:
        assert threading.get_ident() == self._thread
        self.ends.append((job.token, outcome))

    async def end_of(self, job: Attempt) -> Outcome:
        await until(lambda: any(token == job.token for token, _ in self.ends))
        return next(outcome for token, outcome in self.ends if token == job.token)

    async def run(self, step: str, *args: Any, **options: Any) -> Outcome:
        return await self.end_of(self.start(step, *args, **options))

    def marker(self, job: Attempt, name: str = "file") -> Path:
        return self.root / str(job.task) / str(job.token) / name

    async def begun(self, job: Attempt) -> int:
        """Waits for the body's file; the pid in it."""
        path = self.marker(job)
        await until(lambda: path.exists() and path.read_text())
        return int(path.read_text())

    async def stopped(self, step: str, reason: StopReason, *args: Any) -> tuple[Outcome, int]:
        job = self.start(step, *args)
        pid = await self.begun(job)
        self.executor.stop(job.token, reason)
        return await self.end_of(job), pid

    async def __aenter__(self) -> Harness:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whatever was done: one end each, every permit free, no work directory, no child."""
        pids: list[int] = getattr(self.executor, "pids", [])
        closing: Awaitable[list[int]] = self.executor.close(0)
        assert await closing == []
        tokens = [token for token, _ in self.ends]
        assert len(tokens) == len(set(tokens)), "an end was told twice"
        assert self.executor.in_flight == 0
        assert self.executor.stopping() == []
        # What Python compiled of a test's module is nobody's work.
        left = [
            each for each in self.root.iterdir() if each.is_dir() and each.name != "__pycache__"
        ]
        assert left == [], "work directories are left"
        assert not [pid for pid in pids if alive(pid)]
        # Others of their groups were killed, and are nobody's children here: they end a moment later.
        eventually(lambda: not any(map(group_alive, pids)), what="the end of all groups")
