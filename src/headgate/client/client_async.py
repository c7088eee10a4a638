"""The async client: every verb, on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from headgate.base.config import Settings
from headgate.base.durations import Duration, microseconds
from headgate.base.errors import AdmissionRejected, DuplicateKey
from headgate.base.model import OnDuplicate
from headgate.client.core import Core
from headgate.client.handing_in import hand_in
from headgate.client.limits_async import AsyncLimits
from headgate.client.pools_async import AsyncPools
from headgate.client.run_async import AsyncRun
from headgate.client.runs_async import AsyncQueue, AsyncRuns
from headgate.client.submission import Prepared, Submission, TagValues, prepare, refusal
from headgate.client.workers_async import AsyncWorkers
from headgate.flows.flows import Flow
from headgate.observe.why import Why, explain_task

T = TypeVar("T")
Refusal = AdmissionRejected | DuplicateKey
TRACED_AT_A_TIME = 100


class AsyncClient:
    """Made by `embedded_async()` and `connect_async()`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.runs = AsyncRuns(core)
        self.queue = AsyncQueue(core)
        self.pools = AsyncPools(core)
        self.limits = AsyncLimits(core)
        self.workers = AsyncWorkers(core)

    @property
    def settings(self) -> Settings:
        return self._core.settings

    @property
    def closed(self) -> bool:
        return self._core.guard.closed

    async def submit(
        self,
        flow: Flow[..., T] | str,
        *args: Any,
        tags: TagValues | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_duplicate: OnDuplicate = "attach",
        deadline: Duration | None = None,
        queue_timeout: Duration | None = None,
        dispatch_deadline: Duration | None = None,
        **kwargs: Any,
    ) -> AsyncRun[T]:
        self._core.guard.check()
        submission = Submission(
            args, kwargs, tags, priority, key, on_duplicate, deadline, queue_timeout, dispatch_deadline
        )  # fmt: skip
        prepared = prepare(flow, submission, self._core.settings, self._core.clock)
        return await self.submit_prepared(prepared)

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
        self._core.guard.check()
        prepared: list[Prepared] = []
        for index, call in enumerate(calls):
            if index % TRACED_AT_A_TIME == 0:
                await asyncio.sleep(0)  # others have their turn on this loop
            prepared.append(
                prepare(flow, Submission.of(call), self._core.settings, self._core.clock, index)
            )
        return await self.submit_all_prepared(prepared, partial=partial)

    async def submit_prepared(self, prepared: Prepared) -> AsyncRun[Any]:
        """Hands in what was traced elsewhere: by the sync client, in its caller's thread."""
        return (await self.submit_all_prepared([prepared], partial=False))[0]

    async def submit_all_prepared(self, prepared: list[Prepared], *, partial: bool) -> list[Any]:
        self._core.guard.check()
        answers = await hand_in(self._core, prepared, partial=partial)
        handles: list[Any] = []
        for answer, each in zip(answers, prepared, strict=True):
            refused = refusal(answer, each.run)
            if refused is not None and not partial:
                raise refused
            handles.append(refused or AsyncRun[Any](self._core, answer.id))
        return handles

    async def why(self, subject: str | int) -> Why:
        """What a run (by id) or a task (by number) waits for now."""
        self._core.guard.check()
        if isinstance(subject, int):
            return await explain_task(self._core.store, subject)
        return await (await self.runs.get(subject)).why()

    async def close(self, grace: Duration | None = None) -> None:
        """Drains and lets go: what runs may finish within `grace`, the rest goes back to the queue."""
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
        await self.close()
