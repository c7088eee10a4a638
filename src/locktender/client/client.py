"""The sync client: every verb of the async one, across the bridge. Thread-safe."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

from locktender.base.config import Settings
from locktender.base.durations import Duration, microseconds
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge
from locktender.client.client_async import (
    INTERRUPTED_GRACE_US,
    Refusal,
    ServerAccess,
    opened,
)
from locktender.client.run import AsyncRun, Run
from locktender.client.submission import Submission, checked_calls, refuse_options
from locktender.client.submit_signatures import SyncSubmitting

if TYPE_CHECKING:
    from locktender.client.events import SyncEvents
    from locktender.client.more_workers import MoreWorkers
    from locktender.client.namespaces import SyncLimits, SyncPools, SyncQueue, SyncRuns, SyncWorkers
    from locktender.client.pauses import SyncFlows
    from locktender.client.result_cache import SyncCache
    from locktender.client.schedules import SyncSchedules
    from locktender.client.slots import Slots
    from locktender.client.tokens import SyncTokens
    from locktender.flows.definitions import FlowDef
    from locktender.flows.flows import Flow
    from locktender.observe.why import Why

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")


@public
class Client(SyncSubmitting):
    """Submits runs, asks about them and sets limits; made by `embedded()` and `connect()`. Thread-safe.

    runs, queue, workers   namespaces to list and change runs, queued runs and workers
    pools, limits          namespaces to list and change pools and every other limit
    flows                  namespace to pause and resume flows
    schedules              namespace to set and see schedules: runs of a flow at set times
    events                 namespace to send events, and to see who waits for which
    cache                  namespace to see and forget cached results of steps
    tokens                 namespace to make and revoke tokens of the HTTP API
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: bool,
        more: MoreWorkers | None = None,
        access: ServerAccess | None = None,
        creates: bool = True,
        brief: bool = False,
    ) -> None:
        """`more`: workers that its engine may ask for; they are closed with it. `access`: to a server.

        `creates` and `brief`: as `Store.open` has them.
        """
        self._bridge = Bridge()
        self._closing = threading.Lock()
        try:
            opening = opened(
                settings,
                engine=engine,
                guard=self._bridge.guard,
                more=more,
                access=access,
                creates=creates,
                brief=brief,
            )
            self._client, self._core = self._bridge.call(opening)
        except BaseException:
            self._bridge.stop()
            raise
        atexit.register(self._at_exit)

    @cached_property
    def runs(self) -> SyncRuns:
        """Namespace `runs`: lists, cancels and retries runs."""
        from locktender.client.namespaces import SyncRuns

        return SyncRuns(self._bridge, self._client.runs)

    @cached_property
    def queue(self) -> SyncQueue:
        """Namespace `queue`: runs that have not started."""
        from locktender.client.namespaces import SyncQueue

        return SyncQueue(self._bridge, self._client.queue)

    @cached_property
    def pools(self) -> SyncPools:
        """Namespace `pools`: slots that all runs share."""
        from locktender.client.namespaces import SyncPools

        return SyncPools(self._bridge, self._client.pools)

    @cached_property
    def schedules(self) -> SyncSchedules:
        """Namespace `schedules`: runs of a flow at set times."""
        from locktender.client.schedules import SyncSchedules

        return SyncSchedules(self._bridge, self._client.schedules)

    @cached_property
    def limits(self) -> SyncLimits:
        """Namespace `limits`: every limit but pools."""
        from locktender.client.namespaces import SyncLimits

        return SyncLimits(self._bridge, self._client.limits)

    @cached_property
    def flows(self) -> SyncFlows:
        """Namespace `flows`: lists, pauses and resumes flows."""
        from locktender.client.pauses import SyncFlows

        return SyncFlows(self._bridge, self._client.flows)

    @cached_property
    def events(self) -> SyncEvents:
        """Namespace `events`: sends events, and reads the history."""
        from locktender.client.events import SyncEvents

        return SyncEvents(self._bridge, self._client.events)

    @cached_property
    def tokens(self) -> SyncTokens:
        """Namespace `tokens`: tokens of the HTTP API."""
        from locktender.client.tokens import SyncTokens

        return SyncTokens(self._bridge, self._client.tokens)

    @cached_property
    def cache(self) -> SyncCache:
        """Namespace `cache`: results of steps that are used again."""
        from locktender.client.result_cache import SyncCache

        return SyncCache(self._bridge, self._client.cache)

    @cached_property
    def workers(self) -> SyncWorkers:
        """Namespace `workers`: lists and drains workers."""
        from locktender.client.namespaces import SyncWorkers

        return SyncWorkers(self._bridge, self._client.workers)

    @property
    def settings(self) -> Settings:
        """The settings in force, each from its argument, variable, file or default."""
        return self._core.settings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.guard.closed

    def _submit(self, flow: object, submission: Submission) -> Run[Any]:
        self._core.guard.check()
        preparing = self._client.preparing(flow)
        if preparing is None:
            made = self._bridge.call(
                self._client.submit_named(str(flow), [submission], partial=False)
            )
            return Run(self._bridge, cast("AsyncRun[Any]", made[0]))
        # Here, in the caller's thread: tracing runs the user's own code.
        prepared = preparing.prepare(submission)
        return Run(self._bridge, self._bridge.call(self._client.submit_prepared(prepared)))

    def _submit_by(
        self, connection: object, flow: object, submission: Submission, *, notify: bool
    ) -> Run[Any]:
        from locktender.client.by_name import is_elsewhere
        from locktender.client.outbox import submit_by
        from locktender.client.submit import prepare

        core = self._core
        core.guard.check()
        self._client.refuse_connection()
        if is_elsewhere(flow):
            prepared = self._bridge.call(self._client.prepared(flow, submission))
        else:
            prepared = prepare(flow, submission, core.settings, core.clock)
        # Here, in the caller's thread: the connection is the caller's.
        submit_by(core, connection, prepared, notify=notify)
        return Run(self._bridge, AsyncRun(core, prepared.run.id, "submitted"))

    def submit_call(
        self, flow: FlowDef, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Run[Any]:
        """As `submit` without options: all of `kwargs` are the flow's, whatever their names."""
        return self._submit(flow, Submission(args, kwargs))

    @overload
    def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: Literal[False] = False
    ) -> list[Run[T]]: ...
    @overload
    def submit_many(
        self, flow: Flow[..., T] | str, calls: Iterable[Any], *, partial: bool
    ) -> list[Run[T] | Refusal]: ...
    def submit_many(
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
        preparing = self._client.preparing(flow)
        given = checked_calls(calls)
        if preparing is None:
            several = self._client.submit_named(str(flow), given, partial=partial)
            return [self._bridged(each) for each in self._bridge.call(several)]
        prepared = [
            preparing.prepare(call, index if len(given) > 1 else None)
            for index, call in enumerate(given)
        ]
        answers = self._bridge.call(self._client.submit_all_prepared(prepared, partial=partial))
        return [self._bridged(each) for each in answers]

    def _bridged(self, answer: AsyncRun[Any] | Refusal) -> Run[Any] | Refusal:
        return Run(self._bridge, answer) if isinstance(answer, AsyncRun) else answer

    def why(self, subject: str | int) -> Why:
        """Explains what a run (by its whole id) or a task (by number) waits for now.

        Every limit it waits at is named, with its numbers and the holders. `print` shows it as text.
        """
        return self._bridge.call(self._client.why(subject))

    def slots(
        self,
        pool: str,
        n: int = 1,
        *,
        timeout: Duration | None = None,
        lease: Duration | None = None,
    ) -> Slots:
        """Holds `n` slots of a pool for the code in the block: a semaphore that all processes share.

        pool     a pool, or one key of it: `api[acme]`
        n        1 (default) or more
        timeout  how long to wait for them, else `WaitTimeout`; default None, no bound
        lease    "1s" or more: how long the slots stay taken if this process dies or hangs; renewed in
                 the background; default the setting `worker_lease` ("10s")

            with client.slots("db", 2, timeout="30s") as held:
                migrate()
        """
        from locktender.client.slots import Slots

        self._core.guard.check()
        return Slots(self._bridge, self._client.slots(pool, n, timeout=timeout, lease=lease))

    def close(self, grace: Duration | None = None) -> None:
        """Stops the engine, if this client has one, and closes the store. Closing again does nothing.

        grace  how long running tasks may go on; the rest returns to the queue. Default the setting
               `grace` ("30s"); "0s" returns them at once. An interrupt meanwhile does the same.
        """
        given = None if grace is None else microseconds(grace, "grace", minimum=0)
        self._close(given)

    def _close(self, grace_us: int | None) -> None:
        if self._core.guard.forked:
            return
        with self._closing:
            if self._core.guard.closed:
                return
            closing = self._bridge.start(self._core.close(grace_us))
            try:
                closing.result()
            except KeyboardInterrupt:
                self._bridge.run_soon(self._core.hurry)
                closing.result()
                raise
            finally:
                self._bridge.stop()
                atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """A program that ends without close(): running tasks return to the queue at once."""
        self._close(0)

    def __enter__(self) -> Self:
        self._core.guard.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            if self._core.engine is not None:
                log.warning(
                    "interrupted: waiting for running tasks; interrupt again to end them at once"
                )
            self._close(min(INTERRUPTED_GRACE_US, self.settings.grace_us))
        else:
            self._close(None)
