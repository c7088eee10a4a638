"""What a killed leader left between two writes is continued: slots, clocks and ages are kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.worlds import graph, needs, run_row, step, worker_row

from locktender.base.changes import End, TaskRow
from locktender.base.graph import RetryPolicy
from locktender.base.ids import task_id
from locktender.base.limits import Limits, PoolRule
from locktender.base.model import Failure, RunRow
from locktender.base.states import RunState
from locktender.kernel.clock_jump import restore
from locktender.kernel.scheduler import Scheduler
from locktender.store import worker_changes

NOW = 10**15
LEASE = 40_000_000
BOOM = msgspec.json.encode(Failure("Boom", "as planned"))
TASK = task_id(1, 0)


def _running(**options: Any) -> RunRow:
    return msgspec.structs.replace(
        run_row(1, graph="flow", **options), state=RunState.RUNNING, started_at=NOW
    )


def _taken_up(row: TaskRow, now: int) -> Scheduler:
    lead = Scheduler(Limits(pools={"db": PoolRule(1, lease_us=LEASE)}), term=2, owner="next")
    lead.graphs = {"flow": graph(step(pools=needs(db=1)))}
    workers = [worker_row("w2", permits={"async": 5})]
    for _ in restore(lead, [_running()], [row], workers, [], now):
        pass
    return lead


def test_e5_slots_of_an_abandoned_attempt_survive_the_leader():
    """The worker was declared lost; the leader died before it wrote for how long its slots linger."""
    died = NOW + 5
    row = TaskRow(
        TASK, 0, -1, "abandoned", 1, 1, 1, token=7, worker="w1",
        requested_at=NOW, scheduled_at=NOW, started_at=NOW, ended_at=died,
    )  # fmt: skip
    lead = _taken_up(row, died + 10)

    assert lead.ledger.lingering == {(TASK, 7, "db"): (1, died + LEASE, "w1")}
    first = lead.cycle(died + 10)
    assert [order.task for order in first.commit.orders] == []
    assert first.commit.lingers
    after = lead.cycle(died + LEASE)
    assert [order.task for order in after.commit.orders] == [TASK]


@pytest.mark.parametrize("lost", [True, False], ids=["by the leader", "by its worker"])
def test_e5_handed_back_slots_linger_only_if_worker_lost(lost: bool):
    """A worker hands back what has ended; for a lost one nobody knows it but the pool's lease."""
    died = NOW + 5
    row = TaskRow(
        TASK, 0, -1, "handed_back", 1, 1, 0, token=7, worker="w1",
        requested_at=NOW, scheduled_at=NOW, started_at=NOW, ended_at=died,
        error=worker_changes.LEFT_BEHIND if lost else None,
    )  # fmt: skip
    lead = _taken_up(row, died + 10)

    assert lead.ledger.lingering == ({(TASK, 7, "db"): (1, died + LEASE, "w1")} if lost else {})
    first = lead.cycle(died + 10)
    assert [order.task for order in first.commit.orders] == ([] if lost else [TASK])
    later = lead.cycle(died + LEASE)
    assert [order.task for order in later.commit.orders] == ([TASK] if lost else [])
    assert lead.lifecycle.tasks[TASK].abandons == 0


@pytest.mark.parametrize(
    ("started_at", "goes_on_waiting"), [(NOW - 50, True), (NOW + 20, False)], ids=["offer", "run"]
)
def test_b7_what_was_only_offered_keeps_its_age_and_its_clock(
    started_at: int, goes_on_waiting: bool
):
    row = TaskRow(
        TASK, 0, -1, "handed_back", 1, 1, 0, 3, 7, "w1",
        requested_at=NOW, scheduled_at=NOW + 10, started_at=started_at, ended_at=NOW + 30,
        eligible_at=NOW + 1,
    )  # fmt: skip
    entry = _taken_up(row, NOW + 1_000).lifecycle.tasks[TASK]

    expected = (NOW, NOW + 1) if goes_on_waiting else (NOW + 1_000, 0)
    assert (entry.requested_at, entry.eligible_at) == expected


@pytest.mark.parametrize("state", ["failed", "timed_out", "handed_back"])
def test_a_commit_with_an_end_of_the_own_worker_is_awaited(state: str):
    lead = Scheduler(Limits(), term=1, owner="me")
    lead.graphs = {"flow": graph(step(retry=RetryPolicy(3)))}
    lead.put_worker(worker_row("w", permits={"async": 5}), local=True)
    lead.put_head(run_row(1, graph="flow"))
    [entry] = lead.cycle(NOW).starts
    error = None if state == "handed_back" else BOOM

    lead.ended(End(entry.id, entry.token, state, None, error), NOW + 1, local=True)
    commit = lead.cycle(NOW + 1).commit

    assert not commit.preparing
    assert lead.cycle(NOW + 2).commit.own_ends is False
