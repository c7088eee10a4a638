"""A child process of a worker: `python -m locktender.worker.executors.child SOCKET DEADLINE PARENT`.

It runs one body at a time in its main thread, in a session of its own, so
that the worker can kill it with everything it started, and a Ctrl-C meant for
the worker does not reach it. It must never outlive the worker's right to run
the task, and finds that out by itself:

- when the worker dies, the kernel kills it (PR_SET_PDEATHSIG);
- a watchdog thread ends the whole group when the deadline in shared memory
  has passed (the worker is paused or cut off from its store), or when the
  parent is another than the one that started it.
"""

from __future__ import annotations

import contextvars
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import NoReturn

from locktender.base import open_files
from locktender.base.clock import SystemClock
from locktender.base.model import Failure
from locktender.base.names import did_you_mean
from locktender.observe import tracing
from locktender.worker.executors import child_cleanup, failures, logs, workdirs
from locktender.worker.executors.bodies import perform
from locktender.worker.executors.child_protocol import (
    READY,
    ChildReporter,
    Frames,
    Hello,
    Report,
    SharedDeadline,
    Work,
    decode_hello,
    decode_work,
)
from locktender.worker.executors.guard import descendants
from locktender.worker.executors.protocol import Attempt, Outcome, StepCode
from locktender.worker.executors.sources import MAIN_ALIAS, guarded, load

WATCHDOG_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1
_forking = threading.local()


def main(arguments: list[str]) -> None:
    socket_fd, deadline_fd, parent = (int(each) for each in arguments)
    die_with(parent)
    # A service manager may signal every process of a worker: only the worker decides what that means for
    # a body. A handler, not SIG_IGN: what a body starts must not inherit it.
    signal.signal(signal.SIGTERM, _ignore_sigterm)
    os.register_at_fork(
        before=_block_sigterm, after_in_parent=_unblock_sigterm, after_in_child=_end_by_sigterm
    )
    for fd in (socket_fd, deadline_fd):
        os.set_inheritable(fd, False)  # what a body starts has no business with these
    child_cleanup.adopt_orphans()
    deadline = SharedDeadline(deadline_fd)
    threading.Thread(
        target=watch, args=(parent, deadline), name="locktender-watchdog", daemon=True
    ).start()
    with socket.socket(fileno=socket_fd) as line, suppress(BrokenPipeError, ConnectionResetError):
        serve(line)


def _ignore_sigterm(_number: int, _frame: FrameType | None) -> None:
    return None


def _block_sigterm() -> None:
    """While a body forks: Python forgets what comes before the new process is ready."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _end_by_sigterm() -> None:
    """In what a body forks: the handler is not meant for it. One of the body's own is."""
    if signal.getsignal(signal.SIGTERM) is _ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock_sigterm()


def die_with(parent: int) -> None:
    """Ask the kernel to kill us when the parent's thread that started us ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):  # Linux
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # It may have died before we asked: then no signal comes.
    if os.getppid() != parent:
        end_group()


def watch(parent: int, deadline: SharedDeadline) -> None:
    clock = SystemClock()
    try:
        while os.getppid() == parent and not deadline.passed(clock.monotonic()):
            time.sleep(WATCHDOG_SECONDS)
    finally:
        # Also if it failed: nothing else would end this process when its worker is gone.
        end_group()


def end_group() -> NoReturn:
    try:
        for pid in descendants(os.getpid()):  # they may have sessions of their own
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    finally:
        os.killpg(0, signal.SIGKILL)
        os._exit(137)  # not reached: the group includes us


def serve(line: socket.socket) -> None:
    """Work until the worker closes the socket."""
    frames = Frames()
    reporter = ChildReporter(line)
    logs.install()
    hello: Hello | None = None
    while data := line.recv(1 << 18):
        for body in frames.feed(data):
            if hello is None:
                hello = decode_hello(body)
                prepare(hello)
                reporter.send(Report(READY))
            else:
                reporter.end(run(decode_work(body), hello, reporter))


def prepare(hello: Hello) -> None:
    open_files.give_back(hello.open_files)
    sys.path[:] = hello.sys_path
    if hello.log_level:
        logging.getLogger().setLevel(hello.log_level)
        logging.getLogger(logs.STEP_LOGGER).setLevel(hello.step_level)
    for source in hello.sources:
        # An import that fails is reported with the attempt that needs it, where a user sees it.
        with suppress(BaseException):
            load(source)
    # What a source sets up may switch off every logger that is there: ours is not its to silence.
    logging.getLogger(logs.STEP_LOGGER).disabled = False
    if hello.prints:
        logs.print_all(hello.log_level)
    if hello.own_level:
        logs.print_own(hello.own_level)


def run(work: Work, hello: Hello, reporter: ChildReporter) -> Report:
    root = None if work.work_root is None else Path(work.work_root)
    attempt: Attempt | None = None
    before = child_cleanup.snapshot()
    try:
        found = find(work, hello.steps)
        # What a module starts and sets when it is imported is there for every body.
        before = child_cleanup.snapshot()
        if isinstance(found, Failure):
            return Report(work.token, "failed", failure=found)
        attempt = Attempt(
            task=work.task,
            token=work.token,
            run_id=work.run_id,
            step=found,
            call=work.call,
            timeout_us=work.timeout_us,
            number=work.attempt,
            work_root=root,
            flow=work.flow,
            worker=work.worker,
            progress=reporter,
            reporter=reporter,
        )
        if work.timeout_us is not None:
            attempt.deadline_us = SystemClock().monotonic() + work.timeout_us
        reporter.begin(attempt)
        # A context of its own: nothing a body sets is seen by the next.
        outcome = contextvars.copy_context().run(_perform, attempt, work.trace, hello.max_result)
        return _report(work, outcome)
    except BaseException as error:  # noqa: BLE001 — an error of our own: the task fails, the child goes on
        return Report(work.token, "failed", failure=failures.internal(error))
    finally:
        if not child_cleanup.restore(before):
            reporter.spent = True
        if attempt is not None and attempt.has_workdir and root is not None:
            workdirs.remove(root, work.task, work.token)
        _flush()


def find(work: Work, steps: str) -> StepCode | Failure:
    """The step as this process knows it, or why it does not."""
    try:
        load(work.source)
    except BaseException as error:  # noqa: BLE001 — a module may even exit while it is imported
        return failures.of_exception(error, None)
    module, _, attribute = steps.partition(":")
    known: Mapping[str, StepCode] = attrgetter(attribute)(importlib.import_module(module))
    step = known.get(work.step)
    if step is None and work.source.main:
        # A script's steps are named after its file in the worker, after the alias it has here.
        step = known.get(f"{MAIN_ALIAS}:{work.step.partition(':')[2]}")
    if step is None:
        where = work.source.path or work.source.module
        return Failure(
            type="unknown_step",
            message=f"{where} defines no step {work.step!r}{_not_found_because(work, known)}",
        )
    return step


def _not_found_because(work: Work, known: Mapping[str, StepCode]) -> str:
    if guarded(work.source):
        return (
            " where another process imports it: what stands under if __name__ == '__main__': is not"
            " there then. Move the step out of it."
        )
    return f". {did_you_mean(work.step, known) or 'It defines no step at all.'}"


def _perform(attempt: Attempt, trace: str | None, max_result: int | None) -> Outcome:
    if trace is not None:
        tracing.enter_remote(trace)
    return perform(attempt, max_result)


def _report(work: Work, outcome: Outcome) -> Report:
    state = "failed" if outcome.state == "cancelled" else outcome.state
    return Report(work.token, state, outcome.output, outcome.failure)


def _flush() -> None:
    """What a body printed must not wait in a buffer that dies with us."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
