"""The ledger: what is held is released exactly once, whatever happens in between."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.worlds import graph, items, needs, run_row, step, worker_row

from locktender.base.graph import Graph
from locktender.base.limits import Fair, Limits, PoolRule, TagRule
from locktender.base.states import TaskState
from locktender.kernel.demand import first_of, lacking
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.ledger import Ledger

NOW = 10**15
DB = graph(step(pools=needs(db=1)), step("b", pools=needs(db=2)))


class Office:
    """A ledger with one worker and one executing run, fed by hand."""

    def __init__(self, flow: Graph = DB, limits: Limits | None = None, permits: int = 10) -> None:
        self.ledger = Ledger(limits or Limits(pools={"db": PoolRule(2)}))
        self.ledger.put_worker(worker_row("w", permits={"async": permits}), local=True)
        self.run = self.execute(1, flow)
        self.flow = flow
        self.tasks = 0

    def execute(self, seq: int, flow: Graph, **options: object) -> RunEntry:
        return self.ledger.add_run(run_row(seq, **options), flow, charged=False)

    def ask(self, node: int = 0, idx: int = -1, run: RunEntry | None = None) -> TaskEntry:
        self.tasks += 1
        owner = run or self.run
        task = TaskEntry(self.tasks, owner, node, idx, owner.graph.nodes[node])
        task.requested_at = NOW
        task.pools = tuple((need.name, need.slots) for need in task.spec.pools)
        self.ledger.enter(task)
        self.ledger.request(task)
        return task

    def go(self) -> list[TaskEntry]:
        started: list[TaskEntry] = []
        for task, worker, _ in self.ledger.decide_tasks(NOW, 1_000):
            task.worker, task.state, task.token = worker.id, TaskState.RUNNING, 100 + task.id
            started.append(task)
        return started

    def end(self, task: TaskEntry) -> None:
        self.ledger.release(task)
        self.ledger.forget(task)

    @property
    def used(self) -> int:
        return self.ledger.pool("db").used


def test_release_frees_pool_window_parallelism_and_permit():
    flow = graph(items(window=2, pools=needs(db=1)), max_parallel=5, max_parallel_by={"async": 4})
    office = Office(flow)
    tasks = [office.ask(idx=idx) for idx in range(3)]
    assert office.go() == tasks[:2]
    run, worker = office.run, office.ledger.workers.by_id["w"]
    gates = [run.windows[0], run.parallel, run.by_executor["async"], office.ledger.pool("db")]
    assert [gate.used for gate in gates if gate] == [2, 2, 2, 2]
    assert worker.used == 2
    office.end(tasks[0])
    assert [gate.used for gate in gates if gate] == [1, 1, 1, 1]
    assert worker.used == 1
    assert office.go() == [tasks[2]]


def test_a_retry_holds_nothing_while_it_waits():
    office = Office()
    first = office.ask()
    office.go()
    office.ledger.release(first)
    first.state, first.worker = TaskState.REQUESTED, None
    assert office.used == 0
    other = office.ask(node=1)  # needs both slots
    assert office.go() == [other]
    office.ledger.request(first)
    assert office.go() == []
    office.end(other)
    assert office.go() == [first]


def test_runs_without_gates_of_their_own_share_a_lane():
    office = Office()
    other = office.execute(2, DB)
    assert office.ask().lane is office.ask(run=other).lane


@pytest.mark.parametrize(
    "flow",
    [
        graph(step(), max_parallel=1),
        graph(items(window=1)),
        graph(step(), max_parallel_by={"async": 1}),
    ],
)
def test_runs_with_gates_of_their_own_do_not(flow: Graph):
    office = Office(flow)
    assert office.ask().lane is not office.ask(run=office.execute(2, flow)).lane


def test_a_rebuild_charges_work_above_a_lowered_limit():
    office = Office(limits=Limits(pools={"db": PoolRule(1)}))
    for number in (1, 2, 3):
        task = TaskEntry(number, office.run, 0, -1, office.run.graph.nodes[0])
        task.pools, task.worker, task.state = (("db", 1),), "w", TaskState.RUNNING
        office.ledger.enter(task)
        office.ledger.hold(task)
    assert office.used == 3
    assert office.ledger.workers.by_id["w"].used == 3
    office.tasks = 3
    office.ask()
    assert office.go() == []


# -- slots that outlive their worker ---------------------------------------------------------------


def leased(**leases: int) -> Limits:
    return Limits(
        pools={name: PoolRule(2, lease_us=lease or None) for name, lease in leases.items()}
    )


def test_e5_slots_of_a_lost_worker_linger():
    office = Office(limits=leased(db=60))
    task = office.ask(node=1)
    office.go()
    assert office.ledger.release_lost(task, NOW, NOW + 10) == [NOW + 60]
    assert office.used == 2
    assert office.ledger.lingering == {(task.id, task.token, "db"): (2, NOW + 60, "w")}
    office.ledger.end_lingering(task.id, NOW + 59)
    assert office.used == 2
    office.ledger.end_lingering(task.id, NOW + 60)
    assert office.used == 0
    office.ledger.end_lingering(task.id, NOW + 99)
    assert office.used == 0  # exactly once


def test_every_pool_lingers_by_its_own_lease():
    flow = graph(step(pools=needs(long=1, none=1, short=1)))
    office = Office(flow, leased(long=100, short=20, none=0))
    task = office.ask()
    office.go()
    assert sorted(office.ledger.release_lost(task, NOW, NOW + 10)) == [NOW + 20, NOW + 100]
    used = {name: pool.used for name, (pool, *_) in office.ledger.slot_gates.items()}
    assert used == {"long": 1, "short": 1, "none": 0}
    office.ledger.end_lingering(task.id, NOW + 20)
    assert office.ledger.pool("short").used == 0
    assert office.ledger.pool("long").used == 1


def test_a_lease_that_has_passed_already_lingers_no_more():
    office = Office(limits=leased(db=60))
    task = office.ask()
    office.go()
    assert office.ledger.release_lost(task, NOW, NOW + 60) == []
    assert office.used == 0


def test_two_lost_attempts_each_free_their_own_slots():
    office = Office(limits=leased(db=60))
    task = office.ask()
    office.go()
    office.ledger.release_lost(task, NOW, NOW + 10)
    task.state = TaskState.REQUESTED
    office.ledger.request(task)
    office.go()
    task.token += 1
    office.ledger.release_lost(task, NOW + 30, NOW + 40)
    assert office.used == 2
    office.ledger.end_lingering(task.id, NOW + 60)
    assert office.used == 1
    office.ledger.end_lingering(task.id, NOW + 90)
    assert office.used == 0


# -- runs ------------------------------------------------------------------------------------------


def started(ledger: Ledger) -> list[int]:
    runs: list[int] = []
    for head in ledger.decide_runs(NOW, 100):
        runs.append(head.id)
        ledger.add_run(head.row, DB, charged=True)
    return runs


def test_e1_the_run_gate_counts_executing_runs():
    ledger = Ledger(Limits(max_concurrent_runs=2))
    for seq in range(1, 6):
        ledger.put_head(run_row(seq))
    assert started(ledger) == [1, 2]
    ledger.set_limits(Limits(max_concurrent_runs=-1, runs_paused=True))
    ledger.end_run(1)
    assert started(ledger) == []
    ledger.set_limits(Limits(max_concurrent_runs=-1))
    assert started(ledger) == [3, 4, 5]


def test_e2_later_tag_rules_count_executing_runs():
    ledger = Ledger(Limits(max_concurrent_runs=-1))
    for seq in range(1, 4):
        ledger.put_head(run_row(seq, tags={"tenant": "acme"}))
    assert started(ledger) == [1, 2, 3]
    ledger.put_head(run_row(4, tags={"tenant": "acme"}))
    ledger.put_head(run_row(5))
    rule = TagRule("tenant", per_value=True, limit=2)
    ledger.set_limits(Limits(max_concurrent_runs=-1, tags=(rule,)))
    assert started(ledger) == [5]  # untagged runs are exempt
    ledger.end_run(1)
    assert started(ledger) == []
    ledger.end_run(2)
    assert started(ledger) == [4]
    ledger.put_head(run_row(6, tags={"tenant": "acme"}))
    assert started(ledger) == []
    ledger.set_limits(Limits(max_concurrent_runs=-1))
    assert started(ledger) == [6]


def test_e2_a_paused_tag_holds_its_runs_only():
    paused = TagRule("team", "red", paused=True)
    ledger = Ledger(Limits(tags=(paused,)))
    ledger.put_head(run_row(1, tags={"team": "red"}))
    ledger.put_head(run_row(2, tags={"team": "blue"}))
    assert started(ledger) == [2]
    ledger.set_limits(Limits(tags=(msgspec.structs.replace(paused, paused=False),)))
    assert started(ledger) == [1]


def test_a_fair_key_set_while_runs_wait_shares_from_then_on():
    ledger = Ledger(Limits(max_concurrent_runs=1))
    for seq in range(1, 6):
        ledger.put_head(run_row(seq, tags={"tenant": "crowd"}))
    ledger.put_head(run_row(6, tags={"tenant": "late"}))
    assert started(ledger) == [1]
    ledger.set_limits(Limits(max_concurrent_runs=1, fair=Fair("tenant")))
    order: list[int] = []
    for running in (1, 2, 6):
        ledger.end_run(running)
        order += started(ledger)
    assert order == [2, 6, 3]


def test_a_run_that_replaces_another_waits_until_that_has_ended():
    ledger = Ledger(Limits())
    ledger.put_head(run_row(1, key="k"))
    assert started(ledger) == [1]
    ledger.put_head(run_row(2, key="k", waits_for=1))
    assert started(ledger) == []
    ledger.end_run(1)
    assert started(ledger) == [2]


def test_a_queued_run_that_is_dropped_leaves_no_trace():
    ledger = Ledger(Limits(max_concurrent_runs=1))
    for seq in (1, 2, 3):
        ledger.put_head(run_row(seq))
    ledger.put_head(run_row(4, waits_for=1))
    ledger.drop_head(1)
    ledger.drop_head(4)
    assert started(ledger) == [2]
    ledger.end_run(2)
    ledger.end_run(1)
    assert started(ledger) == [3]


def test_a_head_that_is_put_again_stands_in_line_once():
    ledger = Ledger(Limits())
    for _ in range(3):
        ledger.put_head(run_row(1))
    assert started(ledger) == [1]
    assert started(ledger) == []


def test_gates_of_tag_values_that_are_gone_are_forgotten():
    """Nothing grows without end: ten thousand tenants that came and went leave few gates behind."""
    rule = TagRule("tenant", per_value=True, limit=1)
    ledger = Ledger(Limits(max_concurrent_runs=-1, tags=(rule,)))
    for seq in range(1, 5_001):
        ledger.put_head(run_row(seq, tags={"tenant": f"t{seq}"}))
        started(ledger)
        ledger.end_run(seq)
    assert len(ledger.tag_gates) < 1_100


# -- sequential maps -------------------------------------------------------------------------------


def test_d1_a_sequential_item_waits_for_the_one_before():
    office = Office(graph(items(window=1), sequential=True))
    tasks = [office.ask(idx=idx) for idx in range(3)]
    assert [task.in_line for task in tasks] == [True, False, False]
    assert office.go() == tasks[:1]
    # It failed and is in its back-off: nobody may pass it.
    office.ledger.release(tasks[0])
    tasks[0].state, tasks[0].not_before = TaskState.REQUESTED, NOW + 5
    assert office.go() == []
    office.ledger.request(tasks[0])
    assert office.go() == tasks[:1]
    office.end(tasks[0])
    assert office.go() == tasks[1:2]


# -- demand ----------------------------------------------------------------------------------------


def test_demand_is_what_passes_every_gate_but_the_workers():
    flow = graph(items(window=5, pools=needs(db=1)), step("free"))
    office = Office(flow, Limits(pools={"db": PoolRule(3)}), permits=1)
    items_ = [office.ask(idx=idx) for idx in range(10)]
    free = office.ask(node=1)
    assert office.go() == items_[:1]
    # One of three slots is taken: two more items could run, and the step without a pool.
    found = [first_of(*each) for each in lacking(office.ledger.task_queue)]
    assert sorted(task.id for tasks in found for task in tasks) == [
        items_[1].id,
        items_[2].id,
        free.id,
    ]
