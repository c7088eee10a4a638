"""Chaos: servers and workers that die, stand still and lose their connections at random, under load.

    python -m tests.support.chaos --seconds 60 --seed 1 [--url postgresql://…]

`--url` names an empty database; without it a PostgreSQL is started for the time being. When the time
is over everybody may recover; then every acknowledged run must have ended right, no outcome may be
recorded twice, and neither the history nor the bodies' own records may show a limit exceeded. What was
done is printed as JSON, and the seed does it again, as far as the machine's own timing lets it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.support.cluster import Cluster, ClusterNode
from tests.support.failover import (
    END_BACKENDS,
    STEPS_FILE,
    Load,
    Watch,
    led,
    query,
    recorded_once,
    works,
)

from locktender.base.clock import SECOND
from locktender.testing.overlap import VARIABLE, Overlap
from locktender.testing.postgres_server import copy_of, server, template

SERVERS = 2
WORKERS = 3
SOME_BACKENDS = END_BACKENDS + " AND random() < 0.4"
Start = Callable[[], ClusterNode]
LEAST_KILLS = 2
LEASES: dict[str, str] = {
    "worker_lease": "5s",
    "heartbeat": "1s",
    "leader_lease": "4s",
    "leader_renew": "800ms",
}
"""Long enough for a process that is only slow, short enough to be lost by one that is stopped."""
MAX_STOPPED_SECONDS = 8.0


@dataclass
class Report:
    """What was done, and how it went."""

    seed: int
    seconds: float
    done: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    runs_during: int = 0
    """Those that ended while it went on."""
    terms: int = 0
    recovery_seconds: float = 0.0


class Chaos:
    def __init__(self, cluster: Cluster, overlap: Overlap, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._overlap = overlap
        self._chance = random.Random(seed)
        self._starts: list[Start] = [self._server] * SERVERS
        self._starts += [self._leading_worker, *[self._worker] * (WORKERS - 1)]
        self._nodes: list[ClusterNode] = [start() for start in self._starts]
        self._asleep: dict[int, float] = {}
        """Place of a stopped node → when it is woken."""
        for node in self._nodes:
            node.ready()

    def _server(self) -> ClusterNode:
        return self._cluster.server(**LEASES)

    def _worker(self) -> ClusterNode:
        return self._cluster.worker(STEPS_FILE, **LEASES)

    def _leading_worker(self) -> ClusterNode:
        return self._cluster.worker(STEPS_FILE, lead=True, **LEASES)

    def go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.done["kill"] < LEAST_KILLS:
            self._wake(time.monotonic())
            self._replace()
            self._strike()
            time.sleep(self._chance.uniform(0.1, 0.7))
        self._wake(float("inf"))
        self._replace()

    def _strike(self) -> None:
        place = self._chance.randrange(len(self._nodes))
        match self._chance.choices(["kill", "stop", "end all", "end some"], [4, 3, 1, 2])[0]:
            case "kill" if place not in self._asleep:
                self._count("kill", self._nodes[place])
                self._nodes[place].kill()
            case "stop" if place not in self._asleep and len(self._asleep) < 2:
                self._count("stop", self._nodes[place])
                self._nodes[place].pause()
                self._asleep[place] = time.monotonic() + self._chance.uniform(
                    0.2, MAX_STOPPED_SECONDS
                )
            case "end all":
                self.done["backends ended"] += self._end(END_BACKENDS)
            case "end some":
                self.done["backends ended"] += self._end(SOME_BACKENDS)
            case _:
                pass

    def _count(self, what: str, node: ClusterNode) -> None:
        self.done[what] += 1
        leads = (led(self._cluster.url) or [""])[-1]
        self.done[f"{what} of the leader"] += f"-{node.pid}-" in leads

    def _end(self, text: str) -> int:
        # Each run of `led` has connections of its own that may be among those ended.
        return len(query(self._cluster.url, text))

    def _wake(self, until: float) -> None:
        for place, at in list(self._asleep.items()):
            if at <= until:
                del self._asleep[place]
                self._nodes[place].resume()

    def _replace(self) -> None:
        for place, node in enumerate(self._nodes):
            if node.returncode is not None:
                self.done["ended by itself"] += node.returncode not in (-9, None)
                self._nodes[place] = self._starts[place]()


def torment(cluster: Cluster, overlap: Overlap, seconds: float, seed: int) -> Report:
    """Raises `AssertionError` for what was not as promised, beside what `cluster.close` finds."""
    # A leader whose listener is dead knows of what others did a poll later.
    cluster.slack_us = 2 * SECOND
    report = Report(seed, seconds)
    client = cluster.client()
    chaos = Chaos(cluster, overlap, seed)
    with Load(client) as load:
        chaos.go_on(seconds)
        report.runs_during = len(load.runs) - len(load.open)
        watch = Watch()
        works(client)
        report.recovery_seconds = round(watch.until(lambda: True), 2)
    load.check(overlap)
    recorded_once(cluster.url)
    report.done, report.runs = chaos.done, len(load.runs)
    report.terms = len(led(cluster.url))
    return report


@contextmanager
def _database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with server() as own, template(own) as name, copy_of(own, name) as made:
        yield made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path, help="Where logs and records are left.")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="locktender-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    overlap = Overlap(folder / "overlap.jsonl")
    os.environ[VARIABLE] = str(overlap.path)
    with _database(given.url) as url:
        cluster = Cluster(url, folder, overlap, grace="5s")
        try:
            report = torment(cluster, overlap, given.seconds, given.seed)
        except BaseException:
            cluster.end()
            sys.stderr.write(f"seed {given.seed}; logs and records are in {folder}\n")
            raise
        cluster.close()
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


if __name__ == "__main__":
    main()
