"""Rates over processes: several workers, a leader that dies in the middle, and no window with too many starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.failover import led
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store

from locktender.base.clock import SECOND
from locktender.testing import Overlap, eventually, load_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "dispatch_steps.py"
steps: Any = load(source(STEPS_FILE))
PER_SECOND, BURST, ITEMS = 20, 60, 120
SLOW = "1/1h"
"""The rate until a new leader leads: if that began with a full bucket, it would start the rest at once."""
WORKERS = 3


def too_many(times: list[int]) -> list[tuple[int, int]]:
    """Windows of any place and any length with more than the rate allows, as (microseconds, how many).

    The fullest windows begin and end with one of `times`: those are all there is to look at.
    """
    return [
        (window_us, last - first + 1)
        for first, begin in enumerate(times)
        for last, end in enumerate(times[first:], first)
        if (last - first + 1 - BURST) * SECOND > PER_SECOND * (window_us := end - begin)
    ]


@one_store("postgres")
def test_a_rate_holds_over_any_window_whoever_leads(
    cluster: Cluster, overlap: Overlap, record_property: Any
):
    client = cluster.client()
    client.pools.set("drip", rate=SLOW, burst=BURST)
    first = cluster.server(**KEPT).ready()
    eventually(lambda: led(cluster.url))
    others = [cluster.server(**KEPT), *(cluster.worker(STEPS_FILE, **KEPT) for _ in range(WORKERS))]
    for node in others:
        node.ready()

    run = client.submit(steps.drops, list(range(ITEMS)))
    eventually(lambda: overlap.count("drip") >= BURST, "120s")
    told = re.compile(r"pool drip: rate 1 per 1h.*the next goes in", re.DOTALL)
    eventually(lambda: told.search(str(run.why())))
    first.kill()
    lapse(cluster.url, first)
    eventually(lambda: len(led(cluster.url)) == 2 and decided(cluster.url), "120s")
    assert len(offered(cluster.url)) == BURST

    client.pools.set("drip", rate=f"{PER_SECOND}/1s", burst=BURST)
    assert run.result("120s") == list(range(ITEMS))
    assert len(led(cluster.url)) == 2
    offers = offered(cluster.url)
    granted = sorted(at for each in offers.values() for at in each)
    assert (len(offers), overlap.count("drip")) == (ITEMS, ITEMS)
    # When a body begins after its grant is its machine's matter: what the limit bounds are the grants.
    assert too_many(granted) == []
    record_property("seconds", (granted[-1] - granted[0]) / SECOND)


def decided(url: str) -> bool:
    """The last leader has committed a cycle: its first one records the limits in force."""
    subjects = [event.subject for event in load_history(url).events]
    return "limit" in subjects[len(subjects) - subjects[::-1].index("leader") :]


def offered(url: str) -> dict[int, list[int]]:
    """When the leader let each task go, in the store's time; again where nobody took it."""
    offers: dict[int, list[int]] = {}
    for event in load_history(url).events:
        if event.subject == "task" and event.after == "scheduled":
            offers.setdefault(event.task, []).append(event.at)
    return offers
