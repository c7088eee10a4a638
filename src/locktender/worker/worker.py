"""The worker: runs accepted attempts in its executors and delivers the end of each exactly once.

It knows nothing of leaders. The leader of this process, or the code that accepted an offer, calls `start`;
`WorkerHost.deliver` takes the end to where it has to be written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from locktender.base import version
from locktender.base.background import BackgroundTasks
from locktender.base.changes import End, Order
from locktender.base.clock import SECOND, Clock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError, NotFound
from locktender.base.graph import Node
from locktender.base.model import MISSING_VALUE, WorkerRow
from locktender.base.states import TaskState
from locktender.flows.by_name import named_code, step_for
from locktender.flows.registry import Registry
from locktender.observe.metrics import Metrics
from locktender.store.blob_values import BlobValues, has_blob
from locktender.store.protocol import Store
from locktender.worker.ends import AttemptEnds
from locktender.worker.executor_set import ExecutorSet
from locktender.worker.executors.protocol import Attempt, Executor, Outcome, StopReason
from locktender.worker.executors.workdirs import WorkRoot
from locktender.worker.lifetime import NO_END, Lifetime
from locktender.worker.loop_lag import LoopLag
from locktender.worker.pressure import ClaimAsked, Pressure
from locktender.worker.reports import ProgressReports, UnstoppedReports

log: logging.Logger = logging.getLogger(__name__)
LINES_EVERY_US = SECOND
"""How often lines of running attempts are stored."""
MAX_REMEMBERED_TOKENS = 20_000
"""Of attempts that were started here, beside those that still run."""
EMPTY_WORK_ROOT_SECONDS = 1.0
"""How long a process that must end may take to remove its work directories."""


class WorkerHost(Protocol):
    """What a worker needs of the membership it works under."""

    def deliver(self, end: End) -> None: ...
    def receive(self, orders: list[Order]) -> None: ...
    def attempts_changed(self) -> None:
        """An attempt was started or has ended."""
        ...

    def live_fd(self, worker: str) -> int | None:
        """The lock that says the worker is alive, for its children to inherit."""
        ...


class LocalWorker:
    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        registry: Registry,
        host: WorkerHost,
        metrics: Metrics | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        self.id: str = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.since: int = 0
        self.draining: bool = False
        self.pressure: Pressure = Pressure(settings, clock.monotonic())
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._registry = registry
        self._host = host
        self._metrics = metrics or Metrics()
        self._lifetime = lifetime or Lifetime(settings, clock)
        self._published_room = settings.claim_batch
        """How many tasks it may still be offered in its life, as its row last said."""
        self._kinds: frozenset[str] = frozenset()
        self._known_steps = -1
        self._work_root = WorkRoot(Path(settings.work_dir))
        self._permits = settings.permits()
        self._executors = ExecutorSet(
            settings, clock, self._metrics.held_loop, self._work_root.lock_fd, self._live_fd
        )
        self._blocked: tuple[str, ...] = ()
        """Executors that can begin nothing, because a body blocks them."""
        self._progress = ProgressReports()
        self._unstopped = UnstoppedReports()
        self._loop_lag: LoopLag | None = None
        self._where: dict[int, Executor] = {}
        self._store = store
        self._blobs = BlobValues(store, self._must_not_run)
        self._fetching: dict[int, StopReason | None] = {}
        """Token → why it was stopped, while its arguments are fetched."""
        self._begun: dict[int, None] = {}
        self._held_back: list[tuple[Attempt, str]] = []
        """Attempts that wait for the next renewal of the lease, each with its kind of executor."""
        self._stopped_early: dict[int, StopReason] = {}
        """Of those, the ones that end as soon as they have begun."""
        self._since: dict[int, int] = {}
        """Token → when its body was started, on the boot-time clock."""
        self._background = BackgroundTasks()
        self._ends = AttemptEnds(
            self.id, host.deliver, store, self._blobs, settings.blob_over_bytes, self._background
        )
        self._stop_at_us = 0
        """When all it runs must have stopped unless the lease is renewed, on the boot-time clock; 0: no lease."""
        self._lines_stored_us = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._on_end = self._ended  # one object for all attempts

    def joins(self, at: int) -> None:
        """It is `at` by the store's time now."""
        self.since = at
        self._unstopped.joined(at, self._clock.monotonic())
        # Its first row has true figures: memory and pressure are read before it is written.
        self.ask()

    def describe(self, claim: int = -1) -> WorkerRow:
        """What it can do, as it joins and beats. A `claim` is never for more than it may still begin."""
        return WorkerRow(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version.installed(),
            permits=self._permits,
            total=self._settings.total_permits,
            claim=min(claim, self._lifetime.offerable),
            listens=self._store.listens,
            full=self._full(claim),
            share=self.pressure.share,
            pressed=self.pressure.pressed,
            free=self._free(),
            labels=self._settings.worker_labels,
            # Copied first: steps may be defined while the lease thread calls this.
            steps={name: step.signature for name, step in dict(self._registry.steps).items()},
            flows={name: flow.signature for name, flow in dict(self._registry.flows).items()},
            draining=self.draining,
            in_flight=len(self._where),
            memory=self.pressure.memory,
            p99_us=self.pressure.p99_us,
            lag_us=self._lag_us(),
            progress=self._progress.notes(),
            unstopped=self._unstopped.notes,
            provision=self._settings.provision,
            since=self.since,
        )

    def _free(self) -> int:
        """Permits that are not in use; −1: there is no bound."""
        total, flying = self._settings.total_permits, self._executors.in_flight()
        free = [max(0, n - flying.get(kind, 0)) for kind, n in self._permits.items() if n >= 0]
        if len(free) < len(self._permits):
            return -1 if total < 0 else max(0, total - len(self._where))
        return sum(free) if total < 0 else min(sum(free), max(0, total - len(self._where)))

    def _full(self, claim: int) -> tuple[str, ...]:
        """Executors that take nothing now: nearly full, or blocked by a body."""
        return tuple(sorted({*(() if claim < 0 else self.pressure.full), *self._blocked}))

    def _lag_us(self) -> int:
        own = 0 if self._loop_lag is None else self._loop_lag.worst_us()
        return max(own, self._executors.lag_us())

    def describe_own(self, given: int, unstarted: Iterable[tuple[int, int]]) -> WorkerRow:
        """For the leader of this process, which starts tasks here without an offer.

        `given`: how many it has given in its term; `unstarted`: (task, token) of those it has not started
        yet. The claim is for its whole term: with it no more are begun than `max_tasks` allows.
        """
        row, room = self.describe(), self.room
        if room == NO_END:
            return row
        unbegun = sum(token not in self._begun for _, token in unstarted)
        return msgspec.structs.replace(row, claim=max(0, given + room - unbegun))

    @property
    def in_flight(self) -> int:
        """Attempts that were accepted and have not ended, also those whose arguments are being fetched."""
        return len(self._where) + len(self._fetching)

    @property
    def room(self) -> int:
        """How many more tasks it may begin in its life."""
        return self._lifetime.room

    def accepting(self, count: int) -> bool:
        """So many are about to be begun (0: they have). Whether its row must say so before.

        Towards the end of its life its row allows for more than is left: each acceptance makes room for
        another offer, which would be declined, and come again, until the worker is gone.
        """
        self._lifetime.accepting(count)
        return count > 0 and self._room_shrank()

    def _room_shrank(self) -> bool:
        """Whether fewer may be offered from here on than its row says. Asked once, the caller publishes it."""
        room = self._lifetime.offerable
        shrank = room < self._published_room
        self._published_room = room if shrank else self._published_room
        return shrank

    def ask(self) -> ClaimAsked:
        """What it would take now, under the pressure it feels."""
        steps = self._registry.steps
        if len(steps) != self._known_steps:
            self._known_steps = len(steps)
            self._kinds = frozenset(step.executor for step in steps.values())
        flying = self._executors.in_flight()
        used = self._kinds | flying.keys()
        permits = {kind: n for kind, n in self._permits.items() if kind in used}
        asked = self.pressure.claim(self._clock.monotonic(), flying, permits)
        self._metrics.next_claim = asked.size
        blocked = self._executors.blocked()
        changed, self._blocked = blocked != self._blocked, blocked
        return asked._replace(urgent=True) if self._room_shrank() or changed else asked

    def watch_loop(self) -> None:
        """From here on it is logged when something holds the engine's loop."""
        self._loop_lag = LoopLag(
            self._loop,
            threading.current_thread(),
            lambda: None,
            self._clock,
            self._settings.loop_lag_us,
        )
        self._loop_lag.start()

    # -- attempts ----------------------------------------------------------------------------------

    def start(
        self,
        task: int,
        token: int,
        number: int,
        run_id: str,
        node: Node,
        call: bytes,
        flow: str = "",
        trace: str | None = None,
    ) -> None:
        """Run attempt `number` of a task, which is written as running. A repetition changes nothing."""
        if token in self._begun:
            # Its acceptance was repeated: an answer was lost, or it was offered in two ways at once.
            return
        step = step_for(self._registry, node)
        if step is None:
            self._remember(token)
            self._lifetime.began(self._clock.monotonic())
            self.refuse(task, token, f"this worker does not know {named_code(node)}")
            return
        attempt = Attempt(
            task,
            token,
            run_id,
            step,
            call,
            node.timeout_us,
            number,
            self._work_root.path,
            flow=flow,
            worker=self.id,
            trace=trace,
            progress=self._progress,
        )
        self._begin(attempt, node.executor)

    def _begin(self, attempt: Attempt, kind: str) -> None:
        now, token = self._clock.monotonic(), attempt.token
        if self._ends.lost or 0 < self._stop_at_us <= now:
            # Accepted before this process was paused, and another worker may run it by now. It begins with
            # the next renewal of the lease; if there is none, it belongs to the other worker.
            self._held_back.append((attempt, kind))
            return
        self._remember(token)
        self._ends.expect(attempt)
        self._lifetime.began(now)
        self._host.attempts_changed()
        if has_blob(attempt.call):
            self._fetching[token] = None
            self._empty.clear()
            self._background.start(self._fetch_and_run(attempt, kind), "start an attempt")
        else:
            self._run(attempt, kind, now)

    def begun(self, token: int) -> bool:
        """Whether this attempt was started here, also if it has ended since."""
        return token in self._begun

    def _remember(self, token: int) -> None:
        self._begun[token] = None
        if len(self._begun) > MAX_REMEMBERED_TOKENS + len(self._where):
            old = list(self._begun)[: MAX_REMEMBERED_TOKENS // 2]
            for each in old:
                if each not in self._where:
                    del self._begun[each]

    def _run(self, attempt: Attempt, kind: str, now: int) -> None:
        executor = self._executors.get(kind)
        if not self._where:
            self._empty.clear()
        self._where[attempt.token] = executor
        self._since[attempt.token] = now
        executor.start(attempt, self._on_end)

    async def _fetch_and_run(self, attempt: Attempt, kind: str) -> None:
        call: bytes | None = None
        why, kind_of_failure = "", "internal"
        try:
            call = await self._blobs.fetch(attempt.call)
        except LocktenderError as error:
            why = f"an argument cannot be fetched: {error}"
            if isinstance(error, NotFound):
                kind_of_failure = MISSING_VALUE
        reason = self._fetching.pop(attempt.token, None)
        if reason is not None:
            # It was stopped while its arguments were fetched: its body never runs.
            drained = reason in ("drain", "kill")
            state = TaskState.HANDED_BACK if drained else TaskState.CANCELLED
            self._ends.deliver(attempt.task, attempt.token, state, reason=reason)
        elif call is None:
            self._ends.refuse(attempt.task, attempt.token, why, kind=kind_of_failure)
        else:
            attempt.call = call
            self._run(attempt, kind, self._clock.monotonic())
        if not self.in_flight:
            self._empty.set()

    def refuse(self, task: int, token: int, message: str, *, retryable: bool = True) -> None:
        """An accepted attempt that cannot be started here fails."""
        self._ends.refuse(task, token, message, retryable=retryable)

    def _live_fd(self) -> int | None:
        return self._host.live_fd(self.id)

    def receive(self, orders: list[Order]) -> None:
        """Orders that the leader of this process committed for it."""
        self._host.receive(orders)

    def stop(self, token: int, reason: StopReason) -> None:
        executor = self._where.get(token)
        if executor is not None:
            executor.stop(token, reason)
        elif token in self._fetching:
            self._fetching[token] = self._fetching[token] or reason
        elif any(attempt.token == token for attempt, _ in self._held_back):
            self._stopped_early[token] = reason

    def extend(self, stop_at_us: int) -> None:
        """The lease was renewed: what runs here may run until `stop_at_us` (boot-time clock)."""
        self._stop_at_us = stop_at_us
        held_back, self._held_back = self._held_back, []
        for attempt, kind in held_back:
            if attempt.token not in self._begun:
                self._begin(attempt, kind)
            if (reason := self._stopped_early.pop(attempt.token, None)) is not None:
                self.stop(attempt.token, reason)
        self._executors.extend(stop_at_us)

    def _must_not_run(self) -> bool:
        return self._ends.lost or 0 < self._stop_at_us <= self._clock.monotonic()

    # -- ends --------------------------------------------------------------------------------------

    def _ended(self, attempt: Attempt, outcome: Outcome) -> None:
        self._where.pop(attempt.token, None)
        now = self._clock.monotonic()
        lasted_us = now - self._since.pop(attempt.token, now)
        self.pressure.finished(lasted_us)
        self._lifetime.ended(now)
        self._host.attempts_changed()
        if not self.in_flight:
            self._empty.set()
        if self._ends.lost:
            return
        handed_back = outcome.reason in ("drain", "kill")
        state = TaskState.HANDED_BACK if handed_back else outcome.state
        self._metrics.task_ended(attempt.step.name, state, lasted_us)
        self._ends.finish(attempt, outcome, state)

    # -- the end of the worker ---------------------------------------------------------------------

    def lose(self) -> None:
        """The lease is lost: stop everything and deliver no end."""
        self._ends.lost = True
        for token in [*self._where, *self._fetching]:
            self.stop(token, "lease_lost")

    async def emptied(self) -> None:
        """Returns when nothing runs."""
        await self._empty.wait()

    async def close(self, grace_us: int) -> list[int]:
        """Let what runs finish within `grace_us`, hand the rest back; returns what could not be ended."""
        self.draining = True
        for token in list(self._fetching):
            self.stop(token, "drain")
        left = await self._executors.close(grace_us)
        await self._background.wait()
        self.find_unstopped()
        return left

    def stopping(self) -> int:
        """How many attempts were asked to stop and still run."""
        return len(self._executors.stopping())

    def unended(self) -> list[tuple[int, int]]:
        """(task, token) of attempts started here whose end was not delivered yet. Called from any thread."""
        return self._ends.missing()

    def report(self) -> bool:
        """Store new lines of running attempts, once a second, and find attempts that do not stop: see below."""
        now = self._clock.monotonic()
        if now - self._lines_stored_us >= LINES_EVERY_US and not self._ends.lost:
            self._lines_stored_us = now
            self._ends.store_lines()
        return self.find_unstopped()

    def find_unstopped(self) -> bool:
        """Find attempts that do not stop; whether there are some that no row has named yet."""
        return self._unstopped.update(self._clock.monotonic(), self._executors.stopping())

    def outlives(self) -> bool:
        """After `close`: whether a body still runs. Called from any thread, also when the loop is gone."""
        return self._executors.outlives()

    def empty_work_root(self, seconds: float = EMPTY_WORK_ROOT_SECONDS) -> None:
        """Remove the files of bodies: the process ends right after this. Called from any thread."""
        self._work_root.empty(seconds)

    def forget(self) -> None:
        """Give up the work directories: nothing runs any more."""
        if self._loop_lag is not None:
            self._loop_lag.stop()
        self._work_root.close()
