"""Take-over: two servers and many active tasks; the one that leads is killed, the other reads everything again.

    python -m bench.take_over [--store sqlite|postgres] [--tasks 900000]

Reported: seconds from the kill until the new leader carries out a request, in how many terms, its longest pause
(its loop's, by its own metric-free probe: `/health`), and the memory of its process.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
from tests.support.cluster import Cluster, ClusterNode

from bench.report import Figure
from locktender import flow, step
from locktender.testing import eventually
from locktender.testing.overlap import Overlap
from locktender.testing.postgres_server import connected, copy_of, server, template

PER_RUN = 100_000
PATIENCE = "900s"
WATCH_SECONDS = 30.0


@step
async def wait_for_a_worker(number: int) -> int:
    return number


@flow
def many(count: int) -> list[int]:
    return wait_for_a_worker.map(list(range(count)))


@flow
def one() -> int:
    return wait_for_a_worker(1)


class _Pauses(threading.Thread):
    """Asks a server for its health without a break; the longest answer is the longest pause of its loop."""

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self._url = f"http://127.0.0.1:{node.said['port']}/health"
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.02):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=120) as answer:
                    answer.read()
            except OSError:
                pass  # it says 503 while it does not lead: an answer all the same
            self.longest = max(self.longest, time.monotonic() - began)

    def end(self) -> float:
        self._ended.set()
        self.join()
        return self.longest


def measure(store: str, tasks: int) -> dict[str, float]:
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        url = str(folder / "locktender.db")
        if store == "postgres":
            base = opened.enter_context(server(durable=True))
            url = opened.enter_context(copy_of(base, opened.enter_context(template(base))))
        cluster = Cluster(url, folder, Overlap(folder / "overlap.jsonl"))
        opened.callback(cluster.end)
        client = cluster.client()
        client.limits.set_max_concurrent_runs(-1)
        first = cluster.server().ready()
        for start in range(0, tasks, PER_RUN):
            client.submit(many, min(PER_RUN, tasks - start))
        eventually(lambda: count_rows(url, "task") >= tasks, PATIENCE, "every task")
        second = cluster.server().ready()
        before = _term(url)
        pauses = _Pauses(second)
        pauses.start()
        killed = time.monotonic()
        first.kill()
        client.submit(one)
        eventually(
            lambda: count_rows(url, "task") > tasks, PATIENCE, "the first cycle of a new leader"
        )
        seconds = time.monotonic() - killed
        time.sleep(WATCH_SECONDS)  # a leader that cannot renew its lease would lose it now
        client.submit(one)
        eventually(lambda: count_rows(url, "task") > tasks + 1, PATIENCE, "a later cycle")
        return {
            "seconds": seconds,
            "terms": _term(url) - before,
            "pause": pauses.end(),
            "mb": psutil.Process(second.pid).memory_info().rss / 2**20,
        }


def count_rows(url: str, table: str) -> int:
    return _ask(url, f"SELECT count(*) FROM {_table(url, table)}")


def _term(url: str) -> int:
    return _ask(url, f"SELECT term FROM {_table(url, 'leader')}")


def _table(url: str, table: str) -> str:
    return f"locktender.{table}" if "://" in url else table


def _ask(url: str, question: str) -> int:
    if "://" in url:

        async def ask() -> int:
            async with connected(url) as connection:
                return int(await connection.fetchval(question))

        return asyncio.run(ask())
    with closing(sqlite3.connect(url, timeout=60)) as db:
        return int(db.execute(question).fetchone()[0])


def _figures(store: str, tasks: int) -> list[Figure]:
    found = measure(store, tasks)
    what = f"take-over at {tasks:,} active tasks, {store}"
    return [
        Figure(f"{what}: seconds from the kill to the first cycle", found["seconds"], "s"),
        Figure(f"{what}: terms", found["terms"], ""),
        Figure(f"{what}: longest pause of the new leader's loop", found["pause"], "s"),
        Figure(f"{what}: memory of the new leader", found["mb"], "MB"),
    ]


def run() -> list[Figure]:
    """As many tasks as a benchmark of minutes has time for; the command line takes more."""
    return [*_figures("sqlite", PER_RUN), *_figures("postgres", PER_RUN)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--tasks", type=int, default=900_000)
    given = parser.parse_args()
    for figure in _figures(given.store, given.tasks):
        print(figure.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
