"""The Ray actor that owns one worker process.

It runs on a node of the cluster. Ray keeps what an actor is made with (in its control
store, for as long as the actor lives), so that is without secrets: the url of the
store comes with the call `start`, from process to process, and is kept nowhere else.

The worker is a process of its own: it is drained by a signal, ends hard when it must,
and what it does to its interpreter does not concern Ray. Its standard input is a pipe
of the actor, so it drains when the actor's process is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from locktender.provision.local import error_in

TAIL_BYTES = 64 << 10
MAX_ERROR_LENGTH = 800
COLLECT_SECONDS = 10.0
"""So long an actor whose worker has ended waits to be asked how; then it ends by itself."""


class WorkerActor:
    def __init__(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        start_seconds: float,
        grace_seconds: float,
    ) -> None:
        """
        words            of `locktender worker`
        variables        of the worker, without secrets
        start_seconds    without a call of `start` for so long, the actor ends: no leader waits for it
        grace_seconds    after `drain` the worker is killed if it has not ended by then
        """
        self._words = list(words)
        self._variables = dict(variables)
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._released = False
        self._end: tuple[str, str] | None = None
        """State and detail of a worker that has ended."""
        self._tail = bytearray()
        self._last = _timer(start_seconds, _leave)

    def start(self, secrets: Mapping[str, str]) -> None:
        """Starts the worker; a second call changes nothing."""
        with self._lock:
            if self._process is not None or self._end is not None:
                return
            self._last.cancel()
            command = [sys.executable, "-m", "locktender", "worker", *self._words, "--with-parent"]
            try:
                self._process = subprocess.Popen(  # noqa: S603 — our own program
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._variables, **secrets},
                    start_new_session=True,
                )
            except OSError as error:
                self._ended("failed", f"the worker did not start: {error}")
                return
        threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()

    def status(self) -> dict[str, Any]:
        process = self._process
        if self._end is not None:
            state, detail = self._end
        elif process is None:
            state, detail = "waiting", "waits for its url"
        else:
            state, detail = "running", f"pid {process.pid} on {os.uname().nodename}"
        return {"state": state, "detail": detail, "released": self._released}

    def drain(self) -> None:
        """The worker takes no more tasks, finishes those that it runs, and ends."""
        with self._lock:
            # Once: a second SIGTERM would interrupt the steps that it still runs.
            if self._released:
                return
            self._released = True
            if self._process is None:
                self._ended("ended", "released before it was started")
                return
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            _timer(self._grace_seconds, _kill, self._process)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Passes on what the worker prints, to the log that Ray keeps, until it has ended."""
        output = process.stdout
        while output is not None and (data := os.read(output.fileno(), 1 << 16)):
            self._tail += data
            del self._tail[:-TAIL_BYTES]
            with suppress(OSError):
                os.write(2, data)
        code = process.wait()
        well = code == 0 or (self._released and code == -signal.SIGTERM)
        said = error_in(bytes(self._tail).decode(errors="replace"))[:MAX_ERROR_LENGTH]
        how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        self._ended("ended" if well else "failed", f"{how}: {said}" if said else how)

    def _ended(self, state: str, detail: str) -> None:
        self._end = state, detail
        self._last = _timer(COLLECT_SECONDS, _leave)


def _timer(seconds: float, action: Any, *args: Any) -> threading.Timer:
    timer = threading.Timer(seconds, action, args)
    timer.daemon = True
    timer.start()
    return timer


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _leave() -> None:
    """Ends the actor's process; Ray frees what it held."""
    os._exit(0)
