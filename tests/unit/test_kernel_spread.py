"""D4 at the floor: the leader's own worker waits for equal ones that are soon heard of, and for no other."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locktender.base.clock import MILLISECOND, SECOND
from locktender.kernel.placement import A_SIP, PATIENCE_US, Requirement, WorkerSet
from locktender.kernel.tally import A_WHILE_US, FEW, SHORT_US, SLACK, Tally
from locktender.simulate.build import worker_row

ASYNC = Requirement("async", "download", "v1", ())
OTHER = Requirement("async", "upload", "v1", ())
WAITER: Any = ((0, 0, 0, 0), 0, None)


class Leading:
    """The leader's own worker and two like it elsewhere, fed as the ledger feeds them.

    Those answer, and bodies end, when a test says so.
    """

    def __init__(self, **own: Any) -> None:
        self.floor = WorkerSet("spread")
        self.floor.now = SECOND
        self.floor.put(worker_row("own", **own), local=True)
        for name in "bc":
            self.floor.put(worker_row(name, **({"claim": 50} | own)))
        self.offered: dict[str, deque[int]] = {name: deque() for name in ("own", "b", "c")}
        self.running: dict[str, deque[int]] = {name: deque() for name in ("own", "b", "c")}
        self.skills: dict[int, Requirement] = {}

    @property
    def tally(self) -> Tally:
        return self.floor.station(ASYNC).tally

    def give(self, count: int = 1_000, skill: Requirement = ASYNC) -> Counter[str]:
        """As much as there is room for."""
        placed: Counter[str] = Counter()
        for _ in range(count):
            worker = self.floor.pick(skill)
            if worker is None:
                break
            self.take(worker.id, skill)
            placed[worker.id] += 1
        return placed

    def take(self, name: str, skill: Requirement = ASYNC) -> None:
        worker, task = self.floor.workers[name], len(self.skills) + 1
        self.skills[task] = skill
        self.floor.take(worker, "async", offered=not worker.local)
        tally = self.floor.station(skill).tally
        tally.gave(name, task, self.floor.now, offered=not worker.local)
        (self.running if worker.local else self.offered)[name].append(task)

    def answer(self, name: str) -> None:
        task = self.offered[name].popleft()
        self.running[name].append(task)
        self.floor.station(self.skills[task]).tally.answered(name, task, self.floor.now)
        self.floor.answered(name)

    def answer_all(self) -> None:
        for name in "bc":
            while self.offered[name]:
                self.answer(name)

    def end(self, name: str, took_us: int | None = None) -> None:
        task = self.running[name].popleft()
        station = self.floor.station(self.skills[task])
        if took_us is not None:
            station.tally.lasted(name, took_us)
        self.floor.left(station, name, task)
        self.floor.give_back(name, "async", offered=False)

    def turn_over(self, most: int, took_us: int) -> int:
        """The leader's own come round, each at once given another; how many until it has to wait."""
        for done in range(most):
            if not self.running["own"]:
                return done
            self.end("own", took_us)
            self.give(1)
        return most


@pytest.mark.parametrize("permits", [100, -1], ids=["bounded", "unlimited"])
def test_d4_answers_on_their_way_are_waited_for(permits: int):
    on = Leading(permits={"async": permits})
    first = on.give()
    # The others have as many offers as they claim; it is not given all the rest meanwhile.
    assert (first["b"], first["c"]) == (50, 50)
    assert first["own"] <= 50 * 4 // 3 + SLACK
    assert on.floor.held_until == on.floor.now + PATIENCE_US

    on.answer_all()
    assert sum(on.give().values()) > 0


def test_d4_a_worker_that_does_not_answer_holds_up_nobody():
    on = Leading()
    on.give()
    assert on.floor.pick(ASYNC) is None
    on.floor.station(ASYNC).parked[1] = [WAITER]
    assert on.floor.patience_ends() == []

    on.floor.now += PATIENCE_US
    assert on.floor.patience_ends() == [on.floor.station(ASYNC)]
    on.give()
    assert on.floor.workers["own"].vacant("async") == 0


def test_d4_short_bodies_that_run_are_waited_for_a_while():
    """All permits of the others are in use: they have nothing to answer, and are soon heard of."""
    on = Leading(permits={"async": 4})
    on.give()
    on.answer_all()
    assert 4 + on.turn_over(100, 20 * MILLISECOND) <= 4 * 4 // 3 + SLACK + 4
    until = on.floor.now + A_WHILE_US + 2 * 20 * MILLISECOND
    assert on.floor.held_until == until

    on.floor.now = until
    assert on.give() == {"own": 4}


def test_d4_long_bodies_are_not_waited_for():
    on = Leading(permits={"async": 4})
    on.give()
    on.answer_all()
    assert on.turn_over(40, SHORT_US) == 40


def test_d4_permits_that_hold_a_long_body_do_not_count():
    """Three of four permits are taken for long: the own may have four times as many as the one that turns."""
    on = Leading(permits={"async": 4})
    on.floor.drop("c")
    on.give()
    on.answer_all()
    on.turn_over(1, 20 * MILLISECOND)
    on.floor.now += SECOND
    own = other = 0
    for _ in range(50):
        task = on.running["b"].pop()  # the youngest ends, those before it stay
        on.running["b"].appendleft(task)
        on.end("b", 20 * MILLISECOND)
        other += on.give()["b"]
        on.answer_all()
        own += on.turn_over(4, 20 * MILLISECOND)
        assert len(on.running["own"]) == 4  # none of them stands empty
        on.floor.now += 20 * MILLISECOND
    assert own >= 3 * other


def test_d4_what_another_kind_does_there_says_nothing_of_this_one():
    """It holds one long body of this kind and many short ones of another, which end all the time."""
    on = Leading(permits={"async": 8})
    on.floor.drop("c")
    on.give()
    on.answer_all()
    while len(on.running["b"]) > 1:
        on.end("b")
    for _ in range(7):
        on.take("b", OTHER)
    on.answer_all()
    on.floor.now += SECOND
    begun = 0
    for _ in range(40):
        on.running["b"].rotate(-1)
        task = on.running["b"][0]
        if on.skills[task] is OTHER:
            on.end("b")
            on.take("b", OTHER)
            on.answer("b")
        begun += on.turn_over(1, 20 * MILLISECOND)
        on.floor.now += 20 * MILLISECOND
    assert begun == 40


def test_d4_what_was_missed_for_other_work_is_not_caught_up():
    """It comes back after others had hundreds: one round of its permits, and all go on as equals."""
    on = Leading(permits={"async": 8})
    on.floor.drop("c")
    on.give()
    on.answer_all()
    while on.running["b"]:
        on.end("b")
    for _ in range(8):
        on.take("b", OTHER)
    on.answer_all()
    assert on.turn_over(400, 20 * MILLISECOND) == 400
    rounds = own = 0
    while not own:
        for name in ("own", "b"):
            while on.running[name]:
                on.end(name, 20 * MILLISECOND)
        own = on.give()["own"]
        on.answer_all()
        rounds += 1
    assert rounds <= 3


def test_d4_a_worker_under_pressure_rightly_gets_fewer():
    on = Leading(permits={"async": 8})
    on.floor.drop("c")
    on.floor.put(msgspec.structs.replace(on.floor.workers["b"].row, share=50))
    had = on.give()
    on.answer_all()
    assert had == {"own": 8, "b": 4}
    assert had["own"] + on.turn_over(100, 20 * MILLISECOND) > 4 * 4 // 3 + SLACK + 4


def test_d4_a_clock_that_was_set_back_makes_nobody_wait():
    on = Leading()
    on.give()
    on.floor.now -= 3600 * SECOND
    picked = on.floor.pick(ASYNC)
    assert picked is not None
    assert picked.id == "own"


@pytest.mark.parametrize("change", ["silent", "draining", "gone", "slow", "unfit"])
def test_d4_nobody_waits_for_one_that_will_not_come(change: str):
    on = Leading()
    on.give()
    for name in "bc":
        worker = on.floor.workers[name]
        if change == "silent":
            worker.silent = True
        elif change == "draining":
            on.floor.put(msgspec.structs.replace(worker.row, draining=True))
        elif change == "gone":
            on.floor.drop(name)
        elif change == "unfit":
            on.floor.put(msgspec.structs.replace(worker.row, steps={}))
        else:
            for _ in range(FEW):
                on.tally.lasted("own", 50_000)
                on.tally.lasted(name, 100_000)
    picked = on.floor.pick(ASYNC)
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
    on = Leading(permits={"async": permits})
    on.floor.drop("c")
    on.give()
    on.floor.put(msgspec.structs.replace(on.floor.workers["b"].row, claim=claim, full=full))
    assert on.floor.workers["b"].offered > 0
    on.turn_over(1_000, 20 * MILLISECOND)  # while the other has yet to answer
    assert (on.floor.pick(ASYNC) is None) == waits


@pytest.mark.parametrize("more_waits", [True, False])
def test_d4_when_a_piece_of_work_is_done_all_begin_anew(more_waits: bool):
    """Not between two waves of one: then the leader's own would be ahead in each."""
    on = Leading(permits={"async": 4})
    on.give()
    on.answer_all()
    for name in ("own", "b", "c"):
        while on.running[name]:
            on.end(name)
    if more_waits:
        on.floor.station(ASYNC).parked[1] = [WAITER]
    for _ in range(6):  # it alone had more than its share of the last ones
        on.take("own")
        on.end("own")
    on.floor.decided()
    on.take("b")
    assert on.tally.ahead("own", "b") is more_waits


def test_d4_pack_waits_for_nobody():
    on = Leading()
    on.floor.placement = "pack"
    assert on.give()["own"] == 100


def test_d4_alone_the_leaders_own_worker_counts_nothing():
    """What it has in flight when the last other leaves ends uncounted, and must not count as work for ever."""
    on = Leading(permits={"async": 4})
    on.give()
    assert on.floor.unequal
    for name in "bc":
        on.floor.drop(name)
    assert not on.floor.unequal
    assert on.tally.in_flight == 0
    while on.running["own"]:
        on.end("own")
    on.floor.put(worker_row("b"))
    assert on.floor.unequal
    assert on.tally.in_flight == 0


@given(
    permits=st.sampled_from([16, 100, -1]),
    swifter=st.integers(1, 10),
    seed=st.integers(0, 1_000),
)
@settings(max_examples=25, deadline=None)
def test_d4_however_much_swifter_the_leaders_own_is_served(permits: int, swifter: int, seed: int):
    """Ends and answers come in any order, those of the leader's own up to ten times as often."""
    chance = Random(seed)
    on = Leading(permits={"async": permits})
    had = on.give()
    while had.total() < 1_500:
        events = [(name, True) for name in "bc" if on.offered[name]]
        events += [(name, False) for name, tasks in on.running.items() if tasks]
        weights = [swifter if name == "own" else 1 for name, _ in events]
        [(name, answers)] = chance.choices(events, weights)
        on.floor.now += 100
        if answers:
            on.answer(name)
        else:
            on.end(name, 20 * MILLISECOND)
        had += on.give()
    assert max(had.values()) <= 1.5 * min(had.values())
