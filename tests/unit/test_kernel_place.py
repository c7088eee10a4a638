"""B2, D4: placement, the last gate."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.base.clock import SECOND
from headgate.base.limits import Placement
from headgate.kernel.place import A_SIP, PATIENCE_US, Floor, Skill
from headgate.kernel.tally import FEW, MOST_WHILE_US, SLACK
from headgate.testing.sim.build import worker_row

ASYNC = Skill("async", "download", "v1", ())


def floor(placement: Placement, *workers: tuple[str, dict[str, Any]]) -> Floor:
    made = Floor(placement)
    for order, (name, options) in enumerate(workers):
        made.put(worker_row(name, **({"since": order} | options)))
    return made


def fill(on: Floor, count: int, skill: Skill = ASYNC, *, offered: bool = True) -> list[str]:
    placed: list[str] = []
    for _ in range(count):
        worker = on.pick(skill)
        if worker is None:
            break
        on.take(worker, skill.executor, offered=offered)
        placed.append(worker.id)
    return placed


def small(permits: int) -> dict[str, Any]:
    return {"permits": {"async": permits}}


def test_b2_pack_fills_in_a_stable_order():
    for _ in range(3):
        on = floor("pack", ("c", small(2)), ("a", small(2)), ("b", small(1)))
        # By age, not by name: who came first is filled first, every time.
        assert fill(on, 9) == ["c", "c", "a", "a", "b"]


def test_b2_pack_breaks_ties_of_age_by_name():
    on = floor("pack", ("b", small(1) | {"since": 7}), ("a", small(1) | {"since": 7}))
    assert fill(on, 2) == ["a", "b"]


def test_b2_pack_rotates_past_a_busy_worker_and_comes_back():
    on = floor("pack", ("a", small(1)), ("b", small(3)))
    assert fill(on, 2) == ["a", "b"]
    on.give_back("a", "async", offered=True)
    assert fill(on, 1) == ["a"]


def test_b2_pack_rotates_past_a_vanished_worker():
    on = floor("pack", ("a", small(5)), ("b", small(5)))
    assert fill(on, 1) == ["a"]
    on.drop("a")
    assert fill(on, 1) == ["b"]
    # What it held comes back late: nobody is there to be given anything.
    assert on.give_back("a", "async", offered=True) == []


def test_spread_offers_to_the_most_free():
    on = floor("spread", ("a", small(2)), ("b", small(4)))
    assert fill(on, 9) == ["b", "b", "a", "b", "a", "b"]


def test_d4_spread_shares_light_load_as_well():
    on = floor("spread", ("a", small(9)), ("b", small(9)), ("c", small(9)))
    placed: list[str] = []
    for _ in range(30):
        # One at a time: every worker is always equally free.
        [name] = fill(on, 1)
        placed.append(name)
        on.give_back(name, "async", offered=True)
    assert {placed.count(name) for name in "abc"} == {10}


def test_affinity_is_a_preference():
    on = floor("pack", ("a", small(5)), ("b", small(1)))
    liked = on.pick(ASYNC, prefer="b")
    assert liked is not None
    assert liked.id == "b"


@pytest.mark.parametrize("prefer", ["b", "gone", None])
def test_affinity_is_never_a_queue(prefer: str | None):
    on = floor("pack", ("a", small(5)), ("b", small(0)))
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
    on = floor(
        "pack",
        ("plain", {}),
        ("gpu", {"labels": {"gpu": "a100"}}),
        ("gpu-eu", {"labels": {"gpu": "a100", "zone": "eu"}}),
    )
    worker = on.pick(Skill("async", "s", "", needs))
    assert (worker and worker.id) == expected


def test_a_task_goes_only_where_its_step_is_known_in_its_version():
    on = floor(
        "pack",
        ("old", {"steps": {"download": "v0"}}),
        ("other", {"steps": {"index": "v1"}}),
        ("new", {"steps": {"download": "v1"}}),
    )
    assert set(fill(on, 3)) == {"new"}
    assert [worker.id for worker in on.matching(ASYNC)] == ["new"]


def test_permits_are_per_executor_and_in_total():
    on = floor("pack", ("a", {"permits": {"async": 3, "thread": 2}, "total": 4}))
    thread = Skill("thread", "s", "", ())
    assert fill(on, 9) == ["a"] * 3
    assert fill(on, 9, thread) == ["a"]
    assert on.pick(Skill("process", "s", "", ())) is None


def test_unlimited_permits_are_bounded_by_the_claim():
    on = floor("pack", ("a", {"permits": {"async": -1}, "claim": 7}))
    assert len(fill(on, 100)) == 7


def test_claim_bounds_offers_that_are_not_answered():
    on = floor("pack", ("a", {"permits": {"async": 10}, "claim": 2}))
    assert fill(on, 9) == ["a", "a"]
    on.answered("a")
    # Accepted: it holds a permit and no longer counts against the claim.
    assert fill(on, 9) == ["a"]
    assert on.workers["a"].used == 3


def test_a_worker_in_this_process_has_no_open_offers():
    on = floor("pack", ("a", {"permits": {"async": 10}, "claim": 2}))
    assert len(fill(on, 9, offered=False)) == 9


def test_a_draining_worker_gets_nothing_more():
    on = floor("pack", ("a", {"draining": True}), ("b", {}))
    assert fill(on, 1) == ["b"]


def test_b2_a_worker_that_describes_itself_anew_keeps_what_it_holds():
    on = floor("pack", ("a", small(2)))
    fill(on, 2)
    row = on.workers["a"].row
    on.put(msgspec.structs.replace(row, permits={"async": 3}))
    assert fill(on, 9) == ["a"]


def test_a_worker_that_gains_an_executor_is_asked_at_once():
    on = floor("pack", ("a", small(0)))
    assert on.pick(ASYNC) is None
    on.put(msgspec.structs.replace(on.workers["a"].row, permits={"async": 1}))
    assert fill(on, 9) == ["a"]


def test_a_free_permit_concerns_the_stations_that_could_use_it():
    on = floor("pack", ("a", {"permits": {"async": 1, "thread": 1}}))
    thread = Skill("thread", "s", "", ())
    stations = [on.station(ASYNC), on.station(thread)]
    assert on.waiting_for(on.workers["a"], "async") == []
    for station in stations:
        station.parked[1] = [((0, 0, 0, 0), 0, None)]  # type: ignore[list-item]
    assert on.waiting_for(on.workers["a"], "async") == [stations[0]]
    assert on.waiting_for(on.workers["a"], None) == stations


def test_d4_what_a_worker_claims_does_not_make_it_seem_busy():
    """The leader's own worker claims without bound, another 50 at a time: both have 100 permits free."""
    on = floor("spread", ("own", {"claim": -1}), ("other", {"claim": 50}))
    assert sorted(fill(on, 4)) == ["other", "other", "own", "own"]


# -- D4: the leader's own worker among others --------------------------------------------------------


def leading(**own: Any) -> Floor:
    """The leader's own worker and two like it elsewhere, which answer when a test says so."""
    on = Floor("spread")
    on.now = SECOND
    on.put(worker_row("own", **own), local=True)
    for name in "bc":
        on.put(worker_row(name, **({"claim": 50} | own)))
    return on


def give(on: Floor, count: int) -> Counter[str]:
    """As the ledger does: pick, take, count."""
    placed: Counter[str] = Counter()
    for _ in range(count):
        worker = on.pick(ASYNC)
        if worker is None:
            break
        on.take(worker, "async", offered=not worker.local)
        on.station(ASYNC).tally.gave(worker.id)
        placed[worker.id] += 1
    return placed


def end(on: Floor, name: str) -> None:
    """As the ledger does: an attempt that ran there has ended."""
    on.workers[name].heard_at = on.now
    on.left(on.station(ASYNC), name)
    on.give_back(name, "async", offered=False)


@pytest.mark.parametrize("permits", [100, -1], ids=["bounded", "unlimited"])
def test_d4_the_leaders_own_worker_waits_for_answers_on_their_way(permits: int):
    on = leading(permits={"async": permits})
    first = give(on, 1_000)
    # The others have as many offers as they claim; it is not given all the rest meanwhile.
    assert (first["b"], first["c"]) == (50, 50)
    assert first["own"] <= 50 * 4 // 3 + SLACK
    assert on.held_until == on.now + PATIENCE_US

    for name in "bc" * 50:
        on.answered(name, on.now)
    assert sum(give(on, 1_000).values()) > 0


def test_d4_a_worker_that_does_not_answer_holds_up_nobody():
    on = leading()
    give(on, 1_000)
    assert on.pick(ASYNC) is None
    on.station(ASYNC).parked[1] = [((0, 0, 0, 0), 0, None)]  # type: ignore[list-item]
    assert on.patience_ends() == []

    on.now += PATIENCE_US
    assert on.patience_ends() == [on.station(ASYNC)]
    give(on, 1_000)
    assert on.workers["own"].vacant("async") == 0


def test_d4_bodies_that_run_are_waited_for_a_while():
    """All permits of the others are in use: they have nothing to answer, and are soon heard of."""
    on = leading(permits={"async": 4})
    give(on, 1_000)
    for name in "bc" * 4:
        on.answered(name, on.now)
    own = 4
    for _ in range(own):
        end(on, "own")
    own += give(on, 1_000)["own"]
    while on.workers["own"].used:
        end(on, "own")
        own += give(on, 1)["own"]
    assert own <= 4 * 4 // 3 + SLACK
    assert on.held_until == on.now + MOST_WHILE_US

    on.now += MOST_WHILE_US
    assert give(on, 1_000) == {"own": 4}


@pytest.mark.parametrize("more_waits", [True, False])
def test_d4_when_a_piece_of_work_is_done_all_begin_anew(more_waits: bool):
    """Not between two waves of one: then the leader's own would be ahead in each."""
    on = leading(permits={"async": 4})
    had = give(on, 1_000)
    for name in "bc" * 4:
        on.answered(name, on.now)
    for name in ("own", "b", "c"):
        for _ in range(had[name]):
            end(on, name)
    if more_waits:
        on.station(ASYNC).parked[1] = [((0, 0, 0, 0), 0, None)]  # type: ignore[list-item]
    for _ in range(6):  # it alone had more than its share of the last ones
        on.station(ASYNC).tally.gave("own")
        on.left(on.station(ASYNC), "own")
    on.decided()
    on.station(ASYNC).tally.gave("b")
    assert on.station(ASYNC).tally.ahead("own", "b") is more_waits


def test_d4_bodies_of_another_kind_are_not_waited_for():
    on = leading(permits={"async": 4})
    give(on, 1_000)
    for name in "bc" * 4:
        on.answered(name, on.now)
        on.station(ASYNC).tally.left(name)  # what runs there now is something else
    for _ in range(20):
        end(on, "own")
        assert give(on, 1) == {"own": 1}


@pytest.mark.parametrize("change", ["silent", "draining", "gone", "slow", "unfit"])
def test_d4_nobody_waits_for_one_that_will_not_come(change: str):
    on = leading()
    give(on, 1_000)
    for name in "bc":
        worker = on.workers[name]
        if change == "silent":
            worker.silent = True
        elif change == "draining":
            on.put(msgspec.structs.replace(worker.row, draining=True))
        elif change == "gone":
            on.drop(name)
        elif change == "unfit":
            on.put(msgspec.structs.replace(worker.row, steps={}))
        else:
            for _ in range(FEW):
                on.station(ASYNC).tally.lasted("own", 50_000)
                on.station(ASYNC).tally.lasted(name, 100_000)
    picked = on.pick(ASYNC)
    assert picked is not None
    assert picked.id == "own"


@pytest.mark.parametrize(
    ("claim", "permits", "full", "waits"),
    [
        (A_SIP - 1, 100, (), False),  # few at a time, though it has room for more
        (1, -1, (), False),
        (A_SIP, 100, (), True),
        (A_SIP - 1, A_SIP - 1, (), True),  # as many as it can run
        (1, 100, ("async",), True),  # what it claims is for other executors
    ],
)
def test_d4_nobody_waits_for_one_that_takes_few_at_a_time(
    claim: int, permits: int, full: tuple[str, ...], *, waits: bool
):
    on = leading(permits={"async": permits})
    on.drop("c")
    give(on, 1_000)
    on.put(msgspec.structs.replace(on.workers["b"].row, claim=claim, full=full))
    assert on.workers["b"].offered > 0
    for _ in range(1_000):  # its own come round while the other has yet to answer
        if on.workers["own"].used:
            end(on, "own")
        give(on, 1)

    assert (on.pick(ASYNC) is None) == waits


def test_a_leaders_own_worker_is_given_no_more_in_all_than_it_claims():
    """Nothing of what it is given is an offer: it counts for good, whether it has ended or not."""
    on = leading(permits={"async": 4}, claim=6)
    for name in "bc":
        on.drop(name)
    assert give(on, 9) == {"own": 4}
    for _ in range(4):
        on.give_back("own", "async", offered=False)
    assert give(on, 9) == {"own": 2}
    on.put(msgspec.structs.replace(on.workers["own"].row, claim=7))
    assert give(on, 9) == {"own": 1}


def test_d4_pack_waits_for_nobody():
    on = leading()
    on.placement = "pack"
    assert give(on, 1_000)["own"] == 100


def test_d4_alone_the_leaders_own_worker_counts_nothing():
    on = Floor("spread")
    on.put(worker_row("own"), local=True)
    assert not on.unequal
    on.put(worker_row("b"))
    assert on.unequal
    on.drop("b")
    assert not on.unequal


def test_d4_who_joins_late_is_not_given_all_that_comes_one_at_a_time():
    on = floor("spread", ("a", small(9)), ("b", small(9)))
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


@given(
    permits=st.sampled_from([16, 100, -1]),
    swifter=st.integers(1, 10),
    seed=st.integers(0, 1_000),
)
@settings(max_examples=25, deadline=None)
def test_d4_however_much_swifter_the_leaders_own_is_served(permits: int, swifter: int, seed: int):
    """Ends and answers come in any order, those of the leader's own up to ten times as often."""
    chance = Random(seed)
    on = leading(permits={"async": permits})
    had = give(on, 1_000)
    while had.total() < 1_500:
        offered = [name for name in "bc" if on.workers[name].offered]
        running = [w.id for w in on.workers.values() if w.used > w.offered]
        events = [(name, True) for name in offered] + [(name, False) for name in running]
        weights = [swifter if name == "own" else 1 for name, _ in events]
        [(name, answers)] = chance.choices(events, weights)
        on.now += 100
        if answers:
            on.answered(name, on.now)
        else:
            end(on, name)
        had += give(on, 1_000)
    assert max(had.values()) <= 1.5 * min(had.values())
