"""E7: `why` names what bounds a worker: permits, the total, pressure, a claim, or another task's turn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.worlds import graph, items, needs, numbers, run_row, step, worker_row

from locktender.base.clock import SECOND
from locktender.base.limits import Limits, PoolRule
from locktender.base.model import Unstopped
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain import Reason, Typical, explain_task
from locktender.kernel.explain_workers import no_room, pressures, usable_permits
from locktender.kernel.placement import Worker, bound_by_total
from locktender.kernel.scheduler import Scheduler

NOW = 10**15


def worker(
    name: str = "w", used: dict[str, int] | None = None, offered: int = 0, **row: Any
) -> Worker:
    made = Worker(worker_row(name, **row))
    made.used_by = used or {}
    made.used = sum(made.used_by.values())
    made.offered = offered
    return made


EIGHT: dict[str, Any] = {"permits": {"thread": 8, "async": 100}}


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (worker(used={"thread": 8}, **EIGHT), "all thread permits of 1 worker are in use (8 tasks)"),
        (
            worker(used={"async": 1}, total=1),
            "has its 1 permit in total in use",
        ),
        (
            worker(used={"thread": 2}, share=35, memory=0.85, pressed={"memory": 0.8}, **EIGHT),
            "uses 35 % of its permits under pressure (2 of 8 in use): memory 85 % (over 80 %)",
        ),
        (
            worker(used={"thread": 95}, full=("thread",), permits={"thread": 100}),
            "is nearly full (95 of 100 thread permits in use) until a fifth is free, or for one beat",
        ),
        (
            worker(used={"async": 98}, full=("total",), total=100, claim=0),
            "is nearly full (98 of 100 permits in use) until a fifth is free, or for one beat",
        ),
        (
            worker(used={"thread": 1}, offered=1, claim=1, **EIGHT),
            "has not answered 1 offer yet and takes no more at a time",
        ),
        (worker(claim=0), "takes no more tasks now"),
        (worker(draining=True), "is draining (take it back: locktender workers undrain w)"),
        (worker(draining=True, ending=True), "is draining because its process ends"),
    ],
)  # fmt: skip
def test_e7_the_bound_that_holds_is_named(one: Worker, says: str):
    text = no_room([one], "thread")

    assert text.removeprefix("the only worker that could take it ") == says


def test_e7_of_several_workers_it_says_how_many_of_each_kind():
    several = [
        worker("a", used={"thread": 8}, **EIGHT),
        worker("b", used={"thread": 8}, **EIGHT),
        worker("c", used={"thread": 4}, share=50, pressed={"memory": 0.8}, memory=0.9, **EIGHT),
        worker("d", draining=True),
    ]

    assert no_room(several, "thread", unstopped=1) == (
        "of 4 workers that could take it 1 is draining (take it back: locktender workers undrain d),"
        " 2 have all thread permits in use (16 tasks),"
        " 1 uses 50 % of its permits under pressure (4 of 8 in use): memory 90 % (over 80 %)"
        ", 1 asked to stop and still running"
    )
    assert no_room([several[3], worker("e", draining=True)], "thread") == (
        "all 2 workers that could take it are draining"
    )


def test_e7_pressure_is_told_with_its_numbers_and_when_it_ends():
    pressed = {"memory": 0.8, "latency": 1.0}

    assert pressures(pressed, 0.85, 3 * SECOND) == [
        "memory 85 % (over 80 %)",
        "p99 of its tasks 3s (over 1s)",
    ]
    assert pressures({"memory": 0.8}, 0.75, 0) == ["memory 75 % (was over 80 %, until 72 %)"]
    assert pressures({}, 0.99, 0) == []


@given(
    permits=st.integers(-1, 4).filter(lambda n: n != 0),
    total=st.integers(-1, 4).filter(lambda n: n != 0),
    share=st.sampled_from([35, 50, 70, 100]),
    claim=st.integers(-1, 3),
    full=st.booleans(),
    draining=st.booleans(),
    used=st.integers(0, 4),
    others=st.integers(0, 3),
    offered=st.integers(0, 3),
)
def test_e7_nobody_is_said_to_be_bound_who_has_room(
    permits: int, total: int, share: int, claim: int, used: int, others: int, offered: int,
    *, full: bool, draining: bool,
):  # fmt: skip
    """What explains and what decides cannot disagree."""
    one = worker(
        used={"async": used, "thread": others},
        offered=offered,
        permits={"async": permits, "thread": 8},
        total=total,
        share=share,
        claim=claim,
        full=("async",) if full else (),
        draining=draining,
    )

    room, why = one.room("async")

    assert (room > 0) == (why == "")
    row = one.row
    assert room <= 0 or (
        not (row.draining or row.full)
        and (permits < 0 or used < permits)
        and (total < 0 or used + others < total)
        and (claim < 0 or offered < claim)
    )


def test_e7_permits_are_what_it_can_have_under_all_its_bounds():
    assert usable_permits(worker(total=3, **EIGHT), "thread") == 3
    assert usable_permits(worker(share=35, **EIGHT), "thread") == 2
    assert usable_permits(worker(share=35, permits={"thread": 1}), "thread") == 1
    assert usable_permits(worker(permits={"thread": -1}, total=5), "thread") == 5


# -- by the rules that decide ----------------------------------------------------------------------


def lead(*flows: Any, limits: Limits | None = None, **row: Any) -> Scheduler:
    made = Scheduler(limits or Limits(), term=1, owner="me")
    made.graphs = {flow.flow: flow for flow in flows}
    made.put_worker(worker_row("w", **row), local=True)
    for number, flow in enumerate(flows, 1):
        made.put_head(run_row(number, graph=flow.flow, consts=numbers(3)))
        made.cycle(NOW)
    return made


def why(led: Scheduler, entry: TaskEntry, typical: Typical | None = None) -> dict[str, Reason]:
    return {each.gate: each for each in explain_task(led, entry, typical or Typical(), NOW + 30)}


def entry(led: Scheduler, run: int, name: str, idx: int = -1) -> TaskEntry:
    tasks = led.ledger.runs[run].tasks.values()
    return next(each for each in tasks if (each.spec.name, each.idx) == (name, idx))


def test_e7_a_full_total_is_told_from_lack_of_permits():
    thread = graph(step("t", executor="thread"), flow="threads")
    led = lead(thread, graph(step("a")), total=1)

    found = why(led, entry(led, 2, "a"), Typical(step_us={"a": 100}))["worker"]

    assert found.text == "the only worker that could take it has its 1 permit in total in use"
    assert (found.used, found.limit, found.estimate_us) == (1, 1, 70)


def test_e7_whoever_was_told_to_stop_and_does_not_is_pointed_at():
    led = lead(graph(items(pools=needs(db=1))), limits=Limits(pools={"db": PoolRule(1)}),
               permits={"async": 1})  # fmt: skip
    running = entry(led, 1, "m", 0)
    unstopped = Unstopped(running.token, running.id, "m", "timeout", NOW + 10)
    led.put_worker(worker_row("w", permits={"async": 1}, unstopped=[unstopped]), local=True)

    found = why(led, entry(led, 1, "m", 1))

    assert "(1 task, 1 asked to stop and still running)" in found["worker"].text
    [holder] = found["pool:db"].holders
    assert (holder.stop_reason, holder.stop_asked_at) == ("timeout", NOW + 10)


def test_e7_stopping_tasks_of_another_kind_do_not_block():
    """The total has room: only the one thread permit is lacking, and its body was told nothing."""
    one = Worker(worker_row("w", permits={"async": 5, "thread": 1}, total=10))
    one.used, one.used_by = 2, {"async": 1, "thread": 1}
    assert not bound_by_total(one, "thread")
    one.used = 10
    assert bound_by_total(one, "async")
