"""E7: every gate that blocks now, with true numbers, and nothing once it has started."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.worlds import (
    graph,
    items,
    line_before,
    needs,
    numbers,
    run_row,
    step,
    worker_row,
)

from locktender.base.changes import End
from locktender.base.graph import Graph, RetryPolicy
from locktender.base.limits import Fair, Limits, PoolRule, Rate, TagRule
from locktender.base.model import Failure
from locktender.kernel.deadlines import Until
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain import Reason, Typical, explain_task
from locktender.kernel.explain_runs import explain_queued, waiting_nodes
from locktender.kernel.scheduler import Scheduler
from locktender.kernel.timeouts import wait_limits

NOW = 10**15
BOOM = msgspec.json.encode(Failure("Boom", "as planned"))
NOTHING = Typical()
RUNS = Typical(run_us=100)


class Stage:
    def __init__(self, limits: Limits, *flows: Graph, worker: dict[str, Any] | None = None) -> None:
        self.lead = Scheduler(limits, term=1, owner="me")
        self.lead.graphs = {flow.flow: flow for flow in flows}
        if worker is not None:
            self.lead.put_worker(worker_row("w", **worker), local=True)
        self.now = NOW
        self.runs = 0

    def submit(self, flow: str = "flow", **options: Any) -> int:
        self.runs += 1
        self.lead.put_head(run_row(self.runs, graph=flow, **options))
        self.lead.cycle(self.now)
        return self.runs

    def entry(self, run: int, name: str = "a", idx: int = -1) -> TaskEntry:
        tasks = self.lead.ledger.runs[run].tasks.values()
        return next(each for each in tasks if (each.spec.name, each.idx) == (name, idx))

    def why(self, entry: TaskEntry, typical: Typical = NOTHING) -> dict[str, Reason]:
        return {each.gate: each for each in explain_task(self.lead, entry, typical, self.now)}

    def why_queued(self, run: int, typical: Typical = RUNS, **known: Any) -> dict[str, Reason]:
        head = self.lead.ledger.heads[run]
        line = line_before(self.lead, head)
        found = explain_queued(self.lead, head, typical, line, self.now, **known)
        return {each.gate: each for each in found}

    def end(self, entry: TaskEntry, state: str = "completed") -> None:
        error = BOOM if state == "failed" else None
        self.lead.ended(End(entry.id, entry.token, state, b"1", error), self.now, local=True)
        self.lead.cycle(self.now)


ANY = {"permits": {"async": 100}}


def test_e7_every_blocking_gate_is_listed_not_only_the_first():
    limits = Limits(
        pools={
            "db": PoolRule(1),
            "api": PoolRule(2, rate=Rate(1, 1_000, burst=1)),
            "gpu": PoolRule(5, paused=True),
        }
    )
    holder = graph(step(pools=needs(api=1, db=1)), flow="holder")
    waiter = graph(items(window=1), items("n", pools=needs(api=1, db=1, gpu=2)), max_parallel=1)
    stage = Stage(limits, holder, waiter, worker={"permits": {"async": 2}})
    stage.submit("holder")
    run = stage.submit(consts=numbers(3))
    found = stage.why(stage.entry(run, "n", 0))
    assert set(found) == {
        "run:parallel",
        "pool:db",
        "rate:api",
        "paused:gpu",
        "worker",
    }
    assert (found["pool:db"].used, found["pool:db"].limit, found["pool:db"].need) == (1, 1, 1)
    assert found["rate:api"].estimate_us == 1_000
    assert "paused" in found["paused:gpu"].text
    assert set(stage.why(stage.entry(run, "m", 1))) == {"window:m", "run:parallel", "worker"}


def test_e7_holders_are_named_with_what_they_hold():
    flow = graph(items(pools=needs(db=2)))
    stage = Stage(Limits(pools={"db": PoolRule(5)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(3))
    [reason] = stage.why(stage.entry(run, "m", 2)).values()
    assert (reason.used, reason.limit, reason.need) == (4, 5, 2)
    assert [(each.run, each.node, each.slots, each.worker) for each in reason.holders] == [
        ("run-1", "m", 2, "w"),
        ("run-1", "m", 2, "w"),
    ]


def test_e7_many_holders_are_counted_beyond_the_first_twenty():
    flow = graph(items(pools=needs(db=1)))
    stage = Stage(Limits(pools={"db": PoolRule(30)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(31))
    [reason] = stage.why(stage.entry(run, "m", 30)).values()
    assert (len(reason.holders), reason.more_holders) == (20, 10)


def test_e7_position_counts_who_stands_before_at_the_same_gate():
    flow = graph(items(pools=needs(db=1)))
    stage = Stage(Limits(pools={"db": PoolRule(1)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(5))
    ahead = [stage.why(stage.entry(run, "m", idx))["pool:db"].ahead for idx in range(1, 5)]
    assert ahead == [0, 1, 2, 3]
    urgent = stage.submit(consts=numbers(1), priority=9)
    assert stage.why(stage.entry(urgent, "m", 0))["pool:db"].ahead == 0
    assert stage.why(stage.entry(run, "m", 1))["pool:db"].ahead == 1


def test_e7_reasons_are_gone_once_started():
    flow = graph(items(pools=needs(db=1)))
    stage = Stage(Limits(pools={"db": PoolRule(1)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(2))
    waiting = stage.entry(run, "m", 1)
    assert set(stage.why(waiting)) == {"pool:db"}
    stage.end(stage.entry(run, "m", 0))
    assert waiting.state == "running"
    assert stage.why(waiting) == {}


@pytest.mark.parametrize(
    ("rule", "gate"),
    [(PoolRule(1), "pool:db"), (PoolRule(9, rate=Rate(1, 1_000, burst=1)), "rate:db")],
)
def test_e7_what_can_never_pass_says_never(rule: PoolRule, gate: str):
    stage = Stage(Limits(pools={"db": rule}), graph(step(pools=needs(db=2))), worker=ANY)
    entry = stage.entry(stage.submit())
    found = stage.why(entry)
    assert found[gate].never
    assert "never" in found[gate].text
    assert "locktender pools set" in found[gate].text
    # What explains and what decides are one: it does not start either, however long it waits.
    stage.now *= 2
    stage.lead.cycle(stage.now)
    assert entry.state == "requested"


def test_e7_a_reservation_is_a_reason_and_says_how_much_is_kept():
    small, big = graph(step(pools=needs(db=1)), flow="small"), graph(step(pools=needs(db=2)))
    stage = Stage(Limits(pools={"db": PoolRule(2)}, max_bypass=0), small, big, worker=ANY)
    stage.submit("small")
    stage.submit()
    held_back = stage.entry(stage.submit("small"))
    found = stage.why(held_back)
    assert set(found) == {"reserved:db"}
    assert "2 slots are reserved" in found["reserved:db"].text


def test_e7_back_off_tells_what_is_left():
    flow = graph(step(retry=RetryPolicy(1, delay_us=1_000, jitter=False)))
    stage = Stage(Limits(), flow, worker=ANY)
    entry = stage.entry(stage.submit())
    stage.end(entry, "failed")
    stage.now += 400
    found = stage.why(entry)
    assert set(found) == {"back_off"}
    assert found["back_off"].estimate_us == 600


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (None, "no worker is connected"),
        ({"permits": {"hold": 5}}, "no worker is connected"),
        ({"permits": {"thread": 5}}, "the only worker cannot run step a"),
        ({"labels": {"gpu": "a100"}, "permits": {"thread": 5}}, "it knows it without async permits"),
        ({"labels": {"gpu": "h100"}}, "with gpu=a100; it knows it without that label"),
        ({"steps": {"b": "s1"}}, "the only worker cannot run step a with gpu=a100: it does not know it"),
        ({"steps": {"a": "s2"}}, "with; it knows it in another version (s2)"),
        ({"labels": {"gpu": "a100"}, "draining": True}, "the only worker that could take it is draining"),
        ({"labels": {"gpu": "a100"}, "permits": {"async": 1}}, "permits of 1 worker are in use"),
    ],
)  # fmt: skip
def test_b3_why_says_what_is_missing_of_a_worker(worker: dict[str, Any] | None, says: str):
    stage = Stage(Limits(), graph(items("a", needs={"gpu": "a100"}, signature="s1")), worker=worker)
    run = stage.submit(consts=numbers(2))
    assert says in stage.why(stage.entry(run, "a", 1))["worker"].text


def test_e7_a_dead_holder_is_named_while_its_slots_linger():
    limits = Limits(pools={"db": PoolRule(1, lease_us=60)})
    stage = Stage(limits, graph(step(pools=needs(db=1))), worker=ANY | {"lease_until": NOW})
    entry = stage.entry(stage.submit())
    stage.now += 10
    stage.lead.worker_lost("w", "gone", [(entry.id, entry.token)], [], stage.now)
    stage.lead.put_worker(worker_row("w2"), local=True)
    stage.lead.cycle(stage.now)
    [holder] = stage.why(entry)["pool:db"].holders
    assert (holder.dead, holder.worker, holder.slots) == (True, "w", 1)
    stage.now = NOW + 60
    stage.lead.cycle(stage.now)
    assert entry.state == "running"


def test_e7_an_item_of_a_sequential_map_names_the_one_before_it():
    stage = Stage(Limits(), graph(items(window=1), sequential=True), worker=ANY)
    run = stage.submit(consts=numbers(3))
    found = stage.why(stage.entry(run, "m", 2))
    assert found["sequential"].holders[0].task == stage.entry(run, "m", 0).id


def test_estimates_use_holders_and_turns_ahead():
    flow = graph(items(pools=needs(db=1)))
    stage = Stage(Limits(pools={"db": PoolRule(1)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(4))
    stage.now += 30
    typical = Typical(step_us={"m": 100})
    waits = [
        stage.why(stage.entry(run, "m", idx), typical)["pool:db"].estimate_us for idx in (1, 2, 3)
    ]
    assert waits == [70, 170, 270]


# -- runs ------------------------------------------------------------------------------------------


def test_e7_a_queued_run_lists_every_gate_that_blocks():
    rules = (TagRule("tenant", per_value=True, limit=1), TagRule("team", "red", paused=True))
    stage = Stage(Limits(max_concurrent_runs=1, tags=rules), graph(step()), worker=ANY)
    stage.submit(tags={"tenant": "acme"})
    waiting = stage.submit(tags={"tenant": "acme", "team": "red"})
    found = stage.why_queued(waiting)
    assert set(found) == {"runs:max_concurrent_runs", "tag:tenant=*acme", "paused:team=red"}
    gate = found["runs:max_concurrent_runs"]
    assert (gate.used, gate.limit, [each.run for each in gate.holders]) == (1, 1, ["run-1"])
    other = stage.submit()
    assert set(stage.why_queued(other)) == {"runs:max_concurrent_runs"}


def test_e7_a_replacing_run_says_so_until_the_other_ends():
    stage = Stage(Limits(max_concurrent_runs=1), graph(step()), worker=ANY)
    first = stage.submit(key="k")
    second = stage.submit(key="k", waits_for=first)
    found = stage.why_queued(second)
    assert set(found) == {"key", "runs:max_concurrent_runs"}
    assert "run-1" in found["key"].text
    stage.submit()  # takes the only place when the first has ended
    stage.lead.reprioritise(stage.lead.ledger.heads[3].row, priority=9)
    stage.end(stage.entry(first))
    assert set(stage.why_queued(second)) == {"runs:max_concurrent_runs"}


def test_e7_a_replacing_run_lists_every_other_gate():
    rules = (TagRule("tenant", per_value=True, limit=1), TagRule("team", paused=True))
    stage = Stage(Limits(max_concurrent_runs=1, tags=rules), graph(step()), worker=ANY)
    stage.submit(tags={"tenant": "acme"})
    run = stage.submit(key="k", waits_for=77, tags={"tenant": "acme", "team": "x"})
    found = stage.why_queued(run, replaced="run-77")
    assert set(found) == {"key", "runs:max_concurrent_runs", "tag:tenant=*acme", "paused:team"}
    assert "run run-77, which goes before it" in found["key"].text
    assert [each.run for each in found["key"].holders] == ["run-77"]
    # Where nobody knows its id, no id is made up.
    found = stage.why_queued(run)
    assert "number 77" in found["key"].text
    assert found["key"].holders == ()


def test_e7_at_a_tag_only_runs_of_the_same_counter_stand_before():
    rules = (TagRule("tenant", per_value=True, limit=1),)
    stage = Stage(Limits(tags=rules), graph(step()), worker=ANY)
    a, b = {"tenant": "a"}, {"tenant": "b"}
    for _ in range(6):
        stage.submit(tags=a)
    first, second = stage.submit(tags=b), stage.submit(tags=b)
    third = stage.submit(tags=b)
    assert first in stage.lead.ledger.runs
    gate = stage.why_queued(third)["tag:tenant=*b"]
    assert (gate.ahead, gate.ahead_is, gate.estimate_us) == (1, "exact", 200)
    assert stage.why_queued(second)["tag:tenant=*b"].ahead == 0


def test_e7_runs_blocked_elsewhere_are_not_ahead():
    rules = (TagRule("tenant", per_value=True, limit=1),)
    stage = Stage(Limits(max_concurrent_runs=2, tags=rules), graph(step()), worker=ANY)
    a, b = {"tenant": "a"}, {"tenant": "b"}
    for tags in (a, a, a, b, b):
        stage.submit(tags=tags)
    gate = stage.why_queued(5)["runs:max_concurrent_runs"]
    assert (gate.ahead, gate.estimate_us) == (2, 100)
    assert gate.ahead_is == "about", "the second of a is overtaken"
    # The second of a: both places come free at once, but at its tag there is only one.
    found = stage.why_queued(3)
    gate = found["runs:max_concurrent_runs"]
    assert (gate.ahead, gate.estimate_us) == (1, 100)
    assert found["tag:tenant=*a"].estimate_us == 200


def test_b3_for_a_worker_all_steps_stand_in_one_line():
    """Permits are shared by steps: whoever waits for them alone and is older goes first."""
    rules = {"db": PoolRule(1)}
    first = graph(items("a", pools=needs(db=1)), flow="first")
    second, third = graph(items("b"), flow="second"), graph(step("c"), flow="third")
    worker = {"permits": {"async": 1}}
    stage = Stage(Limits(pools=rules), first, second, third, worker=worker)
    stage.submit("first", consts=numbers(4))  # one runs, three wait for the pool first of all
    stage.submit("second", consts=numbers(5))
    last = stage.submit("third")
    assert stage.why(stage.entry(last, "c"))["worker"].ahead == 5


@pytest.mark.parametrize(("value", "index", "ahead"), [("a", 2, 4), ("b", 1, 5), ("c", 1, 6)])
def test_tasks_take_turns_at_a_pool_by_their_weights(value: str, index: int, ahead: int):
    limits = Limits(pools={"db": PoolRule(1)}, fair=Fair("tenant", {"a": 2}))
    stage = Stage(limits, graph(items(pools=needs(db=1))), worker=ANY)
    stage.submit(consts=numbers(1), tags={"tenant": "z"})
    for tenant in "abc":
        stage.submit(consts=numbers(4), tags={"tenant": tenant})
    run = 2 + "abc".index(value)
    # The third of a has its turn with the second of b and of c, and is older.
    found = stage.why(stage.entry(run, "m", index))
    assert (found["pool:db"].ahead, found["pool:db"].ahead_is) == (ahead, "about")
    assert found["fair:tenant"].text.startswith("fair turn: 3 values of tenant wait and take turns")


def test_what_a_task_waits_for_at_most():
    flow = graph(items(pools=needs(db=1), queue_timeout_us=700), step("g", needs={"gpu": "a100"}))
    stage = Stage(Limits(pools={"db": PoolRule(1)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(2), dispatch_deadline_us=900)
    waiting, stranded = stage.entry(run, "m", 1), stage.entry(run, "g")
    stage.now += 100
    stage.lead.sweep(stage.now)
    assert wait_limits(stage.lead.lifecycle, waiting) == [Until("queue_timeout", NOW + 700)]
    [until] = wait_limits(stage.lead.lifecycle, stranded)
    assert until == Until("capacity", NOW + 900)  # it lacked a worker from the first decision on
    assert "fails with capacity in" in until.text(stage.now)


def test_without_history_nothing_is_estimated():
    flow = graph(items(pools=needs(db=1)))
    stage = Stage(Limits(max_concurrent_runs=1, pools={"db": PoolRule(1)}), flow, worker=ANY)
    run = stage.submit(consts=numbers(3))
    queued = stage.submit(consts=numbers(1))
    stage.now += 1_000
    assert stage.why(stage.entry(run, "m", 1))["pool:db"].estimate_us is None
    found = stage.why_queued(queued, typical=NOTHING)
    assert found["runs:max_concurrent_runs"].estimate_us is None


def test_nodes_that_wait_name_what_they_wait_for():
    flow = graph(step("a"), step("b"), step("c", after=(0, 1)))
    stage = Stage(Limits(), flow, worker=ANY)
    run = stage.submit()
    stage.end(stage.entry(run, "a"))
    assert list(waiting_nodes(stage.lead.lifecycle.run_graphs[run])) == [("c", ["b"])]
