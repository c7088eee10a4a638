"""B2, D4: placement, the last gate."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.support.worlds import worker_row

from locktender.base.limits import Placement
from locktender.kernel.gates.worker import Requirement
from locktender.kernel.placement import MAX_AFFINITIES, WorkerSet

ASYNC = Requirement("async", "download", "v1", ())


def worker_set(placement: Placement, *workers: tuple[str, dict[str, Any]]) -> WorkerSet:
    made = WorkerSet(placement)
    for order, (name, options) in enumerate(workers):
        made.put(worker_row(name, **({"since": order} | options)))
    return made


def fill(
    on: WorkerSet, count: int, requirement: Requirement = ASYNC, *, offered: bool = True
) -> list[str]:
    placed: list[str] = []
    for _ in range(count):
        worker = on.pick(requirement)
        if worker is None:
            break
        on.claim_permit(worker, requirement.executor, offered=offered)
        placed.append(worker.id)
    return placed


def small(permits: int) -> dict[str, Any]:
    return {"permits": {"async": permits}}


def test_b2_pack_fills_in_a_stable_order():
    for _ in range(3):
        on = worker_set("pack", ("c", small(2)), ("a", small(2)), ("b", small(1)))
        # By age, not by name: who came first is filled first, every time.
        assert fill(on, 9) == ["c", "c", "a", "a", "b"]


def test_b2_pack_breaks_ties_of_age_by_name():
    on = worker_set("pack", ("b", small(1) | {"since": 7}), ("a", small(1) | {"since": 7}))
    assert fill(on, 2) == ["a", "b"]


def test_b2_pack_rotates_past_a_busy_worker_and_comes_back():
    on = worker_set("pack", ("a", small(1)), ("b", small(3)))
    assert fill(on, 2) == ["a", "b"]
    on.give_back("a", "async", offered=True)
    assert fill(on, 1) == ["a"]


def test_b2_pack_rotates_past_a_vanished_worker():
    on = worker_set("pack", ("a", small(5)), ("b", small(5)))
    assert fill(on, 1) == ["a"]
    on.drop("a")
    assert fill(on, 1) == ["b"]
    # What it held comes back late: nobody is there to be given anything.
    on.give_back("a", "async", offered=True)
    assert on.reopened() == []


def test_spread_offers_to_the_most_free():
    on = worker_set("spread", ("a", small(2)), ("b", small(4)))
    assert fill(on, 9) == ["b", "b", "a", "b", "a", "b"]


def test_d4_spread_shares_light_load_as_well():
    on = worker_set("spread", ("a", small(9)), ("b", small(9)), ("c", small(9)))
    placed: list[str] = []
    for _ in range(30):
        # One at a time: every worker is always equally free.
        [name] = fill(on, 1)
        placed.append(name)
        on.give_back(name, "async", offered=True)
    assert {placed.count(name) for name in "abc"} == {10}


def test_affinity_is_a_preference():
    on = worker_set("pack", ("a", small(5)), ("b", small(1)))
    liked = on.pick(ASYNC, prefer="b")
    assert liked is not None
    assert liked.id == "b"


def test_d8_workers_of_affinities_are_kept_within_bounds():
    on = worker_set("spread", ("a", {}), ("b", {}))
    for number in range(MAX_AFFINITIES):
        on.prefer(f"key-{number}", "a")
    on.prefer("key-0", "b")  # asked for again: it is not the oldest any more
    on.prefer("one more", "a")

    assert on.preferred("key-0") == "b"
    assert on.preferred("key-1") is None
    assert on.preferred("key-2") == "a"


@pytest.mark.parametrize("prefer", ["b", "gone", None])
def test_affinity_is_never_a_queue(prefer: str | None):
    on = worker_set("pack", ("a", small(5)), ("b", small(0)))
    other = on.pick(ASYNC, prefer=prefer)
    assert other is not None
    assert other.id == "a"


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ((), "plain"),
        ((("gpu", "a100"),), "gpu"),
        ((("gpu", "a100"), ("zone", "eu")), "gpu-eu"),
        ((("gpu", "h100"),), None),
    ],
)
def test_labels_must_match_all_of_them(needs: tuple[tuple[str, str], ...], expected: str | None):
    on = worker_set(
        "pack",
        ("plain", {}),
        ("gpu", {"labels": {"gpu": "a100"}}),
        ("gpu-eu", {"labels": {"gpu": "a100", "zone": "eu"}}),
    )
    worker = on.pick(Requirement("async", "s", "", needs))
    assert (worker and worker.id) == expected


def test_a_task_goes_only_where_its_step_is_known_in_its_version():
    on = worker_set(
        "pack",
        ("old", {"steps": {"download": "v0"}}),
        ("other", {"steps": {"index": "v1"}}),
        ("new", {"steps": {"download": "v1"}}),
    )
    assert set(fill(on, 3)) == {"new"}
    assert [worker.id for worker in on.matching(ASYNC)] == ["new"]


def test_permits_are_per_executor_and_in_total():
    on = worker_set("pack", ("a", {"permits": {"async": 3, "thread": 2}, "total": 4}))
    thread = Requirement("thread", "s", "", ())
    assert fill(on, 9) == ["a"] * 3
    assert fill(on, 9, thread) == ["a"]
    assert on.pick(Requirement("process", "s", "", ())) is None


def test_unlimited_permits_are_bounded_by_the_claim():
    on = worker_set("pack", ("a", {"permits": {"async": -1}, "claim": 7}))
    assert len(fill(on, 100)) == 7


def test_claim_bounds_offers_that_are_not_answered():
    on = worker_set("pack", ("a", {"permits": {"async": 10}, "claim": 2}))
    assert fill(on, 9) == ["a", "a"]
    on.answered("a")
    # Accepted: it holds a permit and no longer counts against the claim.
    assert fill(on, 9) == ["a"]
    assert on.by_id["a"].used == 3


def test_an_acceptance_is_awaited_where_it_lets_more_be_offered():
    on = worker_set("pack", ("a", {"permits": {"async": 5, "thread": 8}, "claim": 2}))
    gate = on.gate(ASYNC)
    fill(on, 2)
    assert not on.awaits_answer("a")  # nobody waits for it
    gate.parked[1] = []
    assert on.awaits_answer("a")  # permits are free, and its claim is used up
    on.answered("a")
    assert not on.awaits_answer("a")
    on.put(worker_row("a", permits={"async": 2, "thread": 8}, claim=1))
    fill(on, 9)
    assert not on.awaits_answer("a")  # no permit that is waited for is free, whatever it answers
    assert on.awaits_answer("unknown")


def test_a_worker_in_this_process_has_no_open_offers():
    on = worker_set("pack", ("a", {"permits": {"async": 10}, "claim": 2}))
    assert len(fill(on, 9, offered=False)) == 9


def test_a_draining_worker_gets_nothing_more():
    on = worker_set("pack", ("a", {"draining": True}), ("b", {}))
    assert fill(on, 1) == ["b"]


def test_b2_a_worker_that_changes_its_row_keeps_its_tasks():
    on = worker_set("pack", ("a", small(2)))
    fill(on, 2)
    row = on.by_id["a"].row
    on.put(msgspec.structs.replace(row, permits={"async": 3}))
    assert fill(on, 9) == ["a"]


def test_a_worker_that_gains_an_executor_is_asked_at_once():
    on = worker_set("pack", ("a", small(0)))
    assert on.pick(ASYNC) is None
    on.put(msgspec.structs.replace(on.by_id["a"].row, permits={"async": 1}))
    assert fill(on, 9) == ["a"]


def test_a_free_permit_wakes_the_gates_that_could_use_it():
    on = worker_set("pack", ("a", {"permits": {"async": 1, "thread": 1}}))
    thread = Requirement("thread", "s", "", ())
    gates = [on.gate(ASYNC), on.gate(thread)]
    assert on.waiting_for(on.by_id["a"], "async") == []
    for gate in gates:
        gate.parked[1] = [((0, 0, 0, 0), 0, None)]  # type: ignore[list-item]
    assert on.waiting_for(on.by_id["a"], "async") == [gates[0]]
    assert on.waiting_for(on.by_id["a"], None) == gates


def test_d4_what_a_worker_claims_does_not_make_it_seem_busy():
    """The leader's own worker claims without bound, another 50 at a time: both have 100 permits free."""
    on = worker_set("spread", ("own", {"claim": -1}), ("other", {"claim": 50}))
    assert sorted(fill(on, 4)) == ["other", "other", "own", "own"]


def test_a_leaders_own_worker_gets_no_more_than_its_claim():
    """Nothing of what it is given is an offer: it counts for good, whether it has ended or not."""
    on = WorkerSet("spread")
    on.put(worker_row("own", permits={"async": 4}, claim=6), local=True)
    assert len(fill(on, 9, offered=False)) == 4
    for _ in range(4):
        on.give_back("own", "async", offered=False)
    assert len(fill(on, 9, offered=False)) == 2
    on.put(msgspec.structs.replace(on.by_id["own"].row, claim=7))
    assert len(fill(on, 9, offered=False)) == 1


def test_d4_a_late_worker_does_not_get_all_single_tasks():
    on = worker_set("spread", ("a", small(9)), ("b", small(9)))
    for _ in range(50):
        [name] = fill(on, 1)
        on.give_back(name, "async", offered=True)
    on.put(worker_row("late", permits={"async": 9}, since=9))
    placed: Counter[str] = Counter()
    for _ in range(30):
        [name] = fill(on, 1)
        placed[name] += 1
        on.give_back(name, "async", offered=True)
    assert max(placed.values()) <= 1.5 * min(placed.values())


@pytest.mark.parametrize(
    ("permits", "total", "expected"),
    [(8, -1, 4), (8, 4, 2), (-1, 10, 5), (8, 1, 1), (-1, -1, 20)],
)
def test_d6_under_pressure_a_part_of_permits_is_used(permits: int, total: int, expected: int):
    on = worker_set("spread", ("a", {"permits": {"async": permits}, "total": total, "share": 50}))
    assert len(fill(on, 20)) == expected
