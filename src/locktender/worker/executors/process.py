"""Bodies in child processes: one child per permit, each in a session of its own.

With a shared pool one killed child fails every task in flight; here it fails
only the task it ran. Children are started when first needed, stay warm, and
are handed one body at a time over a socket. To stop a body its child is killed
with everything it started, and the outcome is told only when the child is gone:
so a freed permit always means that nothing of the attempt runs any more. (What
a body has put into a session of its own *and* given an environment made from
nothing is beyond our reach where its child dies by another hand, or with its worker.)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from locktender.base.clock import Clock
from locktender.base.errors import InvalidInput
from locktender.base.model import Failure
from locktender.observe import tracing
from locktender.worker.executors import failures, workdirs
from locktender.worker.executors.attempts import BaseExecutor, RunningAttempt
from locktender.worker.executors.capture import STEP_LOGGER, CapturedLines
from locktender.worker.executors.child_protocol import (
    READY,
    Hello,
    Report,
    SharedDeadline,
    Work,
    frame,
)
from locktender.worker.executors.children import NONSENSE, Child
from locktender.worker.executors.guard import ChildGuard, end_marked
from locktender.worker.executors.log_lines import prints_all, prints_own
from locktender.worker.executors.protocol import (
    MAX_RESULT_BYTES,
    Attempt,
    Done,
    Outcome,
    StopReason,
)
from locktender.worker.executors.sources import CodeSource, source_of

log: logging.Logger = logging.getLogger(__name__)

KILLED_WAIT_US = 5_000_000
"""How long killed children may take to be gone at close: only one stuck in the kernel takes any time."""
FAREWELL_SECONDS = 2.0
"""How long idle children may take at close to run their exit handlers."""
STEPS = "locktender.flows.registry:registry.steps"


class ProcessExecutor(BaseExecutor):
    in_processes: ClassVar[bool] = True
    stop_wait_us: ClassVar[int] = KILLED_WAIT_US

    def __init__(
        self,
        permits: int,
        *,
        clock: Clock,
        keep_fds: Sequence[int] = (),
        max_result: int | None = MAX_RESULT_BYTES,
        sources: Sequence[CodeSource] = (),
        steps: str = STEPS,
    ) -> None:
        """`keep_fds` stay open in every child. `sources` are imported by every child: needed for steps
        that are defined elsewhere than their function."""
        super().__init__(permits, clock)
        self._keep_fds = tuple(keep_fds)
        self._max_result = max_result
        self._steps = steps
        self._deadline = SharedDeadline()
        self._guard = ChildGuard(self._deadline.fd)
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        self._always = tuple(sources)
        self._sources: dict[str, CodeSource] = {}
        self._closed = False

    @property
    def pids(self) -> list[int]:
        return sorted(child.pid for child in self._children)

    def extend(self, deadline_us: int) -> None:
        """Children may live until `deadline_us` (boot-time clock): call it on each renewal of the lease."""
        # The lease outlives the children: its last renewals find nobody.
        if not self._closed:
            self._deadline.extend(deadline_us)

    def start(self, job: Attempt, done: Done) -> None:
        flight = self._attempts.open(job, done)
        if flight is None:
            return
        try:
            work = self._work(job)
            child = self._take_idle() or self._spawn(work.source)
        except InvalidInput as error:
            self._refuse(flight, failures.not_importable(error))
            return
        except Exception as error:  # noqa: BLE001 — no memory, no descriptors, no processes
            self._refuse(flight, failures.internal(error))
            return
        flight.vehicle = child
        child.flight = flight
        if child.ready:
            self._attempts.arm(flight)
        child.send(frame(work))

    def stop(self, token: int, reason: StopReason) -> None:
        flight = self._attempts.ask(token, reason)
        if flight is not None and flight.vehicle is not None:
            flight.vehicle.kill()

    def kill(self) -> None:
        super().kill()
        for child in self._children:
            child.kill()

    async def shut_down(self) -> None:
        for child in self._children:
            child.hang_up()
        last_call = self._loop.call_later(FAREWELL_SECONDS, self.kill)
        await self._attempts.until(lambda: not self._children, KILLED_WAIT_US)
        last_call.cancel()
        self.kill()
        self._guard.close()
        self._closed = True
        self._deadline.close()

    def _refuse(self, flight: RunningAttempt, failure: Failure) -> None:
        outcome = Outcome("failed", failure=failure)
        self._loop.call_soon(self._attempts.end, flight, outcome)  # never from inside `start`

    def _take_idle(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if not child.doomed:
                return child
        return None

    def _spawn(self, source: CodeSource) -> Child:
        hello = Hello(
            list(sys.path),
            self._steps,
            self._max_result,
            [*self._always, source],
            logging.getLogger().getEffectiveLevel(),
            logging.getLogger(STEP_LOGGER).getEffectiveLevel(),
            prints_all(),
            prints_own(),
        )
        child = Child(
            hello, self._deadline.fd, self._keep_fds, self._guard, self._heard, self._gone
        )
        try:
            self._guard.watch(
                child.pid, child.mark, {each.pid: each.mark for each in self._children}
            )
        except OSError as error:
            # The children's own nets hold without it; what their bodies start is less safe.
            log.warning("the guard of child processes cannot be started: %s", error)
        self._children.add(child)
        return child

    def _work(self, job: Attempt) -> Work:
        step = job.step
        source = job.source or self._sources.get(step.name)
        if source is None:
            source = self._sources[step.name] = source_of(step.fn)
        root = None if job.work_root is None else str(job.work_root)
        trace = job.trace if job.span is None else tracing.parent_of(job.span)
        return Work(
            job.task, job.token, job.run_id, job.attempt, step.name, source, job.call, root,
            job.timeout_us, job.flow, job.worker, trace,
        )  # fmt: skip

    def _heard(self, child: Child, report: Report) -> None:
        flight = child.flight
        if report.token == READY:
            # The timeout is the body's: it does not count the start of a process.
            if flight is not None:
                self._attempts.arm(flight)
            return
        if report.state == "note":
            if flight is not None and report.token == flight.job.token:
                _note(flight.job, report)
            return
        if flight is None or report.token != flight.job.token:
            child.kill(NONSENSE)  # a body wrote on our line: nothing from it can be believed
            return
        _note(flight.job, report)
        late = "timeout" if report.state == "timed_out" else None
        outcome = Outcome(report.state, report.output, report.failure, late)
        if report.spent:
            self._retire(child, flight, outcome)
            return
        child.flight = None
        self._idle.append(child)
        self._attempts.end(flight, outcome)

    def _retire(self, child: Child, flight: RunningAttempt, outcome: Outcome) -> None:
        """A thread of the body still runs in this child: the permit is free when the child is gone."""
        child.outcome = outcome
        if flight.timer is not None:
            flight.timer.cancel()  # it ended in time
        child.hang_up()
        self._loop.call_later(FAREWELL_SECONDS, child.kill)

    def _gone(self, child: Child, returncode: int) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        flight, child.flight = child.flight, None
        if flight is not None:
            crash = Outcome("failed", failure=failures.crashed(returncode, child.fault))
            outcome = child.outcome or crash
            if child.outcome is not None:
                flight.job.stop_reason = None  # its body had ended before anybody told it to
            self._attempts.end_after(partial(_clear, flight.job, child.mark), flight, outcome)
        self._attempts.wake()


def _clear(job: Attempt, mark: str) -> None:
    """What a child that was killed could not do itself: end what its body started, remove its directory.
    Both may take a while."""
    end_marked([mark])
    if job.work_root is not None and workdirs.exists(job.work_root, job.task, job.token):
        workdirs.remove(job.work_root, job.task, job.token)


def _note(job: Attempt, report: Report) -> None:
    """What a child tells of its body."""
    if report.log is not None:
        if job.lines is None:
            job.lines = CapturedLines()
        job.lines.add(report.log.lines, report.log.dropped)
    if report.progress is not None and job.progress is not None:
        job.progress.put(report.progress)
