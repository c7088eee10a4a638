"""B4 over processes: ceilings and keys are exact with many submitters, whatever changes meanwhile."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.fleet import FILES, ask

from locktender import Client
from locktender.observe.checker import Rejection
from locktender.store.protocol import Counts, Store
from locktender.testing import check_history, eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

CHILD = Path(__file__).parents[1] / "support" / "submitter.py"
PROCESSES = 3
EXPECTED = {"created", "rejected", "duplicate", "attached", "finished", "retry created"}
"""Every way to be answered."""
TURNS = 24


@contextmanager
def submitters(url: str, answered: Path) -> Generator[list[dict[str, Any]]]:
    """Processes that submit while the block runs; what they say is in the list after it."""
    said: list[dict[str, Any]] = []
    pipe = subprocess.PIPE
    command = [sys.executable, str(CHILD), url, str(answered)]
    children = [
        subprocess.Popen([*command, str(seed)], stdin=pipe, stdout=pipe)
        for seed in range(PROCESSES)
    ]
    try:
        for each in children:
            assert each.stdout is not None
            assert json.loads(each.stdout.readline())["ready"]
        yield said
        for each in children:
            out, _ = each.communicate(timeout=90)
            assert each.returncode == 0
            said.append(json.loads(out))
    finally:
        for each in children:
            each.kill()
            each.wait()


def restless(client: Client, answered: Path) -> None:
    """An operator who changes every limit that submissions are judged by, and cancels what he sees.

    Until every answer there is was given to somebody.
    """
    for count in itertools.count():
        if (
            count >= TURNS
            and answered.exists()
            and set(answered.read_text().split("\n")) >= EXPECTED
        ):
            return
        turn = count % 8
        client.limits.set_max_active((40, 25, 60, 30)[turn % 4])
        if turn == 1:
            client.limits.set_tag("tenant", per_value=True, max_active=9)
        elif turn == 3:
            client.limits.set_tag("tenant", "a", max_active=4)
        elif turn == 5:
            client.limits.set_fair("tenant")
        elif turn == 7:
            for name in ("tenant=*", "tenant=a", "fair"):
                client.limits.reset(name)
        for info in client.runs.list(status="queued", limit=3):
            client.runs.cancel(info.id)


async def counted(store: Store) -> Counts:
    return await store.counts()


def test_b4_ceilings_and_keys_are_exact_over_processes(
    cluster: Cluster, store_url: str, tmp_path: Path, record_property: Any
):
    client = cluster.client()
    client.limits.set_max_concurrent_runs(6)
    cluster.server().ready()
    cluster.worker(FILES[1]).ready()

    answered = tmp_path / "answered"
    with submitters(store_url, answered) as said:
        restless(client, answered)

    answers: Counter[str] = Counter()
    for each in said:
        answers.update(each["answers"])
    record_property("answers", dict(answers))
    assert answers.keys() >= EXPECTED
    # what was answered *created* is there, and nothing else; a rejection left no row
    eventually(
        lambda: not client.runs.list(status=["queued", "running", "cancelling"], limit=1), "90s"
    )
    created = {str(run) for each in said for run in each["created"]}
    stored = {info.id for info in client.runs.list(limit=100_000)}
    assert stored == created
    counts = ask(store_url, counted)
    assert counts.admitted[""] == counts.closed[""]
    # each rejection was true at the moment it names, and told a wait within its bounds
    found = [Rejection(*each) for one in said for each in one["rejections"] if each[-1]]
    assert found
    assert all(1_000_000 <= wait <= 3_600_000_000 for one in said for wait in one["waits"] if wait)
    check_history(store_url, rejections=found)
