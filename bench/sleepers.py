"""Sleeping runs: what they cost a leader, and how late others are woken beside them.

    python -m bench sleepers                              100,000 on each store
    python -m bench.sleepers --on sqlite --count 10000

A server and a worker, as shipped but for the limit on concurrent runs. The runs begin, sleep for ten hours and are
rows then. Beside them 200 others sleep until instants of the next seconds; how late their next step begins is
measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from bench import cluster_steps as steps
from bench.cluster import cpu_seconds, fleet
from bench.report import Figure
from bench.take_over import count_rows
from locktender import Client, RunState
from locktender.testing import eventually
from locktender.testing.postgres_server import copy_of, server, template

COUNT = 100_000
BATCH = 5_000
REST_SECONDS = 6.0
SETTLE_SECONDS = 2.0
"""What ended just now is not what they cost."""
ALARMS = 200
ALARM_SECONDS = 4.0
PATIENCE = "900s"
STORES = ("sqlite", "postgres")


@contextmanager
def url_of(store: str) -> Generator[str]:
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        if store == "sqlite":
            yield str(folder / "locktender.db")
            return
        base = opened.enter_context(server(durable=True))
        yield opened.enter_context(copy_of(base, opened.enter_context(template(base))))


def share_of_a_core(pid: int, seconds: float = REST_SECONDS) -> float:
    """CPU of a process that is left alone, in percent."""
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began) * 100


def megabytes(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / 2**20


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def figures(store: str, count: int) -> list[Figure]:
    with url_of(store) as url:
        with fleet(url, 1) as (client, leader, _):
            idle_mb = megabytes(leader.pid)
            idle = share_of_a_core(leader.pid)
            began = time.monotonic()
            for first in range(0, count, BATCH):
                client.submit_many(steps.nap, [()] * min(BATCH, count - first))
            eventually(lambda: count_rows(url, "waiting") >= count, PATIENCE, "all asleep")
            rate = count / (time.monotonic() - began)
            time.sleep(SETTLE_SECONDS)
            held = sum(worker.in_flight for worker in client.workers.list())
            cpu = share_of_a_core(leader.pid) - idle
            grown = megabytes(leader.pid) - idle_mb
            late = lateness(client)
        with fleet(url, 1) as (_, second, _):
            taken_over = megabytes(second.pid) - idle_mb
    what = f"{store}, {count:,} sleeping runs"
    p99 = percentile(late, 0.99) * 1e3
    note = f"p50 {statistics.median(late) * 1e3:.0f} ms, {ALARMS} runs"
    return [
        Figure(f"{what}: begun and asleep", rate, "/s"),
        Figure("… permits they hold", held, "", "0", held == 0),
        Figure("… the leader's CPU above idle", cpu, "% of a core", "≤ 5", cpu <= 5),
        Figure("… its memory above idle", grown, "MB", "≤ 100", grown <= 100),
        Figure("… of a leader that took over", taken_over, "MB", "≤ 100", taken_over <= 100),
        Figure("… another is woken late, p99", p99, "ms", "≤ 100", p99 <= 100, note),
    ]


def lateness(client: Client) -> list[float]:
    """From the instant a run sleeps until to the start of its next step, in seconds."""
    start = datetime.now(UTC) + timedelta(seconds=3)
    instants = [start + timedelta(seconds=ALARM_SECONDS * n / ALARMS) for n in range(ALARMS)]
    runs = client.submit_many(steps.alarm, instants)
    eventually(lambda: runs[-1].status() not in (RunState.QUEUED, RunState.RUNNING), PATIENCE)
    begun = [run.result(PATIENCE) for run in runs]
    return [at - instant.timestamp() for at, instant in zip(begun, instants, strict=True)]


def run() -> list[Figure]:
    return [figure for store in STORES for figure in figures(store, COUNT)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=STORES, default="sqlite")
    parser.add_argument("--count", type=int, default=COUNT)
    given = parser.parse_args()
    for each in figures(given.on, given.count):
        sys.stdout.write(each.line() + "\n")
