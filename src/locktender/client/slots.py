"""`slots()`: pool slots for any code, async and sync, through the same admission as every task."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from types import TracebackType

from locktender.base import graph_check
from locktender.base.clock import SECOND
from locktender.base.durations import Duration, microseconds, spoken
from locktender.base.errors import InvalidInput, LeaseLost, LocktenderError, WaitTimeout
from locktender.base.graph import Graph, Node, PoolNeed
from locktender.base.ids import RunId, run_id
from locktender.base.limits import pool_name
from locktender.base.model import NewRun, Request
from locktender.base.names import count
from locktender.base.text import counted
from locktender.base.tracebacks import public
from locktender.client import results
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.slot_worker import LABEL, Hold, SlotWorker
from locktender.client.submit import check_pools
from locktender.store.protocol import Submit

FLOW = STEP = "locktender:hold"
MIN_LEASE_US = SECOND
HOLD_DISPATCH_DEADLINE_US = 30 * SECOND
"""A request whose slot worker has died passes every gate but the worker's: after this it is dropped."""


@public
class HeldSlots:
    """Slots that are held: `pool`, `slots`, `run_id`; the event `lost` is set when they are no longer ours."""

    def __init__(self, pool: str, slots: int, run: RunId) -> None:
        self.pool = pool
        self.slots = slots
        self.run_id: str = run
        self.lost: threading.Event = threading.Event()
        self._why = ""

    def check(self) -> None:
        """Raises `LeaseLost` if the slots are no longer ours."""
        if self.lost.is_set():
            raise self.error()

    def error(self) -> LeaseLost:
        """The `LeaseLost` that `check` raises."""
        return LeaseLost(
            f"{self.slots} slots of pool {self.pool!r} are lost: {self._why}.",
            field="pool",
            got=self.pool,
            hint="Others may hold them by now: undo or repeat what they protected.",
        )

    def set_lost(self, why: str) -> None:
        """Marks the slots as lost; called by the holder of the lease."""
        self._why = why
        self.lost.set()


@public
class AsyncSlots:
    """Made by `client.slots(...)`: `async with client.slots("db", 2) as held:`.

    If the slots are lost the body is cancelled and `LeaseLost` raised in its place.
    """

    def __init__(
        self,
        core: Core,
        pool: str,
        n: int,
        timeout: Duration | None,
        lease: Duration | None,
    ) -> None:
        self._core = core
        self._pool = pool_name(pool)
        self._n = count(n, "slots")
        self._timeout_us = None if timeout is None else microseconds(timeout, "timeout", minimum=0)
        self._lease_us = _lease(lease, core.settings.worker_lease_us)
        self._worker: SlotWorker | None = None
        self._hold: Hold | None = None
        self._held: HeldSlots | None = None
        self._cancelled: asyncio.Task[object] | None = None
        self._left = False

    async def acquire(self) -> HeldSlots:
        """Waits for the slots. Raises `WaitTimeout` when `timeout` passes first; nothing is held then."""
        core = self._core
        core.guard.check()
        if self._held is not None:
            raise LocktenderError(
                "this slots() object was already used.", hint="Call slots(...) again."
            )
        if self._pool.endswith("[*]"):
            raise InvalidInput(
                f"{self._pool} names all keys of a pool; slots() needs one of them.",
                field="pool",
                got=self._pool,
                hint="Name one key.",
            )
        worker = await core.slot_workers.get(self._lease_us)
        graph = self._graph(worker)
        await check_pools(core, [graph])
        run, body = self._request(graph)
        offered = worker.expect(run.id)
        try:
            await core.store.submit(Submit([run], {run.graph: body}))
            core.changed()
            hold = await self._offered(run.id, offered)
        except BaseException:
            await self._give_up(worker, run.id, offered)
            raise
        self._worker, self._hold = worker, hold
        held = self._held = HeldSlots(self._pool, self._n, run.id)
        if hold.lost is not None:
            held.set_lost(hold.lost)
        hold.on_lost.append(lambda: held.set_lost(hold.lost or ""))
        return held

    async def release(self) -> None:
        """Gives the slots back; again, or without having them: nothing."""
        worker, hold = self._worker, self._hold
        self._worker = self._hold = None
        if worker is not None and hold is not None:
            await worker.release(hold)

    async def __aenter__(self) -> HeldSlots:
        held = await self.acquire()
        task = asyncio.current_task()
        if task is not None and self._hold is not None:
            self._hold.on_lost.append(lambda: self._interrupt(task))
            if held.lost.is_set():
                self._interrupt(task)
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left = True
        task = self._cancelled
        if task is not None and not isinstance(error, asyncio.CancelledError):
            # The body ended before its cancellation arrived. It is received here: `uncancel` would leave it
            # pending before Python 3.13, and raise it at a later await of the caller's.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        await self.release()
        held = self._held
        if held is None or not held.lost.is_set():
            return
        ours = (
            task is not None and task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)
        )
        if error is None or ours:
            raise held.error() from None

    def _interrupt(self, task: asyncio.Task[object]) -> None:
        # Not once the body has ended: a release that comes too late finds out that the slots are lost, too.
        if not self._left:
            self._cancelled = task
            task.cancel("slots lost")

    def _graph(self, worker: SlotWorker) -> Graph:
        name, _, key = self._pool.removesuffix("]").partition("[")
        node = Node(
            name="hold",
            step=STEP,
            executor="hold",
            pools=(PoolNeed(name, self._n, (key,) if key else ()),),
            needs={LABEL: worker.id},
            dispatch_deadline_us=HOLD_DISPATCH_DEADLINE_US,
            # No other worker can have it: once abandoned it is over.
            max_abandons=1,
        )
        return Graph(FLOW, (node,))

    def _request(self, graph: Graph) -> tuple[NewRun, bytes]:
        digest, body = graph_check.digest(graph)
        # Where this process dies while it waits, the engine drops the request by itself.
        queue_timeout = (
            None if self._timeout_us is None else self._timeout_us + HOLD_DISPATCH_DEADLINE_US
        )
        run = NewRun(
            id=run_id(self._core.clock.now(), os.urandom(11)),
            flow=FLOW,
            graph=digest,
            params=b"{}",
            consts=b"[]",
            queue_timeout_us=queue_timeout,
            kind="hold",
        )
        return run, body

    async def _offered(self, run: str, offered: asyncio.Future[Hold]) -> Hold:
        """The hold, or the error of a request that ended without one."""
        ended = asyncio.create_task(self._core.waiting.until_ended(run, None))
        timeout = None if self._timeout_us is None else self._timeout_us / SECOND
        try:
            await asyncio.wait(
                {offered, ended}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if offered.done():
                return offered.result()
            if ended.done():
                raise await results.error_of(self._core, ended.result())
        finally:
            ended.cancel()
        raise WaitTimeout(
            f"timed out after {spoken(self._timeout_us or 0)} waiting for"
            f" {counted(self._n, 'slot')} of pool {self._pool!r}.",
            field="timeout",
            got=timeout,
            hint=f"See their holders: locktender pools info {self._pool}.",
        )

    async def _give_up(self, worker: SlotWorker, run: str, offered: asyncio.Future[Hold]) -> None:
        """The caller waits no more: take the request back, and the slots if they came in the same moment."""
        worker.forget(run)
        core = self._core
        if offered.done() and not offered.cancelled():
            await worker.release(offered.result())
        elif not core.guard.closed and await core.store.run(run) is not None:
            await core.store.ask([Request("cancel", run, who=core.who, reason="not waited for")])
            core.changed()


def _lease(lease: Duration | None, default_us: int) -> int:
    if lease is None:
        return default_us
    lease_us = microseconds(lease, "lease")
    if lease_us < MIN_LEASE_US:
        raise InvalidInput(
            "lease must be 1s or more.",
            field="lease",
            got=lease,
            hint="It is renewed five times over its length.",
        )
    return lease_us


@public
class Slots:
    """Made by `client.slots(...)`: `with client.slots("db", 2) as held:`.

    A thread cannot be interrupted: if the slots are lost, `held.lost` is set,
    `held.check()` raises `LeaseLost`, and so does the end of the block.
    """

    def __init__(self, bridge: Bridge, slots: AsyncSlots) -> None:
        self._bridge = bridge
        self._slots = slots
        self._held: HeldSlots | None = None

    def __enter__(self) -> HeldSlots:
        self._held = self._bridge.call(self._slots.acquire())
        return self._held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held = self._held
        if held is None:
            return
        if not self._bridge.guard.closed:
            self._bridge.call(self._slots.release())
        if held.lost.is_set():
            if error is None:
                raise held.error()
            if not isinstance(error, LeaseLost):
                error.add_note(str(held.error()))
