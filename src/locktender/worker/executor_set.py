"""The executors of one worker: each kind is made when its first attempt comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from locktender.worker.executors.protocol import Executor, Stopping
from locktender.worker.executors.registry import EXECUTORS, ExecutorSetup


class ExecutorSet:
    def __init__(self, setup_of: Callable[[str], ExecutorSetup]) -> None:
        """`setup_of`: what the executor of a kind is made with."""
        self._setup_of = setup_of
        self._executors: dict[str, Executor] = {}
        self._stop_at_us = 0

    def get(self, kind: str) -> Executor:
        executor = self._executors.get(kind)
        if executor is None:
            executor = self._executors[kind] = EXECUTORS[kind](self._setup_of(kind))
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
