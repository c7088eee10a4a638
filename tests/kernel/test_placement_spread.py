"""D4: of equal workers each gets its share, also where one of them is in the leader's own process."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.worlds import (
    graph,
    items,
    numbers,
    run_row,
    settle,
    worker_row,
    world,
)

from locktender.base.clock import MILLISECOND
from locktender.base.limits import Limits
from locktender.base.states import TaskState
from locktender.kernel.scheduler import Scheduler

NOW = 10**15


@pytest.mark.parametrize("took", [1, 20, 400])
@pytest.mark.parametrize("permits", [-1, 100, 16, 2])
def test_d4_the_busiest_of_three_has_at_most_half_more(permits: int, took: int):
    sim = world(
        local=True,
        workers=3,
        permits={"async": permits},
        took=lambda draw, _node: draw.randint(took, 2 * took) * MILLISECOND,
    )
    sim.submit(graph(items()), consts=numbers(900))

    settle(sim)

    had = Counter(body.worker for body in sim.bodies)
    assert set(had) == {"w0", "w1", "w2"}
    assert max(had.values()) <= 1.5 * min(had.values())


def led() -> Scheduler:
    """A leader with its own worker, and three tasks that need its label."""
    made = Scheduler(Limits(), term=1, owner="me")
    made.graphs = {"flow": graph(items(needs={"disk": "fast"}))}
    made.put_worker(worker_row("own", labels={"disk": "fast"}), local=True)
    made.put_head(run_row(1, consts=numbers(3)))
    return made


def test_d4_alone_the_leaders_worker_starts_by_commit():
    lead = led()
    cycle = lead.cycle(NOW)
    assert len(cycle.starts) == 3
    assert cycle.commit.orders == []


def test_d4_beside_another_the_leaders_own_worker_gets_offers():
    lead = led()
    lead.put_worker(worker_row("other", labels={"disk": "fast"}))
    cycle = lead.cycle(NOW)
    assert cycle.starts == []
    assert {order.worker for order in cycle.commit.orders} == {"own", "other"}
    assert {entry.state for entry in lead.lifecycle.tasks.values()} == {TaskState.SCHEDULED}


@pytest.mark.parametrize("change", [{"draining": True}, {"steps": {}}, {"labels": {}}])
def test_d4_a_worker_that_cannot_take_the_task_changes_nothing(change: dict[str, object]):
    lead = led()
    lead.put_worker(worker_row("other", **({"labels": {"disk": "fast"}} | change)))
    assert len(lead.cycle(NOW).starts) == 3
