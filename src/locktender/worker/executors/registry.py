"""The executors a worker can make, by the `executor` of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from locktender.base.clock import Clock
from locktender.worker.executors.async_ import AsyncExecutor
from locktender.worker.executors.process import ProcessExecutor
from locktender.worker.executors.protocol import Executor
from locktender.worker.executors.thread import ThreadExecutor


class ExecutorSetup(NamedTuple):
    """What a worker gives every executor it makes."""

    permits: int
    clock: Clock
    max_result: int | None
    inherited_fds: tuple[int, ...]
    """Locks that must be held until the last process of a body is gone."""
    loop_lag_us: int
    """A body that holds its loop for longer is named."""
    on_block: Callable[[str, int], None]
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
