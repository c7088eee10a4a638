"""`why` of a run tells the steps in the middle of a line about what their own answers tell them."""

from __future__ import annotations

import pytest
from tests.support.worlds import graph, items, needs, numbers, run_row, step, worker_row

from locktender.base.clock import SECOND
from locktender.base.limits import Limits, PoolRule
from locktender.kernel.estimates import MAX_DURATIONS_PER_STEP
from locktender.kernel.reasons import Typical
from locktender.kernel.scheduler import Scheduler
from locktender.observe.why_executing import run_why, task_why

NOW = 10**15
LASTS = {"hold": 100, "short": 10, "middle": 10, "long": 1_000, "last": 10}
TYPICAL = Typical(
    holds={name: (seconds * SECOND,) * MAX_DURATIONS_PER_STEP for name, seconds in LASTS.items()}
)
CPU = needs(cpu=1)


@pytest.mark.parametrize("order", [("short", "long"), ("long", "short")])
def test_h1_a_run_and_its_tasks_are_told_the_same_wait(order: tuple[str, str]):
    first, second = (items(name, step=name, pools=CPU) for name in order)
    lead = Scheduler(Limits(pools={"cpu": PoolRule(1)}), term=1, owner="me")
    lead.graphs = {
        "held": graph(step("hold", pools=CPU), flow="held"),
        "mixed": graph(
            first, step("middle", pools=CPU), second, step("last", pools=CPU), flow="mixed"
        ),
    }
    lead.put_worker(worker_row("w", permits={"async": 100}), local=True)
    lead.put_head(run_row(1, graph="held"))
    lead.cycle(NOW + 1)
    lead.put_head(run_row(2, graph="mixed", consts=numbers(20)))
    lead.cycle(NOW + 2)
    run = lead.ledger.runs[2]

    whole = run_why(lead, run.row, None, TYPICAL, NOW + 100)

    assert whole is not None
    assert len(whole.waiting) == 4
    for group in whole.waiting:
        tasks = (task for task in run.tasks.values() if task.spec.name == group.step)
        alone = task_why(lead, min(task.id for task in tasks), None, TYPICAL, NOW + 100)
        assert alone is not None
        [told], [own] = group.reasons, alone.reasons
        assert told.estimate_us == pytest.approx(own.estimate_us, rel=0.1), group.step
        assert told.p90_us == pytest.approx(own.p90_us, rel=0.1), group.step
