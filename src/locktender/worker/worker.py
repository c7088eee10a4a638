"""The worker: runs accepted attempts in its executors and tells how each ended, exactly once.

It knows nothing of leaders: whoever accepted an attempt hands it in with
`launch`, and `deliver` takes the end to wherever it has to be written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from locktender.base import version
from locktender.base.clock import Clock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.base.graph import Node
from locktender.base.model import Failure, LogRow, WorkerRow
from locktender.base.states import TaskState
from locktender.flows.registry import Registry
from locktender.observe.metrics import Metrics
from locktender.store.blob_values import BlobValues, has_blob
from locktender.store.protocol import Store
from locktender.worker.executors.protocol import Attempt, Executor, Outcome, StopReason
from locktender.worker.executors.registry import EXECUTORS, ExecutorSetup
from locktender.worker.executors.workdirs import WorkRoot
from locktender.worker.lifetime import NO_END, Lifetime
from locktender.worker.loop_lag import LoopLag
from locktender.worker.pressure import ClaimAsked, Pressure
from locktender.worker.reports import LogReports, ProgressReports, StubbornReports

log: logging.Logger = logging.getLogger(__name__)
_dump = msgspec.json.Encoder().encode
MOST_REMEMBERED = 20_000
"""Tokens of attempts that were begun here."""
LAST_ACT_SECONDS = 1.0
"""How long a process that must end may take to remove its work directories."""


class Launch(NamedTuple):
    """An accepted attempt with all it needs to run."""

    task: int
    token: int
    attempt: int
    run_id: str
    node: Node
    call: bytes
    flow: str = ""
    trace: str | None = None
    """The submitter's, if it had one."""


class End(NamedTuple):
    """How an attempt ended, ready to be written."""

    task: int
    token: int
    state: str
    output: bytes | None = None
    error: bytes | None = None
    reason: str = ""
    worker: str = ""
    """Whose attempt it was: nobody else may write its end."""


def _nobody() -> None:
    return None


class LocalWorker:
    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        registry: Registry,
        deliver: Callable[[End], None],
        metrics: Metrics | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        self.id: str = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.since: int = 0
        self.draining: bool = False
        self.live_fd: Callable[[str], int | None] | None = None
        """Where the lock is that says this worker lives; set by whoever keeps its lease."""
        self.expired: Callable[[], bool] = lambda: False
        """Whether what runs must have been stopped by now; set by whoever keeps its lease."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._store = store
        self._registry = registry
        self._deliver = deliver
        self._metrics = metrics or Metrics()
        self.pressure: Pressure = Pressure(settings, clock.monotonic())
        self._lifetime = lifetime or Lifetime(settings, clock)
        self._left_told = settings.claim_batch
        """How many tasks it may still be offered in its life, as far as that was told."""
        self.on_change: Callable[[], None] = _nobody
        """Told whenever attempts begin or end."""
        self._kinds: frozenset[str] = frozenset()
        self._known_steps = -1
        self._work_root = WorkRoot(Path(settings.work_dir))
        self._permits = settings.permits()
        self._executors: dict[str, Executor] = {}
        self._blocked: tuple[str, ...] = ()
        """Executors that can begin nothing, because a body blocks them."""
        self._progress = ProgressReports()
        self._stubborn = StubbornReports()
        self._logs = LogReports(store)
        self._loop_lag: LoopLag | None = None
        self._where: dict[int, Executor] = {}
        self._carrier = BlobValues(store, lambda: self._silent or self.expired())
        self._fetching: dict[int, StopReason | None] = {}
        """Token → what it was told to stop for, before its body could begin."""
        self._in_hand: dict[int, int] = {}
        """Token → task of what was begun here and has not been told to have ended."""
        self._begun: dict[int, None] = {}
        self._held_back: list[Launch] = []
        self._since: dict[int, int] = {}
        """Token → when it was accepted, on the process's own clock."""
        self._chores: set[asyncio.Task[None]] = set()
        self._silent = False
        self._lives_until_us = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def joins(self, at: int) -> None:
        """It is `at` by the store's time now."""
        self.since = at
        self._stubborn.joined(at, self._clock.monotonic())

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
            full=self._full(claim),
            share=self.pressure.share,
            pressed=self.pressure.pressed,
            free=self.pressure.size,
            labels=self._settings.worker_labels,
            # Copied first: steps may be defined while this is asked from the lease's thread.
            steps={name: step.signature for name, step in dict(self._registry.steps).items()},
            flows={name: flow.signature for name, flow in dict(self._registry.flows).items()},
            draining=self.draining,
            in_flight=len(self._where),
            memory=self.pressure.memory,
            p99_us=self.pressure.p99_us,
            lag_us=self._lag_us(),
            progress=self._progress.notes(),
            stubborn=self._stubborn.notes,
            provision=self._settings.provision,
            since=self.since,
        )

    def _full(self, claim: int) -> tuple[str, ...]:
        """Executors that take nothing now: nearly full, or blocked by a body."""
        return tuple(sorted({*(() if claim < 0 else self.pressure.full), *self._blocked}))

    def _lag_us(self) -> int:
        own = 0 if self._loop_lag is None else self._loop_lag.worst_us()
        return max((own, *(each.lag_us() for each in list(self._executors.values()))))

    def describe_own(self, given: int, coming: Iterable[tuple[int, int]]) -> WorkerRow:
        """For the leader of this process, which starts tasks here without asking.

        `given`: how many it has given in its term; `coming`: (task, token) of those it has not launched
        yet. The claim is for its whole term: with it no more are begun than `max_tasks` allows.
        """
        row, room = self.describe(), self.room
        if room == NO_END:
            return row
        unbegun = sum(token not in self._begun for _, token in coming)
        return msgspec.structs.replace(row, claim=max(0, given + room - unbegun))

    @property
    def in_flight(self) -> int:
        """Accepted and not ended: also what its arguments are still being fetched for."""
        return len(self._where) + len(self._fetching)

    @property
    def room(self) -> int:
        """How many more tasks it may begin in its life."""
        return self._lifetime.room

    def accepting(self, count: int) -> bool:
        """So many are about to be begun (0: they have). Whether whoever offers must hear of it before.

        Towards the end of its life what was told allows for more than is left: each acceptance makes
        room for another offer, which would be refused, and come again, until the worker is gone.
        """
        self._lifetime.accepting(count)
        return count > 0 and self._less_is_left()

    def _less_is_left(self) -> bool:
        """Whether less may be offered from here on than was told. Asked once, it is told."""
        left = self._lifetime.offerable
        less = left < self._left_told
        self._left_told = left if less else self._left_told
        return less

    def ask(self) -> ClaimAsked:
        """What it would take now, under the pressure it feels."""
        steps = self._registry.steps
        if len(steps) != self._known_steps:
            self._known_steps = len(steps)
            self._kinds = frozenset(step.executor for step in steps.values())
        flying = {kind: each.in_flight for kind, each in self._executors.items()}
        used = self._kinds | flying.keys()
        permits = {kind: n for kind, n in self._permits.items() if kind in used}
        asked = self.pressure.claim(self._clock.monotonic(), flying, permits)
        blocked = tuple(kind for kind, each in self._executors.items() if each.take_back())
        changed, self._blocked = blocked != self._blocked, blocked
        return asked._replace(urgent=True) if self._less_is_left() or changed else asked

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

    def launch(self, launches: Iterable[Launch]) -> None:
        if self._silent or self.expired():
            # Accepted before this process was stopped, and others may run it by now. It begins with the
            # next renewal; if there is none, it is theirs.
            self._held_back += launches
            return
        for launch in launches:
            if launch.token in self._begun:
                # Its acceptance was repeated: an answer was lost, or it was offered in two ways at once.
                continue
            self._remember(launch.token)
            self._in_hand[launch.token] = launch.task
            self._lifetime.began()
            self.on_change()
            if has_blob(launch.call):
                self._fetching[launch.token] = None
                self._empty.clear()
                self._chore(self._fetch_and_start(launch))
            else:
                self._start(launch)

    def begun(self, token: int) -> bool:
        """Whether this attempt was begun here, also if it has ended since."""
        return token in self._begun

    def _remember(self, token: int) -> None:
        self._begun[token] = None
        if len(self._begun) > MOST_REMEMBERED + len(self._where):
            old = list(self._begun)[: MOST_REMEMBERED // 2]
            for each in old:
                if each not in self._where:
                    del self._begun[each]

    def _start(self, launch: Launch) -> None:
        step = self._registry.steps.get(launch.node.step)
        if step is None:
            self.refuse(
                launch.task, launch.token, f"this worker does not know step {launch.node.step}"
            )
            return
        job = Attempt(
            launch.task,
            launch.token,
            launch.run_id,
            step,
            launch.call,
            launch.node.timeout_us,
            launch.attempt,
            self._work_root.path,
            flow=launch.flow,
            worker=self.id,
            trace=launch.trace,
            progress=self._progress,
        )
        executor = self._executor(launch.node.executor)
        self._where[launch.token] = executor
        self._since[launch.token] = self._clock.monotonic()
        self._empty.clear()
        executor.start(job, self._ended)

    async def _fetch_and_start(self, launch: Launch) -> None:
        call: bytes | None = None
        why = ""
        try:
            call = await self._carrier.fetch(launch.call)
        except LocktenderError as error:
            why = f"an argument cannot be fetched: {error}"
        reason = self._fetching.pop(launch.token, None)
        if reason is not None:
            self._never_began(launch, reason)
        elif call is None:
            self.refuse(launch.task, launch.token, why)
        else:
            self._start(launch._replace(call=call))
        if not self.in_flight:
            self._empty.set()

    def _never_began(self, launch: Launch, reason: StopReason) -> None:
        """It was told to stop while its arguments were fetched: its body never runs."""
        state = TaskState.HANDED_BACK if reason in ("drain", "kill") else TaskState.CANCELLED
        self._tell(launch.task, launch.token, state, reason=reason)

    def refuse(self, task: int, token: int, message: str) -> None:
        """An accepted attempt that cannot be begun here fails."""
        error = _dump(Failure("internal", f"internal: {message}"))
        self._tell(task, token, TaskState.FAILED, error=error)

    def _executor(self, kind: str) -> Executor:
        executor = self._executors.get(kind)
        if executor is None:
            limit = self._settings.max_value_bytes
            setup = ExecutorSetup(
                self._permits[kind], self._clock, limit, self._inherited(),
                self._settings.loop_lag_us, self._metrics.held_loop,
            )  # fmt: skip
            executor = EXECUTORS[kind](setup)
            # From its first body on: this worker may freeze before the next renewal.
            executor.extend(self._lives_until_us)
            self._executors[kind] = executor
        return executor

    def _inherited(self) -> tuple[int, ...]:
        """Locks that say this worker lives: free only when its last child is gone too."""
        fd = None if self.live_fd is None else self.live_fd(self.id)
        return (self._work_root.lock_fd, *(() if fd is None else (fd,)))

    def stop(self, token: int, reason: StopReason) -> None:
        executor = self._where.get(token)
        if executor is not None:
            executor.stop(token, reason)
        elif token in self._fetching:
            self._fetching[token] = self._fetching[token] or reason

    def extend(self, deadline_us: int) -> None:
        """The lease was renewed: children may live until `deadline_us` (boot-time clock)."""
        self._lives_until_us = deadline_us
        held_back, self._held_back = self._held_back, []
        self.launch(held_back)
        for executor in self._executors.values():
            executor.extend(deadline_us)

    # -- ends --------------------------------------------------------------------------------------

    def _ended(self, job: Attempt, outcome: Outcome) -> None:
        self._where.pop(job.token, None)
        now = self._clock.monotonic()
        lasted_us = now - self._since.pop(job.token, now)
        self.pressure.finished(lasted_us)
        self._lifetime.ended()
        self.on_change()
        if not self.in_flight:
            self._empty.set()
        if self._silent:
            return
        handed_back = outcome.reason in ("drain", "kill")
        state = TaskState.HANDED_BACK if handed_back else outcome.state
        self._metrics.task_ended(job.step.name, state, lasted_us)
        if outcome.log is not None:
            self._chore(self._keep_log_and_end(job, outcome, state, outcome.log))
        else:
            self._end(job, outcome, state)

    async def _keep_log_and_end(
        self, job: Attempt, outcome: Outcome, state: str, lines: bytes
    ) -> None:
        """First what it logged: whoever sees the end finds the lines."""
        await self._logs.keep(LogRow(job.task, job.token, job.attempt, lines))
        self._end(job, outcome, state)

    def _end(self, job: Attempt, outcome: Outcome, state: str) -> None:
        output = outcome.output
        if output is not None and len(output) > self._settings.blob_over_bytes:
            self._chore(self._put_blob_and_deliver(job, output))
            return
        error = None if outcome.failure is None else _dump(outcome.failure)
        self._tell(job.task, job.token, state, output, error, outcome.reason or "")

    async def _put_blob_and_deliver(self, job: Attempt, output: bytes) -> None:
        try:
            ref = await self._carrier.put(output)
        except LocktenderError as error:
            failure = Failure("internal", f"internal: the result cannot be kept: {error}")
            self._tell(job.task, job.token, TaskState.FAILED, error=_dump(failure))
            return
        self._tell(job.task, job.token, TaskState.COMPLETED, ref)

    def _tell(
        self,
        task: int,
        token: int,
        state: str,
        output: bytes | None = None,
        error: bytes | None = None,
        reason: str = "",
    ) -> None:
        self._in_hand.pop(token, None)
        if not self._silent:
            self._deliver(End(task, token, state, output, error, reason, self.id))

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    # -- the end of the worker ---------------------------------------------------------------------

    def lose(self) -> list[int]:
        """The lease is lost: stop everything, tell nobody. Tokens of what cannot be stopped are returned."""
        self._silent = True
        for token in [*self._where, *self._fetching]:
            self.stop(token, "lease_lost")
        return [each.token for executor in self._executors.values() for each in executor.stopping()]

    async def emptied(self) -> None:
        """Returns when nothing runs."""
        await self._empty.wait()

    async def close(self, grace_us: int) -> list[int]:
        """Let what runs finish within `grace_us`, hand the rest back; returns what could not be ended."""
        self.draining = True
        for token in list(self._fetching):
            self.stop(token, "drain")
        left = await asyncio.gather(*(each.close(grace_us) for each in self._executors.values()))
        while self._chores:  # keeping a log may be followed by putting a blob away
            await asyncio.wait(self._chores)
        self.find_stubborn()
        return [token for tokens in left for token in tokens]

    def unfinished(self) -> list[tuple[int, int]]:
        """(task, token) of what was told to stop and still runs."""
        several = self._executors.values()
        return [(each.task, each.token) for executor in several for each in executor.stopping()]

    def in_hand(self) -> list[tuple[int, int]]:
        """(task, token) of all that was begun here and has not ended. Asked from any thread."""
        return [(task, token) for token, task in list(self._in_hand.items())]

    @property
    def has_children(self) -> bool:
        """Whether a body runs in a process of its own, which may outlive this one by a moment."""
        several = list(self._executors.values())
        return any(each.in_processes and each.in_flight > 0 for each in several)

    def find_stubborn(self) -> bool:
        """Look for attempts that do not stop; whether there are some that nobody has heard of yet."""
        told = [(kind, each) for kind, of in self._executors.items() for each in of.stopping()]
        return self._stubborn.look(self._clock.monotonic(), told)

    def outlives(self) -> bool:
        """After `close`: whether a body has outlived it. Asked from any thread, also when the loop is gone."""
        return any(executor.outlives() for executor in list(self._executors.values()))

    @property
    def work_root(self) -> Path:
        return self._work_root.path

    def empty_work_root(self, within: float = LAST_ACT_SECONDS) -> None:
        """Remove what bodies have in their work directories: the process ends right after it. From any thread."""
        self._work_root.empty(within)

    def forget(self) -> None:
        """Give up the work directories: nothing runs any more."""
        if self._loop_lag is not None:
            self._loop_lag.stop()
        self._work_root.close()
