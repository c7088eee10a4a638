"""Servers and workers as real processes, for tests that kill, pause and restart them.

A node is `locktender server` or `locktender worker` as a user would start it, with
its log in a file of its own. If the test itself dies, the nodes' standard input
ends and so do they.

    cluster = Cluster(url, folder, overlap)
    server, worker = cluster.server(), cluster.worker(Path("steps.py"))
    ...
    worker.kill()
    cluster.close()       # ends all and checks the history
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from locktender.base.clock import SECOND
from locktender.client.client import Client
from locktender.client.open import connect
from locktender.testing.history import SLACK_US, check_history
from locktender.testing.overlap import Overlap

PATIENCE_SECONDS = 90.0
UNHEARD_US = 20 * SECOND
"""A leader on a busy machine reads late what others did: the reasons that it gives are as old."""


class ClusterNode:
    """One process. Killed ones are marked in the records of the bodies."""

    def __init__(self, command: list[str], log: Path, overlap: Overlap) -> None:
        self._overlap = overlap
        self._log = log
        self.said: dict[str, Any] = {}
        """Its first line of output, as JSON: it is ready then."""
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> ClusterNode:
        """Waits until it serves: a worker has its lease, a server stands for election."""
        out = self._process.stdout
        line = b"" if out is None else out.readline()
        try:
            self.said = cast("dict[str, Any]", msgspec.json.decode(line))
        except msgspec.DecodeError:
            self.kill()
            raise AssertionError(f"it did not start: {line!r} {self.log[-3_000:]}") from None
        return self

    def kill(self) -> None:
        """SIGKILL. Returns when it is dead; again: nothing."""
        if self._process.poll() is None:
            self._overlap.kill(self.pid)
        self.wait()

    def pause(self) -> None:
        """SIGSTOP: it is paused, its leases go on. Its bodies no longer count as overlap."""
        self._overlap.pause(self.pid)

    def resume(self, *, until_noticed: bool = False) -> None:
        self._overlap.resume(self.pid, until_noticed=until_noticed)

    def noticed(self) -> None:
        """It was woken and knows that its lease was lost: its bodies count again."""
        self._overlap.noticed(self.pid)

    def terminate(self) -> None:
        """SIGTERM: it drains. Returns at once."""
        self._process.terminate()

    def close(self) -> int:
        """Lets it drain and end; its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Its exit code, when it has ended."""
        code = self._process.wait(PATIENCE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return code


class Cluster:
    """Nodes and clients on one store."""

    def __init__(self, url: str, folder: Path, overlap: Overlap, **settings: object) -> None:
        """`settings` are every node's."""
        self.url = url
        self._folder = folder
        self._overlap = overlap
        self._settings = settings
        self._nodes: list[ClusterNode] = []
        self._clients: list[Client] = []
        self.slack_us: int = SLACK_US
        """As `check_history` has it; without a wake-up a leader reads what others did a poll later."""

    def server(
        self,
        *,
        spawn: Path | None = None,
        provisioner: str | None = None,
        elastic: str | None = None,
        max_workers: int = 1,
        program: tuple[str, ...] = ("-m", "locktender"),
        **settings: object,
    ) -> ClusterNode:
        """A server on a port of its own choice (`said["port"]`).

        spawn          with workers for what overflows
        provisioner    with workers that somebody else starts, as the command line names it
        elastic        with workers of an engine: `[provisioner]` of the settings, as JSON
        """
        command = ["server", "--port", "0"]
        if spawn is not None:
            command += ["--spawn", str(spawn), "--max-workers", str(max_workers)]
        if provisioner is not None:
            command += ["--provisioner", provisioner, "--max-workers", str(max_workers)]
        if elastic is not None:
            command += ["--set", f"provisioner={elastic}", "--max-workers", str(max_workers)]
        return self._start(command, settings, program=program)

    def worker(
        self,
        *files: Path,
        lead: bool = False,
        labels: Mapping[str, str] | None = None,
        url: str | None = None,
        metrics: bool = False,
        program: tuple[str, ...] = ("-m", "locktender"),
        **settings: object,
    ) -> ClusterNode:
        """A worker with the steps of these files. `url`: its own way to the store, e.g. through a proxy.

        `metrics`: it serves `/health` and `/metrics` (`said["metrics"]`).
        """
        command = ["worker", *map(str, files), *(["--lead"] if lead else [])]
        command += ["--metrics-port", "0"] if metrics else []
        for label, value in (labels or {}).items():
            command += ["--label", f"{label}={value}"]
        return self._start(command, settings, url, program)

    def client(self) -> Client:
        client = connect(self.url)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Ends all and checks the history they leave."""
        self.end()
        check_history(self.url, slack_us=self.slack_us, unheard_us=UNHEARD_US)

    def end(self) -> None:
        for client in self._clients:
            client.close()
        for node in self._nodes:
            if node.returncode is None:
                node.resume()
            node.kill()

    def _start(
        self,
        command: list[str],
        settings: Mapping[str, object],
        url: str | None = None,
        program: tuple[str, ...] = ("-m", "locktender"),
    ) -> ClusterNode:
        given = {"work_dir": self._folder / "work", **self._settings, **settings}
        for key, value in given.items():
            command += ["--set", f"{key}={value}"]
        number = len(self._nodes)
        node = ClusterNode(
            [
                sys.executable,
                *program,
                *command,
                "--url",
                url or self.url,
                "--json",
                "--with-parent",
            ],
            self._folder / f"{command[0]}-{number}.log",
            self._overlap,
        )
        self._nodes.append(node)
        return node
