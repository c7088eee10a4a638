"""The async client: every verb, on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, cast, overload

from locktender.base.clock import SECOND
from locktender.base.config import Settings
from locktender.base.durations import Duration, microseconds
from locktender.base.errors import AdmissionRejected, DuplicateKey, InvalidInput
from locktender.base.tracebacks import public
from locktender.client.core import Core
from locktender.client.guard import ClientGuard
from locktender.client.refusals import refusal
from locktender.client.run import AsyncRun
from locktender.client.submission import Submission, checked_calls, refuse_options
from locktender.client.submit_signatures import AsyncSubmitting
from locktender.store.open import is_server, needs_database

if TYPE_CHECKING:
    # Loaded with the first use: a command that reads a store does without flows, kernel and engine.
    from locktender.client.events import AsyncEvents
    from locktender.client.limits_async import AsyncLimits
    from locktender.client.more_workers import MoreWorkers
    from locktender.client.pauses import AsyncFlows
    from locktender.client.pools_async import AsyncPools
    from locktender.client.result_cache import AsyncCache
    from locktender.client.runs_async import AsyncQueue, AsyncRuns
    from locktender.client.schedules import AsyncSchedules
    from locktender.client.slots import AsyncSlots
    from locktender.client.submit import Prepared, Preparing
    from locktender.client.tokens import AsyncTokens
    from locktender.client.workers import AsyncWorkers
    from locktender.flows.flows import Flow
    from locktender.observe.why import Why
    from locktender.store.protocol import Submitted

T = TypeVar("T")
Refusal = AdmissionRejected | DuplicateKey
TRACED_AT_A_TIME = 100
INTERRUPTED_GRACE_US = 5 * SECOND
"""After Ctrl-C running tasks may go on for this long; the rest returns to the queue."""


@public
class AsyncClient(AsyncSubmitting):
    """Submits runs, asks about them and sets limits; made by `embedded_async()` and `connect_async()`.

    runs, queue, workers   namespaces to list and change runs, queued runs and workers
    pools, limits          namespaces to list and change pools and every other limit
    flows                  namespace to pause and resume flows
    schedules              namespace to set and see schedules: runs of a flow at set times
    events                 namespace to send events, and to see who waits for which
    cache                  namespace to see and forget cached results of steps
    tokens                 namespace to make and revoke tokens of the HTTP API
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    @cached_property
    def runs(self) -> AsyncRuns:
        """Namespace `runs`: lists, cancels and retries runs."""
        from locktender.client.runs_async import AsyncRuns

        return AsyncRuns(self._core)

    @cached_property
    def queue(self) -> AsyncQueue:
        """Namespace `queue`: runs that have not started."""
        from locktender.client.runs_async import AsyncQueue

        return AsyncQueue(self._core)

    @cached_property
    def pools(self) -> AsyncPools:
        """Namespace `pools`: slots that all runs share."""
        from locktender.client.pools_async import AsyncPools

        return AsyncPools(self._core)

    @cached_property
    def schedules(self) -> AsyncSchedules:
        """Namespace `schedules`: runs of a flow at set times."""
        from locktender.client.schedules import AsyncSchedules

        return AsyncSchedules(self._core)

    @cached_property
    def limits(self) -> AsyncLimits:
        """Namespace `limits`: every limit but pools."""
        from locktender.client.limits_async import AsyncLimits

        return AsyncLimits(self._core)

    @cached_property
    def flows(self) -> AsyncFlows:
        """Namespace `flows`: lists, pauses and resumes flows."""
        from locktender.client.pauses import AsyncFlows

        return AsyncFlows(self._core)

    @cached_property
    def events(self) -> AsyncEvents:
        """Namespace `events`: sends events, and reads the history."""
        from locktender.client.events import AsyncEvents

        return AsyncEvents(self._core)

    @cached_property
    def tokens(self) -> AsyncTokens:
        """Namespace `tokens`: tokens of the HTTP API."""
        from locktender.client.tokens import AsyncTokens

        return AsyncTokens(self._core)

    @cached_property
    def cache(self) -> AsyncCache:
        """Namespace `cache`: results of steps that are used again."""
        from locktender.client.result_cache import AsyncCache

        return AsyncCache(self._core)

    @cached_property
    def workers(self) -> AsyncWorkers:
        """Namespace `workers`: lists and drains workers."""
        from locktender.client.workers import AsyncWorkers

        return AsyncWorkers(self._core)

    @property
    def settings(self) -> Settings:
        """The settings in force, each from its argument, variable, file or default."""
        return self._core.settings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.guard.closed

    def preparing(self, flow: object) -> Preparing | None:
        """What makes runs of calls of `flow`, in the caller's thread; None: its code is not here."""
        from locktender.client.by_name import is_elsewhere
        from locktender.client.submit import Preparing

        if is_elsewhere(flow):
            return None
        return Preparing(flow, self._core.settings, self._core.clock)

    def refuse_connection(self) -> None:
        """Raises where a submission cannot be part of a transaction of the caller."""

    async def _submit(self, flow: object, submission: Submission) -> AsyncRun[Any]:
        self._core.guard.check()
        preparing = self.preparing(flow)
        if preparing is None:
            made = await self.submit_named(str(flow), [submission], partial=False)
            return cast("AsyncRun[Any]", made[0])
        return await self.submit_prepared(preparing.prepare(submission))

    async def _submit_by(
        self, connection: object, flow: object, submission: Submission, *, notify: bool
    ) -> AsyncRun[Any]:
        from locktender.client.outbox import submit_by_async

        self._core.guard.check()
        self.refuse_connection()
        prepared = await self.prepared(flow, submission)
        await submit_by_async(self._core, connection, prepared, notify=notify)
        return AsyncRun(self._core, prepared.run.id, "submitted")

    async def prepared(self, flow: object, submission: Submission) -> Prepared:
        """One call, checked and ready to be stored."""
        from locktender.client.by_name import is_elsewhere, prepare_named
        from locktender.client.submit import prepare

        if is_elsewhere(flow):
            return (await prepare_named(self._core, str(flow), [submission]))[0]
        return prepare(flow, submission, self._core.settings, self._core.clock)

    @overload
    async def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: Literal[False] = False
    ) -> list[AsyncRun[T]]: ...
    @overload
    async def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: bool
    ) -> list[AsyncRun[T] | Refusal]: ...
    async def submit_many(
        self,
        flow: Flow[..., T] | str,
        calls: Iterable[Any],
        *,
        partial: bool = False,
        **unknown: object,
    ) -> Any:
        """Submits one run of `flow` per entry of `calls`, thousands in one transaction, all or none.

        calls    each entry is one argument, a tuple of positional arguments, `((...), {...})` with
                 keywords too, or a `Submission` with options of its own; at most 10,000 all or none
        partial  False (default): all runs or none, with one error. True: what fits is submitted, and
                 the place of a run that was refused has the error that `submit` would have raised

            runs = client.submit_many(build, [["a"], ["b"], Submission((["c"],), key="c")])
        """
        refuse_options(unknown)
        self._core.guard.check()
        preparing = self.preparing(flow)
        given = checked_calls(calls)
        if preparing is None:
            return await self.submit_named(str(flow), given, partial=partial)
        prepared: list[Any] = []
        for index, call in enumerate(given):
            if index % TRACED_AT_A_TIME == 0:
                await asyncio.sleep(0)  # others have their turn on this loop
            prepared.append(preparing.prepare(call, index if len(given) > 1 else None))
        return await self.submit_all_prepared(prepared, partial=partial)

    async def submit_named(
        self, flow: str, calls: Iterable[object], *, partial: bool
    ) -> list[AsyncRun[Any] | Refusal]:
        """Submits runs of a flow whose code is not here: a worker that knows it traces each."""
        from locktender.client.by_name import prepare_named

        self._core.guard.check()
        prepared = await prepare_named(self._core, flow, calls)
        return await self.submit_all_prepared(prepared, partial=partial)

    async def submit_prepared(self, prepared: Any) -> AsyncRun[Any]:
        """Submits what `preparing` made: for the sync client, in its caller's thread."""
        only = (await self.submit_all_prepared([prepared], partial=False))[0]
        return cast("AsyncRun[Any]", only)

    async def submit_all_prepared(
        self, prepared: Sequence[Any], *, partial: bool
    ) -> list[AsyncRun[Any] | Refusal]:
        """Submits what `preparing` made, all or none unless `partial`."""
        from locktender.client.submit import store_runs

        self._core.guard.check()
        answers = await store_runs(self._core, prepared, partial=partial)
        refused = [
            refusal(answer, each.run) for answer, each in zip(answers, prepared, strict=True)
        ]
        if not partial and any(refused):
            # Of all or none, most were refused only for company: the error is of the one to blame.
            to_blame = sorted((each for each in refused if each is not None), key=_for_company)
            raise to_blame[0]
        return [
            error or _made(self._core, answer, each)
            for error, answer, each in zip(refused, answers, prepared, strict=True)
        ]

    async def why(self, subject: str | int) -> Why:
        """Explains what a run (by its whole id) or a task (by number) waits for now.

        Every limit it waits at is named, with its numbers and the holders. `print` shows it as text.
        """
        from locktender.observe.why import explain_task, with_sessions

        self._core.guard.check()
        if isinstance(subject, int):
            store = self._core.store
            why = await explain_task(store, subject, self._core.settings.labels)
            return await with_sessions(store, why)
        return await (await self.runs.get(subject)).why()

    def slots(
        self,
        pool: str,
        n: int = 1,
        *,
        timeout: Duration | None = None,
        lease: Duration | None = None,
    ) -> AsyncSlots:
        """Holds `n` slots of a pool for the code in the block: a semaphore that all processes share.

        pool     a pool, or one key of it: `api[acme]`
        n        1 (default) or more
        timeout  how long to wait for them, else `WaitTimeout`; default None, no bound
        lease    "1s" or more: how long the slots stay taken if this process dies or hangs; renewed in
                 the background; default the setting `worker_lease` ("10s")

            async with client.slots("db", 2, timeout="30s") as held:
                await migrate()
        """
        from locktender.client.slots import AsyncSlots

        self._core.guard.check()
        return AsyncSlots(self._core, pool, n, timeout, lease)

    async def close(self, grace: Duration | None = None) -> None:
        """Stops the engine, if this client has one, and closes the store. Closing again does nothing.

        grace  how long running tasks may go on; the rest returns to the queue. Default the setting
               `grace` ("30s"); "0s" returns them at once. An interrupt meanwhile does the same.
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


class ServerAccess(NamedTuple):
    """What a server is asked with: `connect("https://…", token=…, ca=…)`."""

    token: str | None = None
    ca: str | None = None
    """A file or directory of certificates to trust in place of the system's."""


async def opened(
    settings: Settings,
    *,
    engine: bool,
    guard: ClientGuard | None = None,
    more: MoreWorkers | None = None,
    access: ServerAccess | None = None,
    creates: bool = True,
    brief: bool = False,
) -> tuple[AsyncClient, Core]:
    """A client of the store that `settings.url` names, with an engine if asked for, or of a server."""
    if not is_server(settings.url):
        if access is not None and access != ServerAccess():
            raise InvalidInput(
                "a database takes no token.",
                field="token" if access.token is not None else "ca",
                hint="Give the address of a server, https://…, or leave it out.",
            )
        core = await Core.open(
            settings, engine=engine, guard=guard, more=more, creates=creates, brief=brief
        )
        return AsyncClient(core), core
    if engine:
        raise needs_database("an engine", settings.shown_url)
    from locktender.client.remote.client import RemoteClient
    from locktender.client.remote.core import RemoteCore

    remote = await RemoteCore.connect(settings, access or ServerAccess(), guard)
    return RemoteClient(remote), remote


def _for_company(refused: Refusal) -> bool:
    return isinstance(refused, AdmissionRejected) and refused.field == "key"


def _made(core: Core, answer: Submitted, prepared: Prepared) -> AsyncRun[Any]:
    run, graph = prepared.run, prepared.graph
    if answer.outcome != "created" or graph.unfolds:
        # It was there before, or a worker makes its graph later: what it ends with is not known here.
        return AsyncRun(core, answer.id, answer.outcome, answer.seq)
    return AsyncRun(core, answer.id, answer.outcome, answer.seq, run.flow, run.graph)
