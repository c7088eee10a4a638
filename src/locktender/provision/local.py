"""Workers as processes on this machine; they end with the process that started them.

Each is a `locktender worker … --with-parent` in a session of its own, so that Ctrl-C
in the terminal does not reach it. Its standard input is a pipe whose other end this
process holds: when this process ends, in any way, the worker drains and ends too.

A worker prints to a file, so that it can print after this process has ended. The last
error in that file is the reason that is reported when the worker failed. The file is
locked while the worker lives (`worker_logs.py`), so that other processes on this
machine list it too. Only workers that this process started are signalled: their
process ids cannot be used again before they are reaped here.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import PREFIX, Settings
from locktender.base.errors import LocktenderError
from locktender.kernel.gate_names import counted
from locktender.provision.protocol import Capacity, Provisioned, ProvisionedState
from locktender.provision.worker_logs import WorkerLogs, last_error, shorten

log: logging.Logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "locktender")
BY_VARIABLE = ("url", "work_dir", "provision")
"""Settings passed as variables: every user can read a command line, and a url may hold a password."""
ENDED_LISTED = 100
"""How many ended workers are still listed."""
KILL_MARGIN_US = 10 * SECOND
"""After its grace, a released worker is killed."""
POLL_SECONDS = 0.02


def worker_command(
    sources: Sequence[str],
    settings: Settings,
    given: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> list[str]:
    """The command of one worker.

    sources    as on the command line: `flows.py`, or `--app`, `shop.flows`
    given      settings that flags set, as text; the worker reads files and variables itself
    """
    sets = {key.strip(): value for key, value in (given or {}).items()}
    sets["idle_exit"] = f"{settings.provisioned_idle_exit_us}us"
    for key in ("max_workers", *BY_VARIABLE):
        sets.pop(key, None)
    flags = [text for key, value in sets.items() for text in ("--set", f"{key}={value}")]
    return [*program, "worker", *sources, "--with-parent", *flags]


@dataclass(slots=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    since: int
    released_at: int | None = None


class LocalProvisioner:
    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        *,
        steps: Callable[[], Mapping[str, str]] | None = None,
        clock: Clock | None = None,
        grace_us: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        steps          step → signature of a new worker, if the same code is loaded here
        environment    variables of a worker, over those of this process
        """
        self._command = list(command)
        self._settings = settings
        self._steps = steps
        self._clock = clock or SystemClock()
        self._grace_us = settings.grace_us if grace_us is None else grace_us
        self._environment = dict(environment or {})
        self._logs = WorkerLogs(Path(settings.work_dir) / "workers", settings.url)
        self._children: dict[str, _Child] = {}
        self._ended: deque[Provisioned] = deque(maxlen=ENDED_LISTED)
        self._lock = threading.Lock()
        """Workers start in a thread: none may start after the close."""
        self._closed = False

    # -- the protocol ------------------------------------------------------------------------------

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        settings = self._settings
        if any(settings.worker_labels.get(label) != value for label, value in needs.items()):
            # Labels say what a machine has: requesting a GPU does not add one.
            return None
        steps = None if self._steps is None else dict(self._steps())
        return Capacity(
            settings.permits(), settings.total_permits, dict(settings.worker_labels), steps
        )

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> builtins.list[str]:
        if self.capacity(needs) is None:
            wanted = ", ".join(f"{label}={value}" for label, value in needs.items())
            raise LocktenderError(
                f"workers started on this machine have no {wanted}.",
                field="needs",
                got=dict(needs),
                hint="If this machine has it, say so: --label, or worker_labels in locktender.toml.",
            )
        log.info("starting %s %s", counted(n, "worker"), reason)
        return await asyncio.to_thread(self._start, names[:n])

    async def list(self) -> builtins.list[Provisioned]:
        try:
            return await asyncio.to_thread(self._poll)
        except RuntimeError:
            # While the interpreter shuts down no thread can start.
            return self._poll()

    async def release(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            self._terminate(child)

    async def close(self) -> None:
        """All workers drain; one that has not ended ten seconds after its grace is killed."""
        with self._lock:
            self._closed = True
        try:
            for child in self._living():
                self._terminate(child)
            while self._living():
                await asyncio.sleep(POLL_SECONDS)
                self._poll()  # not in a thread: none can start while the interpreter shuts down
        finally:
            # Also when the caller is cancelled: no worker is left behind.
            for child in self._living():
                _kill(child)
                child.process.wait()
                self._record_end(child)

    def _living(self) -> builtins.list[_Child]:
        return builtins.list(self._children.values())

    # -- one worker --------------------------------------------------------------------------------

    def _start(self, names: Sequence[str]) -> builtins.list[str]:
        """The names that run now; a name that was started before is not started again."""
        self._logs.tidy(self._children)
        started: builtins.list[str] = []
        for name in names:
            with self._lock:
                if self._closed:
                    break
                if name not in self._children:
                    try:
                        self._children[name] = self._start_one(name)
                    except OSError as error:
                        if not started:
                            raise
                        log.warning("started only %s: %s", counted(len(started), "worker"), error)
                        break
            started.append(name)
        return started

    def _start_one(self, name: str) -> _Child:
        values = (self._settings.url, self._settings.work_dir, name)
        given = zip(BY_VARIABLE, values, strict=True)
        variables = {f"{PREFIX}{key.upper()}": value for key, value in given}
        environment = {**os.environ, **self._environment, **variables}
        with self._logs.begun(name) as (path, out, lock):
            process = subprocess.Popen(  # noqa: S603 — our own program, or what the operator named
                self._command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
                pass_fds=(lock,),
            )
        return _Child(name, process, path, self._clock.now())

    def _terminate(self, child: _Child) -> None:
        # Once: a second SIGTERM would interrupt the steps that it still runs.
        if child.released_at is None and child.process.poll() is None:
            child.released_at = self._clock.monotonic()
            with suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)

    def _poll(self) -> builtins.list[Provisioned]:
        """All workers on this machine; children that ended are reaped."""
        alive: builtins.list[Provisioned] = []
        for child in self._living():
            if child.process.poll() is None:
                self._supervise(child)
                where = f"pid {child.process.pid}, log {child.log}"
                alive.append(Provisioned(child.name, "running", child.since, where))
            else:
                self._record_end(child)
        ended = builtins.list(self._ended)
        known = {each.name for each in (*alive, *ended)}
        return alive + ended + self._others(known)

    def _others(self, known: set[str]) -> builtins.list[Provisioned]:
        """Workers that other processes started; the exit code of one that ended is not known."""
        return [
            Provisioned(name, "running" if lives else "ended", 0, f"log {path}")
            for name, path, lives in self._logs.others(known)
        ]

    def _supervise(self, child: _Child) -> None:
        released, limit = child.released_at, self._grace_us + KILL_MARGIN_US
        if released is not None and self._clock.monotonic() - released > limit:
            log.warning("worker %s did not end in its grace: it is killed", child.name)
            _kill(child)
        shorten(child.log)

    def _record_end(self, child: _Child) -> None:
        with self._lock:
            if self._children.pop(child.name, None) is None:
                return
        if child.process.stdin is not None:
            child.process.stdin.close()
        code = child.process.returncode
        well = code == 0 or (child.released_at is not None and code == -signal.SIGTERM)
        state: ProvisionedState = "ended" if well else "failed"
        detail = f"{_how(code)}{last_error(child.log, with_path=not well)}"
        if well:
            child.log.unlink(missing_ok=True)
        released = child.released_at is not None
        self._ended.append(Provisioned(child.name, state, child.since, detail, released))


def _kill(child: _Child) -> None:
    """Its process group; its children are in groups of their own and end with their guard."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
