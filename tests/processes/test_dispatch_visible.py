"""B10, B11 with real engines: an error costs one cycle, and full workers are visible before anything fails."""

from __future__ import annotations

import logging
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.steps import client_flows as flows
from tests.support.cluster import Cluster
from tests.support.stopping import pause_outside_of_a_write

from locktender import RunState
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.scheduler import Scheduler
from locktender.testing import Engines, Overlap, eventually, load_history
from locktender.testing.processes import source
from locktender.worker.executors.sources import load

pytest_plugins = ["locktender.testing.plugin"]

STEPS_FILE = Path(__file__).parents[1] / "steps" / "engine_steps.py"
steps: Any = load(source(STEPS_FILE))


def test_b11_a_failed_cycle_is_logged_and_the_next_runs(
    make_engine: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = make_engine()
    assert engine.submit(flows.doubled, 1).result(60) == 2
    real, broken = Scheduler.cycle, [True]

    def cycle(self: Scheduler, now: int) -> Cycle:
        if broken:
            broken.pop()
            raise RuntimeError("a fault of our own")
        return real(self, now)

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(Scheduler, "cycle", cycle)
        runs = [engine.submit(flows.doubled, n) for n in range(5)]

        assert [run.result(60) for run in runs] == [0, 2, 4, 6, 8]

    assert not broken
    assert "a fault of our own" in caplog.text


def test_b11_full_workers_are_visible_before_anything_fails(tmp_path: Path, overlap: Overlap):
    cluster = Cluster(str(tmp_path / "locktender.db"), tmp_path, overlap, grace="1s")
    try:
        server = cluster.server(max_concurrent_runs=-1, offer_ttl="500ms").ready()
        client = cluster.client()
        latch = tmp_path / "latch"
        runs = [client.submit(steps.hold, str(latch), n) for n in range(7)]

        # nobody works: the demand is told to whoever measures, whoever reads the log and whoever asks
        eventually(lambda: "locktender_demand_tasks 7.0" in metrics(server.said["port"]))
        eventually(lambda: "no worker is connected" in str(runs[0].why()))
        worker = cluster.worker(STEPS_FILE, async_permits=2).ready()
        eventually(lambda: overlap.count("held") == 2)
        eventually(lambda: "locktender_demand_tasks 5.0" in metrics(server.said["port"]))
        accepted = 'locktender_offers_total{outcome="accepted"} 2.0'
        eventually(lambda: accepted in metrics(server.said["port"]))
        eventually(lambda: "all async permits of 1 worker are in use" in str(runs[6].why()))
        started = r"cycle \d+: \d runs and \d tasks started, .* demand \d"
        eventually(lambda: re.search(started, server.log))

        # one that lives and does not answer: its offers are taken back, counted, and told
        pause_outside_of_a_write(worker, tmp_path / "locktender.db")
        latch.touch()
        quick = cluster.worker(STEPS_FILE, async_permits=1)
        quick.ready()
        assert {run.wait("60s") for run in runs[2:]} == {RunState.SUCCEEDED}
        worker.resume()
        assert {run.wait("60s") for run in runs} == {RunState.SUCCEEDED}
    except BaseException:
        cluster.end()
        raise
    cluster.close()


def test_b10_no_cycle_starts_more_than_its_share(make_engine: Engines):
    engine = make_engine(max_concurrent_runs=-1)
    engine.limits.set("max_starts_per_cycle", 3)
    engine.limits.pause()
    runs = engine.submit_many(flows.doubled, range(20))
    engine.limits.resume()

    assert [run.result(60) for run in runs] == [2 * n for n in range(20)]
    started: dict[tuple[int, int], int] = {}
    for event in load_history(engine).events:
        if event.subject == "task" and event.after == "scheduled":
            cycle = event.term, event.cycle
            started[cycle] = started.get(cycle, 0) + 1
    assert max(started.values()) <= 3
    assert sum(started.values()) == 20


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        body: bytes = answer.read()
    return body.decode()
