"""What would let a task or a queued run start, in words and numbers; `tests/property` tries it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kernel.test_explain import ANY, NOW, Stage
from tests.support.worlds import graph, items, line_before, needs, numbers, step, worker_row

from locktender.base.limits import Limits, PauseRule, PoolRule, Rate, TagRule
from locktender.kernel.explain import what_opens
from locktender.kernel.explain_runs import explain_queued, runs_to_start
from locktender.kernel.reasons import GateOpening, Typical


def opens(stage: Stage, run: int, name: str = "m", idx: int = 0) -> tuple[GateOpening, ...]:
    return what_opens(stage.lead, stage.entry(run, name, idx), stage.now)


def pools(**rules: PoolRule) -> Limits:
    return Limits(pools=rules)


def test_the_head_of_a_line_needs_one_slot_or_any_holder_to_end():
    stage = Stage(pools(db=PoolRule(2)), graph(items(pools=needs(db=1))), worker=ANY)
    run = stage.submit(consts=numbers(5))
    first, second = (stage.entry(run, "m", idx).id for idx in (0, 1))
    [opening] = opens(stage, run, idx=2)
    assert opening.text == f"pool db 2 → 3, or any of tasks {first}, {second} to end"
    assert (opening.limit, opening.tasks, opening.ends) == (3, (first, second), 1)
    [last] = opens(stage, run, idx=4)
    assert (last.limit, last.ends) == (5, 0)
    assert "and more of those before it" in last.text


def test_many_holders_are_counted_and_some_of_them_named():
    stage = Stage(pools(db=PoolRule(40)), graph(items(pools=needs(db=1))), worker=ANY)
    run = stage.submit(consts=numbers(120))
    tasks = [stage.entry(run, "m", idx).id for idx in range(40)]
    named = f"tasks {', '.join(map(str, tasks[:5]))} and 35 more to end"
    for idx, ends in ((40, "any of "), (60, "any 21 of "), (79, "")):
        [opening] = opens(stage, run, idx=idx)
        assert opening.text == f"pool db 40 → {idx + 1}, or {ends}{named}"
        assert (opening.tasks, opening.ends) == (tuple(tasks[:20]), idx - 39)
    [opening] = opens(stage, run, idx=80)
    assert opening.text == f"pool db 40 → 81, or {named}, and more of those before it"


def test_those_before_it_that_wait_elsewhere_take_nothing():
    limits = pools(db=PoolRule(1), gpu=PoolRule(1, paused=True))
    both = graph(items(pools=needs(db=1, gpu=1)), flow="both")
    stage = Stage(limits, both, graph(items(pools=needs(db=1))), worker=ANY)
    stage.submit("both", consts=numbers(3))
    run = stage.submit(consts=numbers(2))
    [opening] = opens(stage, run, idx=1)
    assert opening.limit == 2  # the three before it wait for a paused pool


def test_a_gate_that_those_before_it_close_is_named_too():
    limits = pools(db=PoolRule(1), gpu=PoolRule(1))
    both = graph(items(pools=needs(db=1, gpu=1)), flow="both")
    holder = graph(step(pools=needs(db=1)), flow="holder")
    stage = Stage(limits, both, holder, worker=ANY)
    stage.submit("holder")
    run = stage.submit("both", consts=numbers(2))
    assert [(each.gate, each.limit) for each in opens(stage, run, idx=0)] == [("pool:db", 2)]
    second = [(each.gate, each.limit) for each in opens(stage, run, idx=1)]
    assert second == [("pool:db", 3), ("pool:gpu", 2)]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (PoolRule(1), "pool db 1 → 2 (locktender pools set db 2)"),
        (PoolRule(9, paused=True), "pool db resumed"),
        (
            PoolRule(9, rate=Rate(1, 1_000_000, burst=1)),
            "pool db with a burst of 2 (locktender pools set db --burst 2)",
        ),
    ],
)
def test_never_and_paused_come_with_the_fix(rule: PoolRule, text: str):
    stage = Stage(pools(db=rule), graph(items(pools=needs(db=2))), worker=ANY)
    assert [each.text for each in opens(stage, stage.submit(consts=numbers(1)))] == [text]


def test_never_behind_others_names_the_least_limit_to_start():
    few = graph(items(pools=needs(db=1)), flow="few")
    stage = Stage(pools(db=PoolRule(2)), few, graph(items(pools=needs(db=3))), worker=ANY)
    stage.submit("few", consts=numbers(6))
    [opening] = opens(stage, stage.submit(consts=numbers(1)))
    assert opening.limit == 9, "so many start it at once"
    assert opening.text == (
        "pool db 2 → 9 to start at once, or → 3 and those before it to end (locktender pools set db 3)"
    )


def test_a_paused_run_needs_what_its_gates_lack_too():
    limits = pools(db=PoolRule(9, paused=True))
    stage = Stage(limits, graph(items(pools=needs(db=1))), worker=ANY)
    run = stage.submit(consts=numbers(1))
    paused = Limits(pools=limits.pools, paused_runs={run: PauseRule("me", NOW)})
    stage.lead.set_limits(paused, [], stage.now)
    # It is out of line now, and nobody else is at the pool.
    assert [each.text for each in opens(stage, run)] == [
        "the run or its flow resumed",
        "pool db resumed",
    ]


def test_a_rate_opens_at_an_instant_those_before_it_included():
    rule = PoolRule(9, rate=Rate(1, 1_000_000, burst=1))
    stage = Stage(pools(db=rule), graph(items(pools=needs(db=1))), worker=ANY)
    run = stage.submit(consts=numbers(4))
    assert [opens(stage, run, idx=idx)[0].at for idx in (1, 2, 3)] == [
        NOW + 1_000_000,
        NOW + 2_000_000,
        NOW + 3_000_000,
    ]


def test_a_worker_that_lacks_permits_and_one_that_is_not_there():
    stage = Stage(Limits(), graph(items()), worker={"permits": {"async": 1}})
    run = stage.submit(consts=numbers(3))
    [opening] = opens(stage, run, idx=2)
    assert (opening.permits, opening.ends) == (2, 0)
    [opening] = opens(stage, run, idx=1)
    holder = stage.entry(run, "m", 0).id
    wanted = f"one more async permit on workers with step m, or task {holder} to end"
    assert opening.text == wanted
    assert (opening.permits, opening.ends) == (1, 1)
    nobody = Stage(Limits(), graph(items(needs={"gpu": "yes"})))
    nobody.lead.put_worker(worker_row("w"), local=True)
    [opening] = opens(nobody, nobody.submit(consts=numbers(1)))
    assert (opening.permits, "gpu=yes" in opening.text) == (1, True)


def test_slots_of_a_dead_worker_come_free_by_themselves():
    limits = pools(db=PoolRule(1, lease_us=60_000_000))
    stage = Stage(limits, graph(items(pools=needs(db=1))), worker=ANY | {"lease_until": NOW})
    run = stage.submit(consts=numbers(1))
    entry = stage.entry(run, "m", 0)
    stage.now += 10
    stage.lead.worker_lost("w", "gone", [(entry.id, entry.token)], [], stage.now)
    stage.lead.put_worker(worker_row("w2"), local=True)
    stage.lead.cycle(stage.now)
    [opening] = opens(stage, run)
    assert opening.at == NOW + 60_000_000
    assert "kept for dead worker w" in opening.text


def queued(stage: Stage, run: int) -> tuple[GateOpening, ...]:
    head = stage.lead.ledger.heads[run]
    line = line_before(stage.lead, head)
    reasons = explain_queued(stage.lead, head, Typical(), line, stage.now)
    return runs_to_start(stage.lead.ledger, head, reasons, line)


@pytest.mark.parametrize("tagged", [False, True])
def test_a_queued_run_starts_under_the_limits_that_are_named(tagged: bool):
    tags = (TagRule("t", limit=1, per_value=True),) if tagged else ()
    stage = Stage(Limits(max_concurrent_runs=1, tags=tags), graph(step()), worker=ANY)
    for _ in range(4):
        stage.submit(tags={"t": "a"})
    found = queued(stage, 4)
    named: dict[str, Any] = {each.gate.partition(":")[0]: each.limit for each in found}
    assert named == ({"runs": 4, "tag": 4} if tagged else {"runs": 4})
    assert "run-1" in found[0].text
    for less in (1, 0):
        runs = named["runs"] - less
        rules = (TagRule("t", limit=named["tag"], per_value=True),) if tagged else ()
        changed = Limits(max_concurrent_runs=runs, tags=rules)
        stage.lead.set_limits(changed, [], stage.now)
        stage.lead.cycle(stage.now)
        assert (4 in stage.lead.ledger.runs) is (less == 0)
