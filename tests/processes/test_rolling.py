"""Drain and rolling restart under load: no run fails, nothing is lost, no attempt is charged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.failover import Load
from tests.support.fleet import FILES, TIMEOUT, Measured, ask, ended, fleet, join, joined, pids
from tests.support.proxied import proxied
from tests.support.sampled import on_stores, one_store

from locktender import Run
from locktender.testing import Overlap, eventually, load_history

pytest_plugins = [
    "locktender.testing.plugin",
    "locktender.testing.postgres",
    "tests.support.shared_cluster",
]


def charges(cluster: Cluster, runs: Iterable[Run[Any]]) -> set[tuple[int, int]]:
    """(tries, abandons) of every task: what failures and lost workers have cost them."""
    numbers = [run.info().number for run in runs]
    found = [ask(cluster.url, lambda store, n=n: store.tasks(n)) for n in numbers]
    return {(row.tries, row.abandons) for rows in found for row in rows}


def cli(cluster: Cluster, *words: str) -> Any:
    """What a command answers, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "locktender", *words, "--url", cluster.url, "--json"],
        capture_output=True,
        timeout=90,
        check=True,
    )
    return json.loads(done.stdout)


@on_stores(
    "servers", {"servers": True, "lead": False}, {("postgres", "servers"), ("sqlite", "lead")}
)
def test_a_rolling_restart_under_load(
    cluster: Cluster, overlap: Overlap, measured: Measured, *, servers: bool
):
    """Everybody is replaced, one after another; with servers, or with workers that lead themselves."""
    leaders = [cluster.server() for _ in range(2)] if servers else []
    workers = [cluster.worker(*FILES, lead=not servers) for _ in range(2)]
    for node in (*leaders, *workers):
        node.ready()
    client = cluster.client()
    codes: list[int] = []
    with Load(client, every=0.15) as load:
        eventually(lambda: set(pids(overlap, "db")) == {node.pid for node in workers})
        for old in workers:
            join(cluster, lead=not servers)
            codes.append(old.close())
        for old in leaders:
            cluster.server().ready()
            codes.append(old.close())
        # they work on under who came
        seen = overlap.count("db")
        eventually(lambda: overlap.count("db") >= seen + 6 and len(load.runs) >= 5)
    load.check(overlap, at_least=5)

    assert codes == [0] * len(codes)
    assert charges(cluster, load.runs) == {(0, 0)}
    after = [event.after for event in load_history(cluster.url).events if event.subject == "task"]
    measured("runs", len(load.runs))
    measured("handed_back", after.count("handed_back"))
    assert after.count("failed") == after.count("abandoned") == 0


@one_store("postgres")
def test_what_is_not_finished_within_the_grace_runs_elsewhere(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, measured: Measured
):
    """One body of each kind, none of which may be retried; they begin anew on the other worker."""
    cluster.server().ready()
    first = join(cluster, grace="300ms", process_permits=1)
    client = cluster.client()
    latch = tmp_path / "latch"
    runs = [client.submit(fleet.held_and_more, how, str(latch)) for how in ("async", "process")]
    eventually(lambda: {"async", "process"} <= set(overlap.names()))
    second = join(cluster)

    began = time.monotonic()
    assert first.close() == 0
    measured("ended_after_s", round(time.monotonic() - began, 2))
    eventually(lambda: [overlap.count(how) for how in ("async", "process")] == [2, 2])
    latch.touch()

    assert [run.result(TIMEOUT) for run in runs] == [2, 2]
    assert charges(cluster, runs) == {(0, 0)}
    assert pids(overlap, "async") == [first.pid, second.pid]
    assert [overlap.peak(how) for how in ("async", "process")] == [1, 1]


@one_store("sqlite")
def test_a_second_sigterm_hands_back_at_once(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, measured: Measured
):
    cluster.server().ready()
    first = join(cluster, grace="1h")
    client = cluster.client()
    latch = tmp_path / "latch"
    run = client.submit(fleet.holding, str(latch), 3)
    eventually(lambda: overlap.count("held") == 1)

    name = joined(client, first)
    first.terminate()
    eventually(lambda: client.workers.get(name).draining)
    assert first.returncode is None  # it waits for what runs
    second = join(cluster)
    began = time.monotonic()
    first.terminate()
    assert first.wait() == 0
    measured("ended_after_s", round(time.monotonic() - began, 2))
    eventually(lambda: pids(overlap, "held") == [first.pid, second.pid])
    latch.touch()

    assert run.result(TIMEOUT) == 3
    assert charges(cluster, [run]) == {(0, 0)}
    changed = [event.after for event in run.events() if event.subject == "task"]
    assert changed.count("handed_back") == 1


@one_store("sqlite")
def test_a_worker_is_drained_from_the_command_line(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """It finishes what it has, takes nothing more, and stays until it is asked to end."""
    cluster.server().ready()
    first, second = join(cluster), join(cluster)
    client = cluster.client()
    latch = tmp_path / "latch"
    runs = [client.submit(fleet.holding, str(latch), n) for n in range(4)]
    eventually(lambda: overlap.count("held") == 4)

    name = joined(client, first)
    asked = cli(cluster, "workers", "drain", name)
    assert (asked["ids"], asked["leader"]) == ([name], True)
    eventually(lambda: client.workers.get(name).draining)
    runs += [client.submit(fleet.holding, str(latch), n) for n in range(4, 8)]
    eventually(lambda: overlap.count("held") == 8)
    shown = {worker["id"]: worker for worker in cli(cluster, "workers", "list")}
    assert [shown[each]["draining"] for each in (name, joined(client, second))] == [True, False]
    assert cli(cluster, "workers", "show", name)["steps"] == shown[name]["steps"]
    assert "fleet_steps:holding" in shown[name]["flows"]
    latch.touch()

    assert ended(runs) == {"succeeded"}
    assert pids(overlap, "held")[4:] == [second.pid] * 4
    assert first.returncode is None
    assert (first.close(), second.close()) == (0, 0)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_a_draining_worker_declines_what_is_offered_to_it(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """Its word that it drains is held up on the way, so the leader offers all the same: no attempt is charged."""
    server = cluster.server(offer_ttl="10m").ready()
    client = cluster.client()
    latch = tmp_path / "latch"
    with proxied(cluster.url, tmp_path / "proxy") as proxy:
        first = cluster.worker(
            *FILES, labels={"role": "lone"}, url=proxy.url, grace="10m", worker_lease="10m"
        ).ready()
        runs = [client.submit(fleet.lone_holding, str(latch), 1)]
        eventually(lambda: overlap.count("lone") == 1)
        proxy.stalled = True
        first.terminate()
        eventually(lambda: "drains" in first.log)
        runs.append(client.submit(fleet.lone_holding, str(latch), 2))
        eventually(lambda: [str(task.state) for task in runs[1].tasks()] == ["scheduled"])
        proxy.stalled = False

        eventually(lambda: "handed_back" in [event.after for event in runs[1].events()])
        eventually(lambda: offers(server)["declined"] == 1)
        why = "the only worker that could take it is draining because its process ends; 1 offer so far"
        eventually(lambda: why in str(runs[1].why()))
        second = cluster.worker(*FILES, labels={"role": "lone"}).ready()
        eventually(lambda: pids(overlap, "lone") == [first.pid, second.pid])
        latch.touch()
        assert first.wait() == 0
    assert [run.result(TIMEOUT) for run in runs] == [1, 2]
    (declined,) = [event for event in runs[1].events() if event.after == "handed_back"]
    assert (declined.before, declined.data["reason"]) == ("scheduled", "draining")
    assert [task.attempt for run in runs for task in run.tasks()] == [1, 1]
    assert charges(cluster, runs) == {(0, 0)}


def offers(server: ClusterNode) -> dict[str, float]:
    """What became of offers, by the server's own count."""
    with urllib.request.urlopen(f"{server.said['url']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("locktender_offers_total{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in found}
