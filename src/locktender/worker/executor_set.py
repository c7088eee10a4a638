"""The executors of one worker: each kind is made when its first attempt comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.protocol import Executor, Stopping
from locktender.worker.executors.thread import ThreadExecutor
from locktender.worker.loop_lag import OnBlock


class ExecutorSetup(NamedTuple):
    """What a worker gives every executor it makes."""

    permits: int
    clock: Clock
    max_result: int | None
    inherited_fds: tuple[int, ...]
    """Locks that say the worker is alive: free only when the last process of a body is gone too."""
    loop_lag_us: int
    """A body that holds its loop for longer is named."""
    on_block: OnBlock
    """Called on the engine's loop for each: (step, how late the loop was)."""


def _async(setup: ExecutorSetup) -> Executor:
    return AsyncExecutor(
        setup.permits,
        clock=setup.clock,
        max_result=setup.max_result,
        loop_lag_us=setup.loop_lag_us,
        on_block=setup.on_block,
    )


def _thread(setup: ExecutorSetup) -> Executor:
    return ThreadExecutor(setup.permits, clock=setup.clock, max_result=setup.max_result)


def _process(setup: ExecutorSetup) -> Executor:
    return ProcessExecutor(
        setup.permits,
        clock=setup.clock,
        max_result=setup.max_result,
        keep_fds=setup.inherited_fds,
    )


EXECUTORS: Final[Mapping[str, Callable[[ExecutorSetup], Executor]]] = {
    "async": _async,
    "thread": _thread,
    "process": _process,
}
"""By the `executor` of a step."""


class ExecutorSet:
    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        on_block: OnBlock,
        work_root_fd: int,
        live_fd: Callable[[], int | None],
    ) -> None:
        """`work_root_fd` and `live_fd`: locks that say the worker is alive, for child processes to inherit."""
        self._settings = settings
        self._permits = settings.permits()
        self._clock = clock
        self._on_block = on_block
        self._work_root_fd = work_root_fd
        self._live_fd = live_fd
        self._executors: dict[str, Executor] = {}
        self._stop_at_us = 0

    def get(self, kind: str) -> Executor:
        executor = self._executors.get(kind)
        if executor is None:
            executor = self._executors[kind] = EXECUTORS[kind](self._setup(kind))
            # From its first body on: this process may be paused before the next renewal.
            executor.extend(self._stop_at_us)
        return executor

    def extend(self, stop_at_us: int) -> None:
        """The lease was renewed: what runs may run until `stop_at_us` (boot-time clock)."""
        self._stop_at_us = stop_at_us
        for executor in self._executors.values():
            executor.extend(stop_at_us)

    def in_flight(self) -> dict[str, int]:
        return {kind: each.in_flight for kind, each in self._executors.items()}

    def blocked(self) -> tuple[str, ...]:
        """Kinds that can begin nothing, because a body blocks them; what has not begun there is handed back."""
        return tuple(kind for kind, each in self._executors.items() if each.take_back())

    def lag_us(self) -> int:
        return max((each.lag_us() for each in list(self._executors.values())), default=0)

    def stopping(self) -> list[tuple[str, Stopping]]:
        """Attempts that were asked to stop and still run, each with its kind of executor."""
        return [(kind, each) for kind, of in self._executors.items() for each in of.stopping()]

    async def close(self, grace_us: int) -> list[int]:
        """Tokens of what could not be ended."""
        left = await asyncio.gather(*(each.close(grace_us) for each in self._executors.values()))
        return [token for tokens in left for token in tokens]

    def outlives(self) -> bool:
        """After `close`: whether a body still runs. Called from any thread, also when the loop is gone."""
        return any(each.outlives() for each in list(self._executors.values()))

    def _setup(self, kind: str) -> ExecutorSetup:
        live_fd = self._live_fd()
        return ExecutorSetup(
            self._permits[kind],
            self._clock,
            self._settings.max_value_bytes,
            (self._work_root_fd, *(() if live_fd is None else (live_fd,))),
            self._settings.loop_lag_us,
            self._on_block,
        )
