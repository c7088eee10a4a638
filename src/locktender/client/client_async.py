"""The async client: every verb, on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import AdmissionRejected, DuplicateKey
from locktender.client.core import Core
from locktender.client.limits_async import AsyncLimits
from locktender.client.pools_async import AsyncPools
from locktender.client.run import AsyncRun
from locktender.client.runs_async import AsyncQueue, AsyncRuns, AsyncWorkers
from locktender.client.slots import AsyncSlots
from locktender.client.submit import Prepared, Preparing, Submission, hand_in, prepare, refusal
from locktender.client.submit_signatures import AsyncSubmitting
from locktender.flows.flows import Flow
from locktender.observe.why import Why, explain_task

T = TypeVar("T")
Refusal = AdmissionRejected | DuplicateKey
TRACED_AT_A_TIME = 100
INTERRUPTED_GRACE_US = 5 * SECOND
"""Who pressed Ctrl-C waits no longer than this for what runs; the rest goes back to the queue."""


class AsyncClient(AsyncSubmitting):
    """Made by `embedded_async()` and `connect_async()`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.runs: AsyncRuns = AsyncRuns(core)
        self.queue: AsyncQueue = AsyncQueue(core)
        self.pools: AsyncPools = AsyncPools(core)
        self.limits: AsyncLimits = AsyncLimits(core)
        self.workers: AsyncWorkers = AsyncWorkers(core)

    @property
    def settings(self) -> Settings:
        return self._core.settings

    @property
    def closed(self) -> bool:
        return self._core.guard.closed

    async def _submit(self, flow: object, submission: Submission) -> AsyncRun[Any]:
        self._core.guard.check()
        return await self.submit_prepared(
            prepare(flow, submission, self._core.settings, self._core.clock)
        )

    @overload
    async def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: Literal[False] = False
    ) -> list[AsyncRun[T]]: ...
    @overload
    async def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: bool
    ) -> list[AsyncRun[T] | Refusal]: ...
    async def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: bool = False
    ) -> Any:
        """Hands in a run of `flow` per entry of `calls`, thousands in one transaction, all or none.

        A tuple is the positional arguments, `((…), {…})` has keywords too, a
        `Submission` has options of its own; anything else is the one argument.
        With `partial=True` what fits is taken, and the place of a run that was
        not has the error that `submit` would have raised.
        """
        self._core.guard.check()
        preparing = Preparing(flow, self._core.settings, self._core.clock)
        prepared: list[Prepared] = []
        for index, call in enumerate(calls):
            if index % TRACED_AT_A_TIME == 0:
                await asyncio.sleep(0)  # others have their turn on this loop
            prepared.append(preparing.prepare(call, index))
        return await self.submit_all_prepared(prepared, partial=partial)

    async def submit_prepared(self, prepared: Prepared) -> AsyncRun[Any]:
        """Hands in what was traced elsewhere: by the sync client, in its caller's thread."""
        only = (await self.submit_all_prepared([prepared], partial=False))[0]
        return cast("AsyncRun[Any]", only)

    async def submit_all_prepared(
        self, prepared: list[Prepared], *, partial: bool
    ) -> list[AsyncRun[Any] | Refusal]:
        self._core.guard.check()
        answers = await hand_in(self._core, prepared, partial=partial)
        refused = [
            refusal(answer, each.run) for answer, each in zip(answers, prepared, strict=True)
        ]
        if not partial and any(refused):
            # Of all or none, most were refused only for company: the error is of the one to blame.
            to_blame = sorted((each for each in refused if each is not None), key=_for_company)
            raise to_blame[0]
        made: type[AsyncRun[Any]] = AsyncRun  # once: to subscript it costs more than to call it
        return [
            error or made(self._core, answer.id)
            for error, answer in zip(refused, answers, strict=True)
        ]

    async def why(self, subject: str | int) -> Why:
        """What a run (by id) or a task (by number) waits for now."""
        self._core.guard.check()
        if isinstance(subject, int):
            return await explain_task(self._core.store, subject, self._core.settings.labels)
        return await (await self.runs.get(subject)).why()

    def slots(
        self,
        pool: str,
        n: int = 1,
        *,
        timeout: Duration | None = None,
        lease: Duration | None = None,
    ) -> AsyncSlots:
        """Takes `n` slots of a pool for the code in the block: a semaphore that all processes share.

        Waits its turn like any task, at most `timeout`. `lease` (default the
        worker's) is how long the slots stay taken if this process dies on
        another machine or hangs; it is renewed in the background.
        """
        self._core.guard.check()
        return AsyncSlots(self._core, pool, n, timeout, lease)

    async def close(self, grace: Duration | None = None) -> None:
        """Drains and lets go: what runs may finish within `grace`, the rest goes back to the queue.

        Cancelled meanwhile, it ends what runs at once. Closing again does nothing.
        """
        await self._core.close(None if grace is None else microseconds(grace, "grace", minimum=0))

    async def __aenter__(self) -> Self:
        self._core.guard.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and issubclass(kind, asyncio.CancelledError)
        grace_us = self.settings.grace_us
        await self._core.close(min(INTERRUPTED_GRACE_US, grace_us) if interrupted else grace_us)


def _for_company(refused: Refusal) -> bool:
    return isinstance(refused, AdmissionRejected) and refused.field == "key"
