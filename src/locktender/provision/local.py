"""Workers as processes on this machine, started on overflow and ended with whoever started them.

Each is a `locktender worker … --with-parent` in a session of its own, so that a
Ctrl-C in the terminal does not reach it past us. It holds the reading end of a
pipe as its standard input, and we the other: when this process is gone,
however it ended, the pipe ends, and the worker drains and ends too. Until then
its row says what it is called, so that a leader elsewhere counts it.

What a worker prints goes to a file and not to us: it must be able to print
after we are gone. The last error in that of one that failed is the reason that
is told. The file is locked as long as the worker lives (`worker_logs.py`), so
that every other process that starts workers here lists it too, and knows when
it has gone. Only processes that were started here are ever signalled; their
numbers cannot be used again before we have reaped them.
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
from locktender.provision.worker_logs import WorkerLogs, last_words, shorten

log: logging.Logger = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-m", "locktender")
BY_VARIABLE = ("url", "work_dir", "provision")
"""Settings a worker gets by variables: everybody may read a command line, and a url may hold a password."""
REMEMBERED = 100
"""How many that ended are still listed."""
KILL_MARGIN_US = 10 * SECOND
"""Beyond its grace: then a worker that was told to end is killed."""
LOOK_SECONDS = 0.02


def worker_command(
    sources: Sequence[str],
    settings: Settings,
    given: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> list[str]:
    """The command of one worker.

    sources    as on the command line: `flows.py`, or `--app`, `shop.flows`
    given      settings that were set by flags, as text: what files and variables say it reads itself
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
        """`steps`: step → signature as a new worker would have them, where the same code is loaded here.

        `environment`: variables of a worker, over those of this process.
        """
        self._command = list(command)
        self._settings = settings
        self._steps = steps
        self._clock = clock or SystemClock()
        self._grace_us = settings.grace_us if grace_us is None else grace_us
        self._environment = dict(environment or {})
        self._logs = WorkerLogs(Path(settings.work_dir) / "workers", settings.url)
        self._children: dict[str, _Child] = {}
        self._ended: deque[Provisioned] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()
        """Starting happens in a thread: nothing may start once we are closed."""
        self._closed = False

    # -- the protocol ------------------------------------------------------------------------------

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        settings = self._settings
        if any(settings.worker_labels.get(label) != value for label, value in needs.items()):
            # Labels tell what a machine has: this one does not get a GPU by being asked for it.
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
            return await asyncio.to_thread(self._look)
        except RuntimeError:
            # Where a whole program ends there is no thread to be had any more.
            return self._look()

    async def release(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            self._tell_to_end(child)

    async def close(self) -> None:
        """Everybody drains; whoever has not ended a while after its grace is killed."""
        with self._lock:
            self._closed = True
        try:
            for child in self._living():
                self._tell_to_end(child)
            while self._living():
                await asyncio.sleep(LOOK_SECONDS)
                self._look()  # not in a thread: where a whole program ends there may be none to be had
        finally:
            # Also when nobody wants to wait any longer: nothing is left behind.
            for child in self._living():
                _kill(child)
                child.process.wait()
                self._bury(child)

    def _living(self) -> builtins.list[_Child]:
        return builtins.list(self._children.values())

    # -- one worker --------------------------------------------------------------------------------

    def _start(self, names: Sequence[str]) -> builtins.list[str]:
        """Who is there now; a name that was started before is not started again."""
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
                        log.warning("no more than %s: %s", counted(len(started), "worker"), error)
                        break
            started.append(name)
        return started

    def _start_one(self, name: str) -> _Child:
        values = (self._settings.url, self._settings.work_dir, name)
        told = zip(BY_VARIABLE, values, strict=True)
        variables = {f"{PREFIX}{key.upper()}": value for key, value in told}
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

    def _tell_to_end(self, child: _Child) -> None:
        # Once: the second SIGTERM would not let it finish what it runs.
        if child.released_at is None and child.process.poll() is None:
            child.released_at = self._clock.monotonic()
            with suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)

    def _look(self) -> builtins.list[Provisioned]:
        """Everybody as they are now, whoever started them; who has ended here is reaped and remembered."""
        alive: builtins.list[Provisioned] = []
        for child in self._living():
            if child.process.poll() is None:
                self._mind(child)
                where = f"pid {child.process.pid}, log {child.log}"
                alive.append(Provisioned(child.name, "running", child.since, where))
            else:
                self._bury(child)
        ended = builtins.list(self._ended)
        known = {each.name for each in (*alive, *ended)}
        return alive + ended + self._others(known)

    def _others(self, known: set[str]) -> builtins.list[Provisioned]:
        """Workers that other processes started on this machine for the same store.

        Of those that are gone nobody knows the exit code; they end with whoever started them.
        """
        return [
            Provisioned(name, "running" if lives else "ended", 0, f"log {path}")
            for name, path, lives in self._logs.others(known)
        ]

    def _mind(self, child: _Child) -> None:
        released, patience = child.released_at, self._grace_us + KILL_MARGIN_US
        if released is not None and self._clock.monotonic() - released > patience:
            log.warning("worker %s was told to end and has not: it is killed", child.name)
            _kill(child)
        shorten(child.log)

    def _bury(self, child: _Child) -> None:
        with self._lock:
            if self._children.pop(child.name, None) is None:
                return
        if child.process.stdin is not None:
            child.process.stdin.close()
        code = child.process.returncode
        well = code == 0 or (child.released_at is not None and code == -signal.SIGTERM)
        state: ProvisionedState = "ended" if well else "failed"
        detail = f"{_how(code)}{last_words(child.log, told=not well)}"
        if well:
            child.log.unlink(missing_ok=True)
        released = child.released_at is not None
        self._ended.append(Provisioned(child.name, state, child.since, detail, released))


def _kill(child: _Child) -> None:
    """Its whole session but what it put into sessions of their own: those end with their guard."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, signal.SIGKILL)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
