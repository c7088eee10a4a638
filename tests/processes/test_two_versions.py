"""Two versions of a flow alive at once: a run goes only to workers that have the version it was submitted with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.cluster import Cluster, ClusterNode
from tests.support.fleet import TIMEOUT, ask, ended, joined, pids
from tests.support.sampled import on_stores

from locktender import Client, Run
from locktender.testing import Overlap, eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

SHOP = """
import asyncio, sys
from pathlib import Path
from locktender import connect, flow, step
from locktender.testing import recording

async def opened(latch: str) -> None:
    while latch and not Path(latch).exists():
        await asyncio.sleep(0.002)

@step{options}
async def charge(order: int, latch: str{parameter}) -> str:
    with recording("charge-{name}", label=str(order)):
        await opened(latch)
    return "{name}"

@step
async def ship(paid: str) -> str:
    with recording("ship"):
        return paid + " shipped"

@flow
def sell(order: int, latch: str) -> str:
    return ship(charge(order, latch{argument}))

if __name__ == "__main__":
    url, latch, *orders = sys.argv[1:]
    with connect(url) as engine:
        print(*[engine.submit(sell, int(order), latch).id for order in orders])
"""


class Version(NamedTuple):
    """The same flow as it was once, or is now."""

    name: str
    file: Path

    def submit(self, client: Client, *orders: int, latch: str = "") -> list[Run[str]]:
        """From a process of its own: one process has one version of a step."""
        words = [sys.executable, str(self.file), client.settings.url, latch, *map(str, orders)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=True)
        return [client.runs.get(each) for each in done.stdout.split()]


@pytest.fixture
def versions(differ: str, tmp_path: Path) -> tuple[Version, Version]:
    """They differ in a parameter, or only in what their author calls them."""
    made: list[Version] = []
    for name in ("old", "new"):
        other = differ == "signature" and name == "new"
        file = tmp_path / name / "shop.py"
        file.parent.mkdir()
        file.write_text(
            SHOP.replace("{options}", f'(version="{name}")' if differ == "version" else "")
            .replace("{parameter}", ', currency: str = "EUR"' if other else "")
            .replace("{argument}", ', "USD"' if other else "")
            .replace("{name}", name)
        )
        made.append(Version(name, file))
    return made[0], made[1]


def knows(client: Client, node: ClusterNode) -> str:
    """The version of `charge` that a worker has announced."""
    return client.workers.get(joined(client, node)).steps["shop:charge"]


@on_stores(
    "differ",
    {"signature": "signature", "version": "version"},
    {("postgres", "signature"), ("sqlite", "version")},
)
def test_two_versions_at_once_and_a_rolling_deploy(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, versions: tuple[Version, Version]
):
    old, new = versions
    cluster.server().ready()
    client = cluster.client()
    client.limits.set_max_concurrent_runs(-1)
    nodes = [cluster.worker(each.file, grace="10m") for each in versions]
    before, after = (node.ready() for node in nodes)
    wanted, known = knows(client, before), knows(client, after)
    assert wanted != known
    flows = [client.workers.get(joined(client, node)).flows for node in nodes]
    assert [list(each) for each in flows] == [["shop:sell"]] * 2

    # each goes to its own, whoever is less busy
    runs = [*old.submit(client, *range(6)), *new.submit(client, *range(6))]
    assert [run.result(TIMEOUT) for run in runs] == ["old shipped"] * 6 + ["new shipped"] * 6
    assert set(pids(overlap, "charge-old")) == {before.pid}
    assert set(pids(overlap, "charge-new")) == {after.pid}

    # the old one drains: what it has begun ends there, what comes behind it anywhere
    latch = tmp_path / "latch"
    begun = old.submit(client, 10, 11, latch=str(latch))
    eventually(lambda: overlap.count("charge-old") == 8)
    name = joined(client, before)
    before.terminate()
    eventually(lambda: client.workers.get(name).draining)
    late = old.submit(client, 20)[0]
    eventually(lambda: "the only worker that could take it is draining" in str(late.why()))
    latch.touch()
    assert before.wait() == 0
    assert [run.result(TIMEOUT) for run in begun] == ["old shipped"] * 2
    assert new.submit(client, 21)[0].result(TIMEOUT) == "new shipped"

    # nobody has the old version any more: it waits, is offered to nobody, and says what it wants
    says = (
        f"the only worker cannot run step shop:charge in version {wanted}, which its run was"
        f" submitted with; it knows it in another version ({known})"
    )
    eventually(lambda: says in str(late.why()))
    (row,) = ask(cluster.url, lambda store: store.tasks(late.info().number))
    assert (row.state, row.attempt, row.offers) == ("requested", 0, 0)
    again = cluster.worker(old.file).ready()
    assert late.result(TIMEOUT) == "old shipped"
    assert pids(overlap, "charge-old")[-1] == again.pid
    assert {(task.attempt, str(task.state)) for run in begun for task in run.tasks()} == {
        (1, "completed")
    }
    assert ended([*runs, *begun, late]) == {"succeeded"}
    assert (after.close(), again.close()) == (0, 0)


@pytest.mark.parametrize("differ", ["signature", "version"])
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_one_process_has_one_version(cluster: Cluster, versions: tuple[Version, Version]):
    """Two files with a step of one name: it says so in place of starting."""
    worker = cluster.worker(*(each.file for each in versions))

    with pytest.raises(AssertionError, match="shop"):
        worker.ready()
    assert worker.returncode not in (None, 0)
