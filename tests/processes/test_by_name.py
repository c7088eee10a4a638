"""G6 over processes: a client without the code submits by name, and a worker that knows the flow traces it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster
from tests.support.leases import KEPT, lapse
from tests.support.sampled import one_store

from locktender import InvalidInput, NotFound, RunFailed, Submission
from locktender.testing import Overlap, eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

FILE = Path(__file__).parents[1] / "steps" / "named_steps.py"
TIMEOUT = "90s"
ORDERS = [{"item": "a"}, {"item": "b", "count": 4}]


@one_store("sqlite")
def test_g6_a_run_submitted_by_name_is_traced_by_a_worker(cluster: Cluster, overlap: Overlap):
    cluster.server(**KEPT).ready()
    worker = cluster.worker(FILE, **KEPT).ready()
    client = cluster.client()
    eventually(lambda: _announced(client, "shop bill"))

    run = client.submit("shop bill", {"orders": ORDERS}, key="one")
    assert run.result(TIMEOUT) == 3 + 12 + 10
    info = run.info()
    assert (info.flow, info.tags, info.priority) == ("shop bill", {"team": "shop"}, 4)
    tasks = run.tasks()
    assert tasks[0].name == "locktender:trace"
    assert {task.attempt for task in tasks} == {1}
    assert overlap.peak("price") <= 2
    assert {span.pid for span in overlap.spans("price")} == {worker.pid}

    # options of the call, keywords, many at once
    other = client.submit("shop bill", orders=ORDERS, extra=0, priority=9, tags={"tenant": "x"})
    assert other.result(TIMEOUT) == 15
    assert (other.info().priority, other.info().tags) == (9, {"team": "shop", "tenant": "x"})
    several = client.submit_many(
        "shop bill",
        [{"orders": []}, Submission(kwargs={"orders": ORDERS, "extra": 1}, key="many")],
    )
    assert [each.result(TIMEOUT) for each in several] == [10, 16]
    # the same key and the same arguments: the run that has them
    again = client.submit(
        "shop bill", {"orders": ORDERS}, key="one", on_duplicate="skip_if_finished"
    )
    assert again.id == run.id

    # what the flow's body raises fails the run with that error; it can be retried
    failed = client.submit("shop broken", {"n": 3})
    with pytest.raises(RunFailed, match="no bill for 3"):
        failed.result(TIMEOUT)
    failed.retry()
    with pytest.raises(RunFailed, match="no bill for 3"):
        failed.result(TIMEOUT)

    for given, field in (
        ({"orders": [{"item": 3}]}, "orders.0.item"),
        ({"orders": [{"count": 3}]}, "orders.0.item"),
        ({"orders": ORDERS, "extra": "x"}, "extra"),
        ({"orders": ORDERS, "mode": "c"}, "mode"),
        ({"order": ORDERS}, "order"),
        ({}, "orders"),
    ):
        with pytest.raises(InvalidInput) as refused:
            client.submit("shop bill", given)
        assert refused.value.field == field
    with pytest.raises(InvalidInput, match="go by name"):
        client.submit("shop bill", ORDERS)
    with pytest.raises(NotFound, match="Did you mean 'shop bill'"):
        client.submit("shop bil", {})

    # the command line: by the announced name, its arguments checked there too
    made = locktender(
        "submit", "shop bill", "--args", '{"orders": []}', "--arg", "extra=4", url=cluster.url
    )
    assert client.runs.get(made["id"]).result(TIMEOUT) == 4
    assert locktender("submit", "shop bil", url=cluster.url)["hint"] == "Did you mean 'shop bill'?"
    wrong = locktender("submit", "shop bill", "--arg", "orders=3", url=cluster.url)
    assert (wrong["field"], wrong["code"]) == ("orders", "invalid_input")

    # a flow that was announced can be submitted while no worker is there
    worker.kill()
    lapse(cluster.url, worker)
    waiting = client.submit("shop bill", {"orders": ORDERS})
    eventually(lambda: "no worker is connected" in str(waiting.why()), timeout=60)
    cluster.worker(FILE, **KEPT).ready()
    assert waiting.result(TIMEOUT) == 25


def test_g6_kill_of_worker_and_leader_loses_no_named_run(
    cluster: Cluster, overlap: Overlap, tmp_path: Path
):
    """The worker dies while it traces; the leader dies when the trace is done and before it goes on."""
    latch = tmp_path / "latch"
    server = cluster.server(**KEPT).ready()
    first = cluster.worker(FILE, **KEPT).ready()
    client = cluster.client()
    eventually(lambda: _announced(client, "shop slow trace"))
    run = client.submit("shop slow trace", {"latch": str(latch), "n": 2})
    eventually(lambda: len(overlap.spans("tracing")) == 1, timeout=60)
    first.kill()
    lapse(cluster.url, first)
    cluster.worker(FILE, **KEPT).ready()
    eventually(lambda: len(overlap.spans("tracing")) == 2, timeout=60)
    # Nobody leads when the trace ends: its row is all that the next leader finds.
    server.kill()
    latch.touch()
    eventually(lambda: str(run.tasks()[0].state) == "completed", timeout=60)
    assert len(run.tasks()) == 1
    lapse(cluster.url, server)
    cluster.server(**KEPT).ready()
    assert run.result(TIMEOUT) == 6
    assert [(task.name, task.attempt) for task in run.tasks()] == [
        ("locktender:trace", 2),
        ("price", 1),
    ]


def locktender(*words: str, url: str) -> dict[str, Any]:
    """What the command says, as JSON: its answer, or its error."""
    command = [sys.executable, "-m", "locktender", *words, "--url", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout or done.stderr)
    return said.get("error") or said


def _announced(client: Any, name: str) -> bool:
    try:
        client.submit(name, {"no such parameter": 1})
    except NotFound:
        return False
    except InvalidInput:
        return True
    raise AssertionError("an unknown parameter was accepted")
