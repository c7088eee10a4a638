"""Rates over processes: several workers, a leader that dies in the middle, and no window with too many starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headgate.stages.executors.sources import load
from headgate.testing import Overlap, eventually, load_history
from headgate.testing.cluster import Cluster
from headgate.testing.processes import source

pytest_plugins = ["headgate.testing.plugin", "headgate.testing.postgres"]

STEPS_FILE = Path(__file__).parents[1] / "dispatch_steps.py"
steps: Any = load(source(STEPS_FILE))
QUICK: dict[str, Any] = {"leader_lease": "1500ms", "leader_renew": "300ms"}
PER_SECOND, BURST, ITEMS = 20, 5, 100


def most_in(times: list[int], window_us: int) -> int:
    """The most of `times` in any window of that length: one that begins with one of them."""
    first = most = 0
    for last, at in enumerate(times):
        while times[first] <= at - window_us:
            first += 1
        most = max(most, last - first + 1)
    return most


def test_a_rate_holds_over_any_window_whoever_leads(cluster: Cluster, overlap: Overlap):
    client = cluster.client()
    client.pools.set("drip", rate=f"{PER_SECOND}/1s", burst=BURST)
    first = cluster.server(**QUICK).ready()
    for worker in [cluster.worker(STEPS_FILE) for _ in range(2)]:
        worker.ready()

    run = client.submit(steps.drops, list(range(ITEMS)))
    eventually(lambda: overlap.count("drip") > ITEMS // 4)
    text = str(run.why())
    assert f"pool drip: rate {PER_SECOND} per 1s" in text
    assert "the next goes in" in text
    first.kill()
    cluster.server(**QUICK).ready()

    assert run.result("60s") == list(range(ITEMS))
    offers = offered(cluster.url)
    granted = sorted(at for each in offers.values() for at in each)
    started = sorted(span.began_us for span in overlap.spans("drip"))
    assert (len(offers), len(started)) == (ITEMS, ITEMS)
    assert len({span.pid for span in overlap.spans("drip")}) == 2
    # a body begins after its last grant; how much later is the worker's (and their clocks differ by as much)
    taken = sorted(each[-1] for each in offers.values())
    delays = [begin - grant for begin, grant in zip(started, taken, strict=True)]
    late = max(delays) - min(delays)
    for window_us in (50_000, 200_000, 1_000_000, 2_000_000, 4_000_000):
        allowed = BURST + PER_SECOND * window_us // 1_000_000
        assert most_in(granted, window_us) <= allowed
        assert most_in(started, window_us) <= allowed + PER_SECOND * late // 1_000_000 + 1
    # and what the rate allows is used, the death of a leader included
    assert granted[-1] - granted[0] < (ITEMS / PER_SECOND + 8) * 1_000_000


def offered(url: str) -> dict[int, list[int]]:
    """When the leader let each task go, in the store's time; again where nobody took it."""
    offers: dict[int, list[int]] = {}
    for event in load_history(url).events:
        if event.subject == "task" and event.after == "scheduled":
            offers.setdefault(event.task, []).append(event.at)
    return offers
