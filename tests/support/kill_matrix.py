"""Kills processes between any two commits of flows that wait, and lets the flows end.

A flow is run once to count the commits of each process. Then it is run again for each of them: the process is
killed right after that commit, or right before it, and started again. On SQLite one process leads and works; on
PostgreSQL they are two. The client that submits and sends is killed, too.

    python -m tests.support.kill_matrix --on postgres --scenes topic,nightly [--moments after]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.cluster import Cluster, ClusterNode
from tests.support.kill_scenes import FEW, SCENES, STEPS_FILE, Case
from tests.support.leases import KEPT, lapse

from locktender import Client
from locktender.testing import eventually
from locktender.testing.overlap import VARIABLE, Overlap
from locktender.testing.postgres_server import copy_of, server, template

PROGRAM = str(Path(__file__).with_name("killed_at.py"))
PATIENCE_SECONDS = 180.0
MOMENTS = ("after", "before")
SENDER = "sender"
LOOK_SECONDS = 0.01
MANY = 5_000
LEASES: dict[str, Any] = {**KEPT, "heartbeat": "60s", "leader_renew": "60s"}
"""Renewals are commits, too: between those of a flow there is to be none."""


@dataclass(frozen=True)
class Kill:
    """Which process dies at which of its commits."""

    victim: str
    moment: str
    at: int

    def __str__(self) -> str:
        return f"{self.victim} {self.moment} {self.at}"


class KillMatrix:
    """One store with its processes. Each `play` is a new case of flows that are run on it."""

    def __init__(self, cluster: Cluster, folder: Path, overlap: Overlap, waiters: int = 1_000):
        self.roles: tuple[str, ...] = ("server", "worker") if "://" in cluster.url else ("engine",)
        self.killed: int = 0
        self._cluster = cluster
        self._folder = folder
        self._overlap = overlap
        self._waiters = waiters
        self._cases = 0
        self._playing = False
        self._failed: list[str] = []
        self._mortal: set[str] = set()
        self._nodes: dict[str, ClusterNode] = {}
        self._client: Client = cluster.client()
        # All waiters at once: what is repeated for each few of them need not be killed each time.
        self._client.limits.set_max_concurrent_runs(MANY)
        for tag, value in FEW.items():
            self._client.limits.set_tag(tag, value, limit=2)
        for role in (*self.roles, SENDER):
            self._file(role).write_text("")
        for role in self.roles:
            self._nodes[role] = self._start(role)
        for node in self._nodes.values():
            node.ready()
        eventually(lambda: any(each.flows for each in self._client.workers.list()), 90)

    @property
    def victims(self) -> tuple[str, ...]:
        return (*self.roles, SENDER)

    def play(self, scenes: Sequence[str], *kills: Kill) -> dict[str, int]:
        """Runs the flows and compares their results. How many commits each process made, if nobody was killed."""
        victims = {kill.victim: kill for kill in kills}
        # One of the last case may die only now: it had read its file before that was emptied.
        mortal, self._mortal = {*victims, *self._mortal}, set(victims)
        self._cases += 1
        name = f"c{self._cases}"
        for role in self.victims:
            self._file(role).with_name(self._file(role).name + ".count").write_text("")
            if not kills:
                self._file(role).write_text(f"{name} count")
            elif (kill := victims.get(role)) is not None:
                self._file(role).write_text(f"{name} {kill.moment} {kill.at}")
        revived = threading.Thread(target=self._keep_alive, args=(mortal,), daemon=True)
        self._playing = True
        revived.start()
        try:
            self._drive(name, scenes, killed=SENDER in victims)
            for scene in scenes:
                SCENES[scene][1](self._client, self._case(name, scene))
        except BaseException as error:
            error.add_note(
                f"case {name}: {', '.join(scenes)}; {[str(each) for each in kills]} in {self._folder}"
            )
            raise
        finally:
            for role in self.victims:
                self._file(role).write_text("")
            self._playing = False
            revived.join()
        assert not self._failed, self._failed
        return {role: self._counted(role) for role in self.victims}

    def kills(self, counted: dict[str, int], moments: Sequence[str] = MOMENTS) -> Iterator[Kill]:
        """Every place at which a process can die."""
        for victim, commits in counted.items():
            for moment in moments:
                for at in range(1, commits + 1):
                    yield Kill(victim, moment, at)

    def _case(self, name: str, scene: str) -> Case:
        return Case(f"{name}-{scene}", self._folder, self._waiters)

    def _drive(self, name: str, scenes: Sequence[str], *, killed: bool) -> None:
        """The client's part, started again when it was killed."""
        while True:
            with (self._folder / f"{name}-sender.log").open("ab") as log:
                process = self._sender(name, scenes, log)
                end = time.monotonic() + PATIENCE_SECONDS
                while process.poll() is None:
                    if time.monotonic() > end or self._failed:
                        process.kill()
                        process.wait()
                        raise AssertionError(f"the sender does not end {self._failed}")
                    time.sleep(LOOK_SECONDS)
            if process.returncode == 0:
                return
            if process.returncode != -9 or not killed:
                text = (self._folder / f"{name}-sender.log").read_text()[-3_000:]
                raise AssertionError(f"the sender failed: {process.returncode} {text}")
            self.killed += 1
            self._file(SENDER).write_text("")

    def _sender(self, name: str, scenes: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.kill_scenes", self._cluster.url),
                *(str(self._file(SENDER)), str(self._folder), str(self._waiters), name, *scenes),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    # -- processes

    def _file(self, role: str) -> Path:
        return self._folder / f"{role}.kill"

    def _counted(self, role: str) -> int:
        text = self._file(role).with_name(f"{role}.kill.count").read_text().split()
        return int(text[1]) if text else 0

    def _start(self, role: str) -> ClusterNode:
        program = (PROGRAM, str(self._file(role)))
        if role == "server":
            return self._cluster.server(program=program, **LEASES)
        lead = role == "engine"
        return self._cluster.worker(STEPS_FILE, lead=lead, program=program, **LEASES)

    def _keep_alive(self, victims: Container[str]) -> None:
        """Starts again who was killed."""
        while self._playing:
            for role, node in self._nodes.items():
                if node.returncode is None:
                    continue
                if node.returncode != -9 or role not in victims:
                    self._failed.append(f"{role} ended with {node.returncode}: {node.log[-3_000:]}")
                    return
                self.killed += 1
                self._file(role).write_text("")
                node.wait()
                lapse(self._cluster.url, node)
                self._nodes[role] = self._start(role).ready()
            time.sleep(LOOK_SECONDS)


def every_kill(
    matrix: KillMatrix, scene: str, victims: Sequence[str], moments: Sequence[str] = MOMENTS
) -> int:
    """The whole of a flow's matrix; how many cases there were."""
    counted = matrix.play([scene])
    cases = [kill for kill in matrix.kills(counted, moments) if kill.victim in victims]
    for kill in cases:
        matrix.play([scene], kill)
    return len(cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--victims", default="engine,server,worker,sender")
    parser.add_argument("--moments", default=",".join(MOMENTS))
    parser.add_argument("--waiters", type=int, default=1_000)
    given = parser.parse_args()
    for scene in given.scenes.split(","):
        folder = Path(tempfile.mkdtemp(prefix=f"locktender-kill-{scene}-"))
        overlap = Overlap(folder / "overlap.jsonl")
        os.environ[VARIABLE] = str(overlap.path)
        began = time.monotonic()
        with ExitStack() as opened:
            url = str(folder / "locktender.db")
            if given.on == "postgres":
                own = opened.enter_context(server())
                name = opened.enter_context(template(own))
                url = opened.enter_context(copy_of(own, name))
            cluster = Cluster(url, folder, overlap, grace="5s")
            try:
                matrix = KillMatrix(cluster, folder, overlap, given.waiters)
                cases = every_kill(
                    matrix, scene, given.victims.split(","), given.moments.split(",")
                )
            except BaseException:
                cluster.end()
                raise
            cluster.close()
        took = time.monotonic() - began
        sys.stdout.write(
            f"{given.on} {scene}: {cases} cases, {matrix.killed} killed, {took:.0f} s\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
