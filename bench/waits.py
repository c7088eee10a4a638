"""Waits in small: sleepers, schedules, an event to many waiters, an event to one.

`python -m bench sleepers` has 100,000 of them. A server and a worker on PostgreSQL with fsync, as shipped but for
the limit on concurrent runs.
"""

from __future__ import annotations

import statistics
import time

from bench import cluster_steps as steps
from bench import sleepers
from bench.cluster import fleet
from bench.report import Figure
from bench.sleepers import SETTLE_SECONDS, share_of_a_core, url_of
from locktender import Client, RunState
from locktender.testing import eventually

SLEEPERS = 5_000
SCHEDULES = 1_000
WAITERS = 1_000
ROUNDS = 3
SENDS = 40
PATIENCE = "300s"
ACTIVE = ["queued", "running", "waiting"]


def run() -> list[Figure]:
    found = sleepers.figures("postgres", SLEEPERS)
    with url_of("postgres") as url, fleet(url, 1) as (client, leader, _):
        found += _schedules(client, leader.pid)
        found += [*_topic(client), *_answers(client)]
    return found


def _schedules(client: Client, leader: int) -> list[Figure]:
    """First of all: the leader audits what others do for some seconds after them."""
    idle = share_of_a_core(leader)
    for n in range(SCHEDULES):
        client.schedules.set(f"s{n}", "bench tick", {"n": n}, cron=f"{n % 60} * * * *")
    time.sleep(SETTLE_SECONDS)
    cpu = share_of_a_core(leader) - idle
    name = f"{SCHEDULES:,} hourly schedules: the leader's CPU above idle"
    note = f"idle {idle:.1f}"
    return [Figure(name, cpu, "% of a core", "≤ 1", cpu <= 1, note)]


def _topic(client: Client) -> list[Figure]:
    took: list[float] = []
    sent: list[float] = []
    for number in range(ROUNDS):
        topic = f"topic {number}"
        client.submit_many(steps.told, [topic] * WAITERS)
        eventually(lambda: len(client.events.waiting()) == WAITERS, PATIENCE, "all wait")
        began = time.perf_counter()
        client.events.send("news", topic, match={"topic": topic})
        sent.append(time.perf_counter() - began)
        eventually(lambda: not client.events.waiting(), PATIENCE, "all have it")
        eventually(lambda: not client.runs.list(status=ACTIVE, limit=1), PATIENCE, "all ended")
        took.append(time.perf_counter() - began)
    seconds = statistics.median(took)
    note = f"the call itself {statistics.median(sent) * 1e3:.0f} ms"
    name = f"an event to {WAITERS:,} waiting runs, until all have ended"
    return [Figure(name, seconds, "s", "≤ 1", seconds <= 1, note)]


def _answers(client: Client) -> list[Figure]:
    """In turns: an idle submit until its step begins, and an event until the step behind its wait begins."""
    submitted: list[float] = []
    answered: list[float] = []
    for n in range(SENDS):
        began = time.time()
        submitted.append(client.submit(steps.once, n).result(PATIENCE) - began)
        run = client.submit(steps.answered)
        eventually(lambda run=run: run.status() is RunState.WAITING, PATIENCE)
        began = time.time()
        run.send("go", n)
        answered.append(run.result(PATIENCE) - began)
    idle, woken = statistics.median(submitted) * 1e3, statistics.median(answered) * 1e3
    ratio = woken / idle
    note = f"{idle:.1f} ms -> {woken:.1f} ms"
    name = "send → the next step of a waiting run / an idle submit → its step, p50"
    return [Figure(name, ratio, "×", "≤ 1.5", ratio <= 1.5, note)]


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
