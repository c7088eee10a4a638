"""The executors of one worker: each kind is made when its first attempt comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from locktender.base.clock import Clock
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.protocol import Attempt, Executor, Stopping
from locktender.worker.executors.thread import ThreadExecutor


class ExecutorSet:
    def __init__(
        self,
        permits: dict[str, int],
        clock: Clock,
        max_result_bytes: int,
        inherited_fds: Callable[[], list[int]],
    ) -> None:
        """`inherited_fds`: locks that child processes keep until the last of them is gone."""
        self._permits = permits
        self._clock = clock
        self._max_result_bytes = max_result_bytes
        self._inherited_fds = inherited_fds
        self._loop = asyncio.get_running_loop()
        self._executors: dict[str, Executor] = {}
        self._stop_at_us = 0

    def get(self, kind: str) -> Executor:
        executor = self._executors.get(kind)
        return self._make(kind) if executor is None else executor

    def _make(self, kind: str) -> Executor:
        permits, clock, limit = self._permits[kind], self._clock, self._max_result_bytes
        if kind == "async":
            executor = AsyncExecutor(permits, clock=clock, max_result=limit)
        elif kind == "thread":
            executor = ThreadExecutor(permits, clock=clock, max_result=limit)
        else:
            fds = self._inherited_fds()
            executor = ProcessExecutor(permits, clock=clock, max_result=limit, keep_fds=fds)
            # From its first child on: this process may be paused before the next renewal.
            executor.extend(self._stop_at_us)
        self._executors[kind] = executor
        return executor

    def extend(self, stop_at_us: int) -> None:
        """The lease was renewed: children may live until `stop_at_us` (boot-time clock)."""
        self._stop_at_us = stop_at_us
        executor = self._executors.get("process")
        if isinstance(executor, ProcessExecutor):
            executor.extend(stop_at_us)

    def in_flight(self) -> dict[str, int]:
        return {kind: each.in_flight for kind, each in self._executors.items()}

    def on_loop_now(self) -> Attempt | None:
        """The attempt whose body holds the loop at this moment."""
        executor = self._executors.get("async")
        return executor.holder() if isinstance(executor, AsyncExecutor) else None

    def stopping(self) -> list[tuple[str, Stopping]]:
        """Attempts that were asked to stop and still run, each with its kind of executor."""
        return [(kind, each) for kind, of in self._executors.items() for each in of.stopping()]

    async def close(self, grace_us: int) -> list[int]:
        """Tokens of what could not be ended."""
        left = await asyncio.gather(*(each.close(grace_us) for each in self._executors.values()))
        return [token for tokens in left for token in tokens]

    def outlives(self) -> bool:
        """After `close`: whether a body still runs. Called from any thread, also when the loop is gone."""
        threads, on_loop = self._executors.get("thread"), self._executors.get("async")
        if isinstance(threads, ThreadExecutor) and threads.alive:
            return True
        return on_loop is not None and on_loop.in_flight > 0 and self._loop.is_running()
