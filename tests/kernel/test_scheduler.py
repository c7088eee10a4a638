"""The scheduler: facts in, one commit out; facts that come twice, late or out of order change nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import msgspec
import pytest
from tests.support.worlds import graph, items, needs, numbers, run_row, step, worker_row

from locktender.base.changes import End
from locktender.base.commits import Commit
from locktender.base.events import Change
from locktender.base.graph import Const, Graph, Output, RetryPolicy
from locktender.base.limits import Limits, PauseRule, PoolRule
from locktender.base.model import Failure, LimitRow
from locktender.base.states import RunState, TaskState
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.entries import TaskEntry
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.wait_times import waits_of
from locktender.store.worker_changes import LEFT_BEHIND

NOW = 10**15
HOUR = 3_600_000_000
BOOM = msgspec.json.encode(Failure("Boom", "as planned"))


def ended(cycle: Cycle) -> list[int]:
    return [end.run for end in cycle.commit.runs_ended]


class Stage:
    """A scheduler with one worker, here or elsewhere."""

    def __init__(self, flow: Graph, limits: Limits | None = None, *, local: bool = True) -> None:
        self.lead = Scheduler(limits or Limits(), term=1, owner="me")
        self.lead.graphs[flow.flow] = flow
        self.lead.put_worker(worker_row("w", lease_until=NOW + 100), local=local)
        self.local = local
        self.now = NOW
        self.changes: list[Change] = []
        self.commits: list[Commit] = []

    def submit(self, seq: int = 1, **options: object) -> Cycle:
        self.lead.put_head(run_row(seq, **options))
        return self.cycle()

    def cycle(self) -> Cycle:
        cycle = self.lead.cycle(self.now)
        self.commits.append(cycle.commit)
        for told in cycle.commit.events:
            self.changes += told.changes
        return cycle

    def entries(self) -> dict[tuple[str, int], TaskEntry]:
        return {(each.spec.name, each.idx): each for each in self.lead.lifecycle.tasks.values()}

    def entry(self, name: str, idx: int = -1) -> TaskEntry:
        return self.entries()[name, idx]

    def accept(self, entry: TaskEntry) -> None:
        self.lead.accepted(entry.id, entry.token, self.now)

    def end(self, entry: TaskEntry, state: str = "completed") -> bool:
        error = BOOM if state in ("failed", "timed_out") else None
        return self.lead.ended(
            End(entry.id, entry.token, state, b"1", error), self.now, local=self.local
        )

    def life(self, task: int) -> list[tuple[str, str]]:
        return [(str(each.before), str(each.after)) for each in self.changes if each.task == task]


def test_c1_a_task_changes_state_without_a_gap():
    stage = Stage(graph(step(retry=RetryPolicy(1, delay_us=10, jitter=False))))
    stage.submit()
    entry = stage.entry("a")
    stage.end(entry, "failed")
    stage.cycle()
    stage.now += 10
    stage.cycle()
    stage.end(entry)
    stage.cycle()
    life = stage.life(entry.id)
    assert life == [
        ("new", "requested"),
        ("requested", "scheduled"),
        ("scheduled", "running"),
        ("running", "failed"),
        ("failed", "requested"),
        ("requested", "scheduled"),
        ("scheduled", "running"),
        ("running", "completed"),
    ]
    runs = [(each.before, each.after) for each in stage.changes if each.subject == "run"]
    assert runs == [("queued", "running"), ("running", "succeeded")]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("state", ["completed", "failed", "timed_out", "cancelled", "handed_back"])
def test_c2_an_end_told_twice_is_acted_on_once(state: str, local: bool):
    stage = Stage(graph(step(pools=needs(db=1)), step("b", after=(0,))), local=local)
    stage.submit()
    entry = stage.entry("a")
    if not local:
        stage.accept(entry)
    token = entry.token
    assert stage.end(entry, state)
    for _ in range(3):
        assert not stage.lead.ended(End(entry.id, token, state, b"1", BOOM), stage.now, local=local)
    stage.cycle()
    assert stage.lead.stale_facts == 3
    assert stage.lead.ledger.pool("db").used == (1 if state == "handed_back" else 0)
    changes = [each.after for each in stage.changes if each.task == entry.id]
    assert changes.count("requested") == (2 if state == "handed_back" else 1)


def test_c2_a_stale_attempt_does_not_change_the_next():
    stage = Stage(graph(step()))
    stage.submit()
    entry = stage.entry("a")
    old = entry.token
    stage.end(entry, "handed_back")
    stage.cycle()
    assert entry.token > old
    for state in ("completed", "failed", "cancelled", "handed_back"):
        assert not stage.lead.ended(End(entry.id, old, state, b"1", BOOM), stage.now, local=True)
    assert entry.state == TaskState.RUNNING
    stage.lead.accepted(entry.id, old, stage.now)
    stage.lead.withdrawn([(entry.id, old)], TaskState.REQUESTED, stage.now)
    assert entry.state == TaskState.RUNNING


def test_c2_facts_of_tasks_nobody_knows_are_counted_and_dropped():
    stage = Stage(graph(step()))
    assert not stage.lead.ended(End(99, 1, "completed"), NOW, local=False)
    stage.lead.accepted(99, 1, NOW)
    stage.lead.withdrawn([(99, 1)], TaskState.CANCELLED, NOW)
    stage.lead.cancel_run(99, NOW)
    assert stage.cycle().commit.tasks_saved == []
    assert stage.lead.stale_facts == 1


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a3_the_order_in_which_items_end_does_not_matter(order: tuple[int, ...]):
    stage = Stage(graph(items(), step("sum", args=(Output(0),)), result=Output(1)))
    stage.submit(consts=numbers(3))
    for idx in order:
        assert stage.end(stage.entry("m", idx))
    stage.cycle()
    stage.end(stage.entry("sum"))
    stage.cycle()
    [end] = [end for commit in stage.commits for end in commit.runs_ended]
    assert (end.state, end.output) == (RunState.SUCCEEDED, b"1")
    assert sum(each.task >> 20 == 1 and each.after == "requested" for each in stage.changes) == 4


def test_an_end_that_is_told_before_its_acceptance_counts():
    """Notifications may come out of order: the rows say that it ran."""
    stage = Stage(graph(step()), local=False)
    stage.submit()
    entry = stage.entry("a")
    assert stage.end(entry)
    stage.accept(entry)
    assert ended(stage.cycle()) == [1]


def test_a_retry_frees_everything_and_waits_for_its_back_off():
    policy = RetryPolicy(2, delay_us=1_000, jitter=False)
    stage = Stage(graph(step(pools=needs(db=1), retry=policy)))
    stage.submit()
    entry = stage.entry("a")
    stage.end(entry, "failed")
    cycle = stage.cycle()
    assert stage.lead.ledger.pool("db").used == 0
    assert stage.lead.ledger.workers.by_id["w"].used == 0
    assert (cycle.starts, cycle.next_wake) == ([], NOW + 1_000)
    stage.now = NOW + 999
    assert stage.cycle().starts == []
    stage.now = NOW + 1_000
    assert stage.cycle().starts == [entry]
    assert (entry.attempt, entry.tries) == (2, 1)


def test_retry_after_overrides_the_back_off_and_fatal_ends_it():
    stage = Stage(graph(step(retry=RetryPolicy(5))))
    stage.submit()
    entry = stage.entry("a")
    error = msgspec.json.encode(Failure("Retry", "later", retry_after_us=77))
    stage.lead.ended(End(entry.id, entry.token, "failed", error=error), NOW, local=True)
    assert stage.cycle().next_wake == NOW + 77
    stage.now += 77
    stage.cycle()
    fatal = msgspec.json.encode(Failure("Fatal", "no use", retryable=False))
    stage.lead.ended(End(entry.id, entry.token, "failed", error=fatal), stage.now, local=True)
    assert ended(stage.cycle()) == [1]


def test_b10_a_cycle_starts_at_most_its_budget():
    stage = Stage(graph(items()), Limits(max_starts_per_cycle=4))
    sizes = [len(stage.submit(consts=numbers(10)).starts)]
    while stage.lead.ledger.task_queue.unfinished:
        sizes.append(len(stage.cycle().starts))
    assert sizes == [4, 4, 2]


def test_f8_a_cycle_starts_no_run_behind_ten_thousand_new_tasks():
    """Runs of many small maps that are admitted together would outlast the leader's lease in one cycle."""
    flow = graph(*(items(f"m{number}") for number in range(60)))
    stage = Stage(flow, Limits(max_concurrent_runs=-1))
    for seq in (1, 2, 3):
        stage.lead.put_head(run_row(seq, consts=numbers(100)))
    cycles = [stage.cycle()]
    while cycles[-1].unfinished:
        cycles.append(stage.cycle())
    started = [[start.run for start in cycle.commit.runs_started] for cycle in cycles]
    assert [runs for runs in started if runs] == [[1, 2], [3]]


def test_a_large_map_is_expanded_over_several_cycles():
    # With a timeout of its own each item is asked for at once: its clock runs from then.
    stage = Stage(graph(items(window=1, queue_timeout_us=HOUR)), Limits(max_concurrent_runs=-1))
    cycles = [stage.submit(consts=numbers(1_400))]
    while cycles[-1].unfinished:
        cycles.append(stage.cycle())
    # The first one also keeps the place of the last item.
    assert [len(cycle.commit.tasks_new) for cycle in cycles] == [501, 500, 399]
    assert [row.idx for row in cycles[2].commit.tasks_again] == [1_399]
    assert len(stage.lead.lifecycle.tasks) == 1_400


def test_other_runs_go_on_while_a_large_map_is_expanded():
    stage = Stage(graph(items(window=1)), Limits(max_concurrent_runs=-1))
    stage.submit(consts=numbers(100_000))
    started = stage.submit(2, consts=numbers(3)).starts
    assert [entry.run.seq for entry in started] == [2]
    assert stage.end(started[0])
    stage.cycle()
    assert len(stage.lead.lifecycle.tasks) < 10_000
    # A second large map gets its turn before the first is complete.
    stage.submit(3, consts=numbers(50_000))
    stage.cycle()
    stage.cycle()
    assert {entry.run.seq for entry in stage.lead.lifecycle.tasks.values()} >= {1, 3}


def test_a_run_cancelled_while_its_map_is_expanded_ends():
    stage = Stage(graph(items(), step("after", after=(0,), run_if="always")), local=False)
    stage.submit(consts=numbers(5_000))
    for entry in list(stage.lead.lifecycle.tasks.values()):
        if entry.state == TaskState.SCHEDULED:
            stage.lead.withdrawn([(entry.id, entry.token)], TaskState.REQUESTED, stage.now)
    stage.lead.cancel_run(1, stage.now)
    while stage.cycle().unfinished:
        pass
    states = [change.after for change in stage.changes if change.subject == "task"]
    assert states.count(TaskState.CANCELLED) + states.count(TaskState.SKIPPED) == 5_000
    [clean_up] = stage.lead.lifecycle.tasks.values()
    assert clean_up.spec.name == "after"


# -- lost workers ----------------------------------------------------------------------------------


def lose(stage: Stage, *entries: TaskEntry) -> None:
    stage.lead.worker_lost("w", "gone", [(each.id, each.token) for each in entries], [], stage.now)


def test_c4_an_abandoned_task_is_requested_again():
    stage = Stage(graph(step(pools=needs(db=1))), local=False)
    stage.submit()
    entry = stage.entry("a")
    stage.accept(entry)
    lose(stage, entry)
    lose(stage, entry)  # told twice
    stage.lead.put_worker(worker_row("w2", lease_until=NOW + 100))
    stage.cycle()
    assert (entry.state, entry.worker, entry.abandons, entry.tries) == ("scheduled", "w2", 1, 0)
    assert stage.lead.ledger.pool("db").used == 1


def test_a_poison_task_fails_after_max_abandons():
    stage = Stage(graph(step(max_abandons=3)), local=False)
    stage.submit()
    entry = stage.entry("a")
    for attempt in range(3):
        stage.accept(entry)
        lose(stage, entry)
        stage.lead.put_worker(worker_row("w", since=attempt, lease_until=NOW + 100))
        cycle = stage.cycle()
    assert ended(cycle) == [1]
    [end] = stage.commits[-1].runs_ended
    assert b"worker_lost" in (end.error or b"")


def test_e5_slots_of_a_lost_worker_end_with_pool_lease():
    limits = Limits(pools={"db": PoolRule(1, lease_us=60)})
    stage = Stage(graph(step(pools=needs(db=1))), limits, local=False)
    stage.submit()
    entry = stage.entry("a")
    stage.accept(entry)
    stage.now = NOW + 110  # its lease ended at +100
    lose(stage, entry)
    stage.lead.put_worker(worker_row("w2", lease_until=NOW + 999))
    cycle = stage.cycle()
    assert entry.state == "requested"
    assert cycle.next_wake == NOW + 160
    stage.now = NOW + 160
    stage.cycle()
    assert entry.state == "scheduled"


def drain(stage: Stage, *entries: TaskEntry) -> None:
    left = [(each.id, each.token) for each in entries]
    stage.lead.worker_lost("w", "gone", [], [], stage.now, handed_back=left)


def test_tasks_of_a_drain_list_are_requested_again_for_free():
    stage = Stage(graph(step(pools=needs(db=1), max_abandons=1)), local=False)
    stage.submit()
    entry = stage.entry("a")
    for attempt in range(5):
        stage.accept(entry)
        drain(stage, entry)
        drain(stage, entry)  # told twice
        assert stage.lead.ledger.pool("db").used == 0
        stage.lead.put_worker(worker_row("w", since=attempt, lease_until=NOW + 100))
        cycle = stage.cycle()
        assert ended(cycle) == []
    assert (entry.state, entry.attempt, entry.abandons, entry.tries) == ("scheduled", 5, 0, 0)
    again = [
        change
        for _, changes in stage.commits[-1].events
        for change in changes
        if change.before == "handed_back"
    ]
    assert [change.after for change in again] == ["requested"]


def test_a_drain_list_with_an_old_token_changes_nothing():
    stage = Stage(graph(step()), local=False)
    stage.submit()
    entry = stage.entry("a")
    stage.accept(entry)
    stage.lead.worker_lost("v", "gone", [], [], NOW, handed_back=[(entry.id, entry.token - 1)])
    assert (entry.state, entry.worker) == ("running", "w")


def test_e5_slots_of_a_drained_worker_end_with_pool_lease():
    limits = Limits(pools={"db": PoolRule(1, lease_us=60)})
    stage = Stage(graph(step(pools=needs(db=1))), limits, local=False)
    stage.submit()
    entry = stage.entry("a")
    stage.accept(entry)
    stage.now = NOW + 110  # its lease ended at +100
    drain(stage, entry)
    stage.lead.put_worker(worker_row("w2", lease_until=NOW + 999))
    cycle = stage.cycle()
    assert (entry.state, cycle.next_wake) == ("requested", NOW + 160)
    stage.now = NOW + 160
    stage.cycle()
    assert entry.state == "scheduled"


@pytest.mark.parametrize(
    ("error", "state"),
    [(None, "scheduled"), (LEFT_BEHIND, "requested")],
    ids=["by its worker", "for a worker that is gone"],
)
def test_e5_slots_of_a_drain_list_stay_for_the_pool_lease(error: bytes | None, state: str):
    """The body was inside to the end: what it used may still be taken, as after any death."""
    limits = Limits(pools={"db": PoolRule(1, lease_us=60)})
    stage = Stage(graph(step(pools=needs(db=1))), limits, local=False)
    stage.submit()
    entry = stage.entry("a")
    stage.accept(entry)
    stage.now = NOW + 10
    end = End(entry.id, entry.token, "handed_back", None, error, "drain")
    stage.lead.ended(end, stage.now, local=False)
    stage.cycle()
    assert entry.state == state
    stage.now = NOW + 70
    stage.cycle()
    assert entry.state == "scheduled"


# -- cancel ----------------------------------------------------------------------------------------


def test_cancel_of_a_queued_run_means_that_it_never_starts():
    stage = Stage(graph(step()))
    row = run_row(1)
    failure = Failure("cancelled", "on request")
    stage.lead.put_head(row)
    stage.lead.end_queued(row, RunState.CANCELLED, failure, NOW)
    stage.lead.end_queued(row, RunState.CANCELLED, failure, NOW)  # asked twice
    stage.lead.put_head(row)  # the queue still shows it until the commit is written
    cycle = stage.cycle()
    assert (cycle.starts, ended(cycle)) == ([], [1])
    assert len(cycle.commit.runs_ended) == 1


def test_cancel_withdraws_offers_by_the_store():
    stage = Stage(graph(step()), local=False)
    stage.submit()
    entry = stage.entry("a")
    stage.lead.cancel_run(1, NOW)
    assert stage.cycle().withdrawals == [(entry.id, entry.token, TaskState.CANCELLED)]
    # The worker was faster: the offer was accepted, now it is the worker's to stop.
    stage.accept(entry)
    [order] = stage.cycle().commit.orders
    assert (order.kind, order.token) == ("stop", entry.token)
    stage.end(entry, "cancelled")
    assert ended(stage.cycle()) == [1]


def test_e10_an_expired_offer_of_a_cancelled_run_stays_so():
    """Both withdrawals were on their way; the store carried out the other one first."""
    stage = Stage(graph(step(pools=needs(db=1))), local=False)
    stage.submit()
    entry = stage.entry("a")
    token = entry.token
    stage.now += stage.lead.lifecycle.defaults.offer_ttl_us
    stage.lead.cancel_run(1, stage.now)
    wanted = {to for task, _, to in stage.cycle().withdrawals if task == entry.id}
    assert TaskState.CANCELLED in wanted
    stage.lead.withdrawn([(entry.id, token)], TaskState.REQUESTED, stage.now)
    cycle = stage.cycle()
    assert cycle.commit.orders == []
    assert ended(cycle) == [1]
    assert stage.life(entry.id)[-1] == ("requested", "cancelled")
    assert stage.lead.ledger.pool("db").used == 0


def test_a_forced_cancel_does_not_wait_for_clean_up():
    flow = graph(step(), step("clean", after=(0,), run_if="always"))
    stage = Stage(flow)
    stage.submit()
    stage.lead.cancel_run(1, NOW)
    stage.end(stage.entry("a"), "cancelled")
    stage.cycle()
    clean = stage.entry("clean")
    assert clean.state == TaskState.RUNNING
    stage.lead.cancel_run(1, NOW)
    assert stage.cycle().stops == []
    stage.lead.cancel_run(1, NOW, force=True)
    assert stage.cycle().stops == [(clean.id, clean.token, "cancelled")]
    stage.end(clean, "cancelled")
    assert ended(stage.cycle()) == [1]


# -- runs that replace each other ------------------------------------------------------------------


def replaced(stage: Stage) -> Callable[[], list[int]]:
    """Run 1 executes; 2 was to replace it and 3 was to replace 2."""
    stage.submit(1, key="k")
    stage.lead.put_head(run_row(2, key="k", waits_for=1))
    stage.lead.put_head(run_row(3, key="k", waits_for=2))
    return lambda: [start.run for start in stage.cycle().commit.runs_started]


def test_a_run_behind_a_cancelled_replacement_still_waits():
    stage = Stage(graph(step()))
    started = replaced(stage)
    waiting = stage.lead.ledger.heads[2].row
    stage.lead.end_queued(waiting, RunState.CANCELLED, Failure("cancelled", "replaced"), NOW)
    assert started() == []
    stage.end(stage.entry("a"))
    assert started() == [3]


def test_a_replacement_read_while_the_other_ends_is_kept():
    stage = Stage(graph(step()))
    stage.submit(1, key="k")
    stage.end(stage.entry("a"))
    # The row was read before the commit that ends run 1: it still says that it waits.
    stage.lead.put_head(run_row(2, key="k", waits_for=1))
    stage.cycle()
    assert 2 in stage.lead.ledger.runs


# -- deadlines -------------------------------------------------------------------------------------


def test_a_run_past_its_deadline_times_out():
    stage = Stage(graph(step()))
    stage.submit(deadline_at=NOW + 50)
    entry = stage.entry("a")
    stage.now = NOW + 50
    assert stage.cycle().stops == [(entry.id, entry.token, "cancelled")]
    stage.end(entry, "cancelled")
    [end] = stage.cycle().commit.runs_ended
    assert end.state == RunState.TIMED_OUT


@pytest.mark.parametrize("queued", [True, False])
def test_the_deadline_of_an_earlier_try_ends_nothing(queued: bool):
    """A retried run has a deadline of its own, whether it waits or executes when the first one would have come."""
    stage = Stage(graph(step()))
    stage.submit(deadline_at=NOW + 50)
    stage.end(stage.entry("a"), "failed")
    assert [end.state for end in stage.cycle().commit.runs_ended] == [RunState.FAILED]
    if queued:
        stage.lead.ledger.run_gate.set(0)
    stage.submit(generation=1, deadline_at=NOW + 90)
    stage.now = NOW + 50
    cycle = stage.cycle()
    assert (cycle.stops, cycle.commit.runs_ended) == ([], [])
    stage.now = NOW + 90
    cycle = stage.cycle()
    assert len(cycle.stops) + len(cycle.commit.runs_ended) == 1


def test_the_queue_timeout_names_the_gate():
    limits = Limits(pools={"db": PoolRule(1)})
    stage = Stage(graph(items(pools=needs(db=1), queue_timeout_us=500)), limits)
    stage.submit(consts=numbers(2))
    waiting = stage.entry("m", 1)
    stage.now += 500
    cycle = stage.cycle()
    assert waiting.state == TaskState.FAILED
    [error] = [save.error for save in cycle.commit.tasks_saved if save.id == waiting.id]
    assert b"queue_timeout: pool:db" in (error or b"")


def test_b7_the_dispatch_deadline_counts_waits_for_workers():
    limits = Limits(pools={"db": PoolRule(1)})
    flow = graph(step(pools=needs(db=1), dispatch_deadline_us=3_000_000))
    stage = Stage(flow, limits)
    stage.lead.worker_left("w", "done")
    stage.lead.ledger.pool("db").used = 1  # somebody else holds it
    stage.submit()
    entry = stage.entry("a")
    stage.now += 10_000_000
    assert stage.lead.sweep(stage.now).total == 0
    assert entry.eligible_at == 0
    stage.lead.ledger.pool("db").used = 0
    stage.lead.ledger.task_queue.opened(stage.lead.ledger.pool("db"))
    stage.cycle()
    demand = stage.lead.sweep(stage.now)
    assert entry.eligible_at == stage.now
    [want] = demand.wants
    assert (demand.total, demand.workers) == (1, 0)
    assert (want.executor, want.step, want.tasks, want.workers) == ("async", entry.spec.step, 1, 0)
    assert want.since == stage.now
    stage.now += 2_999_999
    stage.cycle()
    assert entry.state == TaskState.REQUESTED
    stage.now += 1
    stage.cycle()
    assert entry.state == TaskState.FAILED


# -- what is told ----------------------------------------------------------------------------------


def test_a_changed_limit_is_recorded_before_decisions():
    stage = Stage(graph(step()))
    row = msgspec.json.encode({"limit": 3})
    rows = [LimitRow("pool", "db", None, row)]
    stage.lead.set_limits(Limits(pools={"db": PoolRule(3)}), rows)
    stage.lead.set_limits(Limits(pools={"db": PoolRule(3)}), rows)
    stage.submit()
    told = [each.subject for each in stage.changes]
    assert told.count("limit") == 1
    assert told.index("limit") < told.index("run")
    stage.lead.set_limits(Limits(), [])
    stage.cycle()
    assert stage.changes[-1].data == {"kind": "pool", "name": "db", "rule": None}


def test_a_wait_is_told_once_per_gate_with_its_numbers():
    limits = Limits(pools={"db": PoolRule(1)})
    stage = Stage(graph(items(pools=needs(db=1))), limits)
    stage.submit(consts=numbers(4))
    for _ in range(5):
        stage.now += 1
        stage.cycle()
    changes = [each.data or {} for each in stage.changes if each.subject == "wait"]
    waits = [data for data in changes if "lane" in data]
    told = {"gate": "pool:db", "used": 1, "limit": 1, "need": 1, "behind": 2}
    assert [{name: each[name] for name in told} for each in waits] == [told]


def test_a_wait_at_a_paused_pool_is_charged_to_its_pause():
    """Given tasks of two kinds of lanes that wait at a full pool before it is paused."""
    rule = PoolRule(2)
    flow = graph(step("a", pools=needs(db=2)), step("b", pools=needs(db=1)))
    stage = Stage(flow, Limits(pools={"db": rule}))
    stage.submit(1)
    stage.submit(2)
    waiting = [each for each in stage.lead.lifecycle.tasks.values() if each.in_line]
    assert len(waiting) == 3
    stage.now += 10
    paused = Limits(pools={"db": msgspec.structs.replace(rule, paused=True)})
    stage.lead.set_limits(paused, [], stage.now)
    stage.cycle()
    stage.now += 20
    stage.lead.set_limits(Limits(pools={"db": rule}), [], stage.now)
    stage.cycle()
    stage.now += 30
    for each in waiting:
        assert each.lane is not None
        assert waits_of(each, each.lane, stage.now) == {"pool:db": 40, "paused:db": 20}


def test_an_idle_cycle_writes_nothing():
    stage = Stage(graph(step()))
    stage.submit()
    assert stage.cycle().commit.empty


def test_a_sleep_that_is_over_at_the_resume_is_offered_to_nobody():
    nap = step("nap", wait="sleep", args=(Const(0), Const(1)))
    stage = Stage(graph(nap, step("b"), step("c", after=(0, 1))))
    stage.submit(consts=b'[1, "1s"]')
    paused = Limits(paused_flows={"flow": PauseRule("me", NOW)})
    stage.lead.set_limits(paused, [], stage.now)
    stage.cycle()
    stage.now += 1_000_001
    stage.lead.set_limits(Limits(), [], stage.now)
    assert stage.cycle().starts == []


def test_a_cycle_hands_on_the_waits_that_its_events_tell():
    stage = Stage(graph(items(pools=needs(db=1))), Limits(pools={"db": PoolRule(1)}))
    stage.submit(consts=numbers(3))
    told: list[dict[str, int]] = []
    for _ in range(3):
        [running] = [each for each in stage.entries().values() if each.state == "running"]
        stage.now += 1_000
        stage.end(running)
        cycle = stage.cycle()
        waits = [
            change.data["waits"]
            for each in cycle.commit.events
            for change in each.changes
            if change.data and "waits" in change.data
        ]
        assert cycle.waits == waits
        told += waits
    assert told == [{"pool:db": 1_000}, {"pool:db": 2_000}]
