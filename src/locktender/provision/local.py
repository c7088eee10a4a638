"""Workers as processes on this machine; they end with the process that started them.

Every process that starts workers on this machine for one store shares a folder of logs.
A worker's log is locked through a descriptor that only the worker keeps open: the
system releases the lock when the worker has ended, and not before. So any process
sees which workers live, also when the process that started them is gone. The file
gets its name only once it is locked, so a worker that is about to start is not taken
for one that has ended. Programs that a step starts do not inherit the lock.
"""

from __future__ import annotations

import asyncio
import builtins
import fcntl
import hashlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from locktender.base.clock import SECOND, Clock, SystemClock
from locktender.base.config import PREFIX, Settings
from locktender.base.errors import LocktenderError
from locktender.base.text import counted
from locktender.provision.protocol import Capacity, Provisioned, ProvisionedState

MAX_LOGS_KEPT = 50
MAX_LOG_BYTES = 8 << 20
TAIL_BYTES = 64 << 10
LAST_LINES = 8
MAX_ERROR_LENGTH = 800
CLI_ERROR = "error: "
RAISED = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The line below a traceback: the exception and its message."""


class WorkerLogs:
    def __init__(self, folder: Path, store: str) -> None:
        """One folder per store, so that workers of other stores are not listed."""
        self.folder: Path = folder / hashlib.sha256(store.encode()).hexdigest()[:8]

    @contextmanager
    def begun(self, name: str) -> Generator[tuple[Path, int, int]]:
        """(path, descriptor for output, lock) of a worker started within; removed if it is not started."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, unnamed = self.folder / f"{name}.log", self.folder / f"{name}.starting"
        out = os.open(unnamed, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            lock = os.open(unnamed, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                unnamed.rename(path)
                yield path, out, lock
            except BaseException:
                for each in (unnamed, path):
                    each.unlink(missing_ok=True)
                raise
            finally:
                os.close(lock)
        finally:
            os.close(out)

    def others(self, known: Collection[str]) -> Iterator[tuple[str, Path, bool]]:
        """(name, path, whether it lives) of each worker that is not in `known`."""
        for path in self.folder.glob("*.log"):
            if path.stem not in known:
                with suppress(FileNotFoundError):
                    yield path.stem, path, _is_locked(path)

    def tidy(self, known: Collection[str]) -> None:
        """Removes the oldest logs of workers that ended."""
        logs = sorted(self.folder.glob("*.log"), key=_changed_at)
        for path in logs[:-MAX_LOGS_KEPT]:
            with suppress(FileNotFoundError):
                if path.stem not in known and not _is_locked(path):
                    path.unlink()


def last_error(path: Path, *, with_path: bool) -> str:
    """The last error in a log, to follow the exit code."""
    try:
        text = _tail(path).decode(errors="replace")
    except OSError:
        return ""
    error = error_in(text)[:MAX_ERROR_LENGTH]
    where = f" (log: {path})" if with_path else ""
    return f": {error}{where}" if error else f" without output{where}"


def error_in(text: str) -> str:
    """The error that a program printed last, without its traceback.

    That is the exception and what our own command line says about it; else the last line.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip(" \t^~")][-LAST_LINES:]
    said = [line.removeprefix(CLI_ERROR) for line in lines if line.startswith(CLI_ERROR)][-1:]
    raised = [
        line for before, line in pairwise(lines) if before[0].isspace() and RAISED.match(line)
    ][-1:]
    if said and raised and raised[0] in said[0]:
        raised = []
    return "; ".join(raised + said or [line.strip() for line in lines[-1:]])


def shorten(path: Path) -> None:
    """A log that is too large keeps its end. The worker appends, so it continues after that."""
    try:
        if path.stat().st_size <= MAX_LOG_BYTES:
            return
        end = _tail(path)
        os.truncate(path, 0)
        with path.open("ab") as file:
            file.write(end)
    except OSError as error:
        log.warning("failed to shorten the log %s: %s", path, error)


def _is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES)


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
            log.warning("worker %s did not end within its grace period: it is killed", child.name)
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
