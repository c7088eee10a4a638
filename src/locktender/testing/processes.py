"""Engines in processes of their own, for tests that kill them.

The process imports the given files, opens `embedded(url, …)`, says *ready* and
works until its standard input ends (then it drains), or until it is killed. If
the test itself dies the input ends too: nothing is left behind.

    python -m locktender.testing.processes URL SETTINGS-AS-JSON FILE.py …
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from locktender.client.open import embedded
from locktender.testing.overlap import Overlap, stop
from locktender.worker.executors.sources import CodeSource, load

END_TIMEOUT_SECONDS = 90.0
READY = "ready"


class EngineProcess:
    """One engine in a process of its own. Its log lies beside the store's file."""

    def __init__(
        self, url: str | os.PathLike[str], *files: Path, overlap: Overlap, **settings: Any
    ) -> None:
        self._overlap = overlap
        self._log = Path(f"{os.fspath(url)}.{os.urandom(4).hex()}.log")
        command = [
            *(sys.executable, "-m", "locktender.testing.processes", os.fspath(url)),
            msgspec.json.encode(settings).decode(),
            *(str(each) for each in files),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 — this module, with our own interpreter
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    def ready(self) -> EngineProcess:
        """Waits until its worker has a lease."""
        out = self._process.stdout
        line = b"" if out is None else out.readline()
        if line.decode().strip() != READY:
            self.kill()
            raise AssertionError(f"the engine did not start: {self.log()[-2_000:]}")
        return self

    def kill(self) -> None:
        """SIGKILL, marked in the records of the bodies. Returns when it is dead; again: nothing."""
        if self._process.poll() is None:
            self._overlap.kill(self.pid)
        self._end()

    def pause(self) -> None:
        """SIGSTOP: it is paused, its leases go on."""
        stop(self.pid)

    def resume(self) -> None:
        """Lets a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> int:
        """Lets it drain and end; its exit code."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._end()

    def log(self) -> str:
        """What it has written to its log so far."""
        return self._log.read_text(errors="replace")

    def _end(self) -> int:
        code = self._process.wait(END_TIMEOUT_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return code


def source(file: Path) -> CodeSource:
    """How a file of steps is imported, here and in every engine process: then its steps have one name."""
    return CodeSource(file.stem, str(file.resolve()))


def main(url: str, settings: str, *files: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(process)d %(asctime)s %(message)s")
    for file in files:
        load(source(Path(file)))
    with embedded(url, **msgspec.json.decode(settings, type=dict[str, Any])):
        sys.stdout.write(READY + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
