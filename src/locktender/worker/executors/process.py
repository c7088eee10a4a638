"""Bodies in child processes: one child per permit, each in a session of its own.

With a shared pool one killed child fails every task in flight; here it fails
only the task it ran. Children are started when first needed, stay warm, and
get one body at a time over a socket. To stop a body its child is killed
with everything it started, and the outcome is delivered only when the child is gone:
so a freed permit always means that nothing of the attempt runs any more. (A
process that a body started in a session of its own *and* with an empty environment is
not found where something else kills the child, or the child dies with its worker.)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from locktender.base import open_files
from locktender.base.clock import Clock
from locktender.base.errors import InvalidInput
from locktender.base.limits import MAX_VALUE_BYTES
from locktender.base.model import Failure
from locktender.observe import tracing
from locktender.worker.executors import failures, workdirs
from locktender.worker.executors.attempts import BaseExecutor, RunningAttempt
from locktender.worker.executors.child_protocol import (
    READY,
    Hello,
    Report,
    SharedDeadline,
    Work,
    frame,
)
from locktender.worker.executors.children import UNREADABLE, Child
from locktender.worker.executors.guard import ChildGuard, end_marked
from locktender.worker.executors.logs import STEP_LOGGER, CapturedLines, prints_all, prints_own
from locktender.worker.executors.protocol import (
    Attempt,
    Done,
    Outcome,
    StopReason,
)
from locktender.worker.executors.sources import CodeSource, source_of

log: logging.Logger = logging.getLogger(__name__)

KILLED_WAIT_US = 5_000_000
"""How long killed children may take to be gone at close: only one stuck in the kernel takes any time."""
EXIT_HANDLERS_SECONDS = 2.0
"""How long idle children may take at close to run their exit handlers."""
STEPS = "locktender.flows.registry:registry.steps"


class ProcessExecutor(BaseExecutor):
    stop_wait_us: ClassVar[int] = KILLED_WAIT_US

    def __init__(
        self,
        permits: int,
        *,
        clock: Clock,
        keep_fds: Sequence[int] = (),
        max_result: int | None = MAX_VALUE_BYTES,
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
        # The lease outlives the children: its last renewals find none.
        if not self._closed:
            self._deadline.extend(deadline_us)

    def start(self, attempt: Attempt, done: Done) -> None:
        running = self._attempts.open(attempt, done)
        if running is None:
            return
        try:
            work = self._work(attempt)
            child = self._take_idle() or self._spawn(work.source)
        except InvalidInput as error:
            self._refuse(running, failures.not_importable(error))
            return
        except Exception as error:  # noqa: BLE001 — no memory, no descriptors, no processes
            self._refuse(running, failures.internal(error))
            return
        running.runner = child
        child.running = running
        if child.ready:
            self._attempts.arm(running)
        child.send(frame(work))

    def stop(self, token: int, reason: StopReason) -> None:
        running = self._attempts.request_stop(token, reason)
        if running is not None and running.runner is not None:
            running.runner.kill()

    def kill(self) -> None:
        super().kill()
        for child in self._children:
            child.kill()

    async def shut_down(self) -> None:
        for child in self._children:
            child.close_when_idle()
        last_call = self._loop.call_later(EXIT_HANDLERS_SECONDS, self.kill)
        await self._attempts.until(lambda: not self._children, KILLED_WAIT_US)
        last_call.cancel()
        self.kill()
        self._guard.close()
        self._closed = True
        self._deadline.close()

    def _refuse(self, running: RunningAttempt, failure: Failure) -> None:
        outcome = Outcome("failed", failure=failure)
        self._loop.call_soon(self._attempts.end, running, outcome)  # never from inside `start`

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
            open_files.at_start(),
        )
        child = Child(
            hello, self._deadline.fd, self._keep_fds, self._guard, self._receive, self._child_ended
        )
        try:
            self._guard.watch(
                child.pid, child.mark, {each.pid: each.mark for each in self._children}
            )
        except OSError as error:
            # Children also end by themselves; only what their bodies start may be left.
            log.warning("failed to start the guard of child processes: %s", error)
        self._children.add(child)
        return child

    def _work(self, attempt: Attempt) -> Work:
        step = attempt.step
        source = attempt.source or self._sources.get(step.name)
        if source is None:
            source = self._sources[step.name] = source_of(step.fn)
        root = None if attempt.work_root is None else str(attempt.work_root)
        trace = attempt.trace if attempt.span is None else tracing.parent_of(attempt.span)
        return Work(
            attempt.task, attempt.token, attempt.run_id, attempt.number, step.name, source, attempt.call, root,
            attempt.timeout_us, attempt.flow, attempt.worker, trace,
        )  # fmt: skip

    def _receive(self, child: Child, report: Report) -> None:
        running = child.running
        if report.token == READY:
            # The timeout is the body's: it does not count the start of a process.
            if running is not None:
                self._attempts.arm(running)
            return
        if report.state == "note":
            if running is not None and report.token == running.attempt.token:
                _keep_note(running.attempt, report)
            return
        if running is None or report.token != running.attempt.token:
            child.kill(UNREADABLE)  # a body wrote on our socket: nothing from it can be believed
            return
        _keep_note(running.attempt, report)
        late = "timeout" if report.state == "timed_out" else None
        outcome = Outcome(report.state, report.output, report.failure, late)
        if report.spent:
            self._retire(child, running, outcome)
            return
        child.running = None
        self._idle.append(child)
        self._attempts.end(running, outcome)

    def _retire(self, child: Child, running: RunningAttempt, outcome: Outcome) -> None:
        """A thread of the body still runs in this child: the permit is free when the child is gone."""
        child.outcome = outcome
        if running.timer is not None:
            running.timer.cancel()  # it ended in time
        child.close_when_idle()
        self._loop.call_later(EXIT_HANDLERS_SECONDS, child.kill)

    def _child_ended(self, child: Child, returncode: int) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        running, child.running = child.running, None
        if running is not None:
            crash = Outcome("failed", failure=failures.crashed(returncode, child.fault))
            outcome = child.outcome or crash
            if child.outcome is not None:
                running.attempt.stop_reason = None  # its body had ended before it was stopped
            self._attempts.end_after(partial(_clear, running.attempt, child.mark), running, outcome)
        self._attempts.wake()


def _clear(attempt: Attempt, mark: str) -> None:
    """What a child that was killed could not do itself: end what its body started, remove its directory.
    Both may take a while."""
    end_marked([mark])
    if attempt.work_root is not None and workdirs.exists(
        attempt.work_root, attempt.task, attempt.token
    ):
        workdirs.remove(attempt.work_root, attempt.task, attempt.token)


def _keep_note(attempt: Attempt, report: Report) -> None:
    """Log lines and progress of its body."""
    if report.log is not None:
        if attempt.lines is None:
            attempt.lines = CapturedLines()
        attempt.lines.add(report.log.lines, report.log.dropped)
    if report.progress is not None and attempt.progress is not None:
        attempt.progress.put(report.progress)
