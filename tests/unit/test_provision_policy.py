"""B6: workers are asked for on overflow only, once, within a maximum, an interval and a cool-down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from locktender.base.config import Settings, load
from locktender.base.errors import InvalidSettings
from locktender.base.model import WorkerRow
from locktender.kernel.demand import Demand, Want
from locktender.provision.policy import LONGEST_COOLDOWN_US, Policy, Rules
from locktender.provision.protocol import Capacity, Provisioned
from locktender.provision.state import ProvisionPlan, Stored, WorkersSeen
from locktender.simulate.build import worker_row

SECOND = 1_000_000
GPU = (("gpu", "a100"),)
STEPS = {"fetch": "s1", "store": "s1"}
ANY = Capacity({"async": 2, "thread": 1})
"""Of a provisioner that does not know beforehand which steps its workers will have."""


class Offers:
    """What the policy may know of a provisioner beforehand."""

    def __init__(self, capacity: Capacity | None = None) -> None:
        self.one = capacity or Capacity({"async": 2, "thread": 1}, steps=STEPS)

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        if dict(needs) not in ({}, dict(GPU)):
            return None
        one = self.one
        return Capacity(one.permits, one.total, {**one.labels, **needs}, one.steps)

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        raise AssertionError("the policy does not ask by itself")

    async def list(self) -> list[Provisioned]:
        raise AssertionError

    async def release(self, name: str) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def want(
    tasks: int,
    *,
    room: int = 0,
    executor: str = "async",
    needs: tuple[tuple[str, str], ...] = (),
    step: str = "fetch",
    workers: int = 1,
) -> Want:
    return Want(executor, needs, step, "s1", tasks, 0, workers, room)


def seen(
    *wants: Want,
    present: tuple[str, ...] = (),
    listed: tuple[Provisioned, ...] = (),
    stored: tuple[Stored, ...] = (),
    **row: object,
) -> WorkersSeen:
    """`row`: what is unlike others about those present."""
    like = {"steps": STEPS, **row}
    rows: list[WorkerRow] = [worker_row(f"w-{name}", provision=name, **like) for name in present]
    demand = Demand(sum(each.tasks for each in wants), wants, len(rows))
    return WorkersSeen(demand, rows, listed, stored)


class Desk:
    """A policy with a clock and a provisioner that grants everything at once."""

    def __init__(self, rules: Rules | None = None, capacity: Capacity | None = None) -> None:
        self.policy = Policy(rules or Rules(max_workers=3), Offers(capacity), seed=7)
        self.now = 100 * SECOND
        self.names = 0

    def look(self, sight: WorkersSeen, *, after: float = 0.0, grant: bool = True) -> ProvisionPlan:
        self.now += int(after * SECOND)
        plan = self.policy.plan(sight, self.now)
        if grant:
            for ask in plan.asks:
                granted = [f"n{self.names + i}" for i in range(ask.n)]
                self.names += ask.n
                self.policy.asked(ask, granted, self.now)
        return plan

    def asked(self, *wants: Want, after: float = 0.0, **kwargs: object) -> int:
        plan = self.look(seen(*wants, **kwargs), after=after)  # pyright: ignore[reportArgumentType]
        return sum(ask.n for ask in plan.asks)


def failed(name: str, why: str = "exit code 3") -> Provisioned:
    return Provisioned(name, "failed", 0, why)


def alive(name: str) -> Provisioned:
    return Provisioned(name, "running")


def ended(name: str, why: str = "exit code 0", *, released: bool = False) -> Provisioned:
    return Provisioned(name, "ended", 0, why, released)


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ((), 0),
        ((want(1),), 1),
        ((want(2),), 1),
        ((want(3),), 2),
        ((want(100),), 3),
        ((want(2, room=2),), 0),
        ((want(3, room=2),), 1),
        ((want(1), want(1, step="store")), 1),
        ((want(2), want(1, executor="thread")), 1),
        ((want(2), want(2, executor="thread")), 2),
        ((want(1, executor="process"),), 0),
        ((want(1, needs=(("gpu", "h100"),)),), 0),
        ((want(1), want(1, needs=GPU)), 2),
        ((want(1, needs=GPU), want(1)), 1),
    ],
)
def test_how_many_are_asked_for(wants: tuple[Want, ...], expected: int):
    """Two async permits and one thread each; at most three workers."""
    assert Desk().asked(*wants) == expected


def test_total_permits_of_a_worker_bound_what_it_takes():
    desk = Desk(Rules(max_workers=10), Capacity({"async": 5, "thread": 5}, total=2, steps=STEPS))
    assert desk.asked(want(2), want(2, executor="thread")) == 2


def test_unlimited_permits_take_everything():
    assert Desk(capacity=Capacity({"async": -1}, steps=STEPS)).asked(want(10_000)) == 1


def test_the_reason_names_what_waits():
    [ask] = Desk().look(seen(want(4), want(1, step="store"))).asks
    assert ask.n == 3
    assert ask.reason == "for 5 tasks of fetch, store that lack only a worker"
    [ask] = Desk().look(seen(want(1))).asks
    assert ask.reason == "for 1 task of fetch that lacks only a worker"


def test_nothing_is_asked_twice_for_the_same_demand():
    desk = Desk(Rules(max_workers=10))
    assert desk.asked(want(4)) == 2
    for _ in range(5):
        assert desk.asked(want(4), after=6) == 0
    assert desk.asked(want(5), after=6) == 1


def test_what_is_being_asked_for_counts_before_it_is_answered():
    desk = Desk(Rules(max_workers=10, interval_us=1))
    assert sum(ask.n for ask in desk.look(seen(want(4)), grant=False).asks) == 2
    assert desk.asked(want(4), after=1) == 0
    assert desk.asked(want(40), after=1) == 8


def test_what_was_granted_and_is_not_listed_yet_counts_towards_the_maximum():
    desk = Desk()
    assert desk.asked(want(4)) == 2
    assert desk.asked(want(100), after=6) == 1
    assert desk.asked(want(100), after=6) == 0


def test_between_two_requests_lies_the_interval():
    desk = Desk(Rules(max_workers=10))
    assert desk.asked(want(2)) == 1
    assert desk.asked(want(20), after=4.9) == 0
    assert desk.asked(want(20), after=0.1) == 9


def test_orphans_of_another_leader_count_by_their_rows():
    assert Desk().asked(want(100), present=("other-1", "other-2")) == 1
    assert Desk().asked(want(100), present=("other-1", "other-2", "other-3")) == 0


def test_workers_started_by_hand_do_not_count():
    desk = Desk()
    rows = [worker_row(f"hand-{n}") for n in range(9)]
    plan = desk.look(WorkersSeen(Demand(9, (want(9),), 9), rows, ()))
    assert sum(ask.n for ask in plan.asks) == 3


def test_a_process_that_lives_counts_although_its_row_has_gone():
    desk = Desk()
    desk.asked(want(6))
    desk.look(seen(present=("n0", "n1", "n2")), after=1)
    assert desk.asked(want(6), after=60, present=("n0",), listed=(alive("n1"), alive("n2"))) == 0
    left = (alive("n1"), ended("n2"))
    assert desk.asked(want(6), after=6, present=("n0",), listed=left) == 1


def test_one_that_left_and_is_listed_nowhere_counts_a_while_longer():
    """Its row goes before its process does."""
    desk = Desk(Rules(max_workers=1))
    assert desk.asked(want(2), present=("other",), stored=(Stored("other", 0, joined=True),)) == 0
    stored = (Stored("other", desk.now + 60 * SECOND, joined=True),)
    assert desk.look(seen(want(2), stored=stored), after=1) == ProvisionPlan()
    assert desk.look(seen(want(2), stored=stored), after=4.9) == ProvisionPlan()
    plan = desk.look(seen(want(2), stored=stored), after=0.1)
    assert (sum(ask.n for ask in plan.asks), plan.gone) == (1, ("other",))


def test_a_failure_cools_down_twice_as_long_each_time_with_jitter_and_a_bound():
    desk = Desk(Rules(max_workers=1))
    shares: set[float] = set()
    for n in range(9):
        desk.policy.failed("no quota", desk.now)
        full = min(10 * 2**n, 300) * SECOND
        waits = desk.policy.cooling_until - desk.now
        assert full // 2 <= waits <= full <= LONGEST_COOLDOWN_US
        shares.add(waits / full)
        assert desk.look(seen(want(1)), after=(waits - 1) / SECOND) == ProvisionPlan()
    assert len(shares) > 3
    assert desk.asked(want(1), after=0.001) == 1


def test_a_worker_that_joins_ends_the_row_of_failures():
    desk = Desk()
    desk.asked(want(1))
    desk.policy.failed("no quota", desk.now)
    desk.policy.failed("no quota", desk.now)
    desk.look(seen(present=("n0",)), after=1)
    assert desk.policy.failures == 0


def test_a_worker_that_dies_at_its_start_is_a_failure_with_its_last_words():
    desk = Desk()
    assert desk.asked(want(6)) == 3
    dead = (failed("n0", "exit code 3: ModuleNotFoundError"), failed("n1"), alive("n2"))
    books = tuple(Stored(name, desk.now + 60 * SECOND) for name in ("n0", "n1", "n2"))
    assert desk.asked(want(6), after=6, listed=dead, stored=books) == 0
    assert "n0 ended before it had joined: exit code 3: ModuleNotFound" in desk.policy.last_error
    assert desk.policy.failures == 1  # together they are one
    assert "; cools down " in desk.policy.describe(desk.now)
    assert desk.asked(want(6), after=10, listed=dead) == 2
    assert desk.policy.failures == 1  # and are told once


def test_a_worker_that_never_appears_is_given_up():
    desk = Desk(Rules(max_workers=1))
    assert desk.asked(want(1)) == 1
    assert desk.look(seen(want(1), listed=(alive("n0"),)), after=59).give_up == ()
    plan = desk.look(seen(want(1), listed=(alive("n0"),)), after=1)
    assert plan == ProvisionPlan((), ("n0",))
    assert "n0 did not join within start_timeout (1m00s)" in desk.policy.last_error
    # It is still there, and so the maximum is reached; only once it is gone another is asked for.
    assert desk.look(seen(want(1), listed=(alive("n0"),)), after=20) == ProvisionPlan()
    assert desk.asked(want(1), after=1, listed=(ended("n0"),)) == 1
    assert desk.policy.failures == 1


def test_one_that_its_provisioner_never_lists_is_given_up_too():
    desk = Desk(Rules(max_workers=1))
    desk.asked(want(1))
    assert desk.look(seen(want(1)), after=60).give_up == ("n0",)
    assert desk.asked(want(1), after=11) == 1


def test_a_worker_that_ends_itself_is_no_failure():
    desk = Desk()
    desk.asked(want(1))
    desk.look(seen(present=("n0",)), after=1)
    assert desk.asked(want(1), after=60, listed=(Provisioned("n0", "ended"),)) == 1
    assert desk.policy.failures == 0


def test_a_worker_that_came_and_ended_between_two_looks_is_no_failure():
    desk = Desk()
    desk.asked(want(1))
    came = Stored("n0", desk.now + 60 * SECOND, joined=True)
    assert desk.asked(want(1), after=6, listed=(ended("n0"),), stored=(came,)) == 1
    assert desk.policy.failures == 0
    assert desk.policy.last_error == ""


def test_a_worker_that_ends_well_and_never_joins_is_a_failure():
    desk = Desk(Rules(max_workers=1))
    desk.asked(want(1))
    asked = Stored("n0", desk.now + 60 * SECOND)
    plan = desk.look(
        seen(want(1), listed=(ended("n0", "exit code 0: bye"),), stored=(asked,)), after=6
    )
    assert plan == ProvisionPlan((), (), ("n0",))
    assert desk.policy.failures == 1
    assert desk.policy.last_error == "worker n0 ended before it had joined: exit code 0: bye"
    again = (ended("n0", "exit code 0: bye"),)
    assert desk.asked(want(1), after=4, listed=again) == 0
    assert desk.asked(want(1), after=6, listed=again) == 1
    # each that follows takes twice as long
    asked = Stored("n1", desk.now + 60 * SECOND)
    assert desk.asked(want(1), after=6, listed=(ended("n1"),), stored=(asked,)) == 0
    assert desk.policy.failures == 2


def test_a_worker_that_was_let_go_before_it_had_joined_is_no_failure():
    """As when the code is loaded again: whoever starts with the old one is released."""
    desk = Desk()
    desk.asked(want(6))
    let_go = (ended("n0", released=True), ended("n1", released=True), alive("n2"))
    assert desk.asked(want(6), after=6, listed=let_go) == 2
    assert desk.policy.failures == 0


# -- over a take-over ------------------------------------------------------------------------------


def stored(desk: Desk, *names: str, left: float = 60.0) -> tuple[Stored, ...]:
    """As the leader before stored them."""
    [ask] = Desk().look(seen(want(2))).asks
    return tuple(Stored(name, desk.now + int(left * SECOND), ask=ask) for name in names)


def test_who_is_on_the_way_for_the_leader_before_counts_towards_the_maximum():
    desk = Desk()
    rows = stored(desk, "a", "b")
    assert desk.asked(want(100), stored=rows) == 1
    assert desk.asked(want(100), stored=rows, after=6) == 0
    assert "3 of at most 3 workers are on their way" in desk.policy.describe(desk.now)


def test_and_as_capacity_that_is_coming():
    desk = Desk(Rules(max_workers=9))
    rows = stored(desk, "a", "b")
    assert desk.asked(want(4), stored=rows) == 0
    assert desk.asked(want(5), stored=rows) == 1


def test_one_whose_request_cannot_be_read_counts_as_a_head():
    desk = Desk(Rules(max_workers=1))
    assert desk.asked(want(1), stored=(Stored("a", desk.now + SECOND),)) == 0


def test_when_it_joins_it_counts_by_its_row_alone():
    desk = Desk(Rules(max_workers=2))
    rows = stored(desk, "a")
    assert desk.asked(want(100), stored=rows, present=("a",)) == 1


def test_who_does_not_join_in_its_time_counts_no_longer_and_is_no_failure_of_ours():
    desk = Desk(Rules(max_workers=1))
    rows = stored(desk, "a", left=7)
    assert desk.look(seen(want(1), stored=rows), after=6.9) == ProvisionPlan()
    plan = desk.look(seen(want(1), stored=rows), after=0.1)
    assert (sum(ask.n for ask in plan.asks), plan.give_up) == (1, ("a",))
    assert desk.policy.failures == 0
    assert desk.look(seen(want(1), stored=rows), after=1).gone == ("a",)


def test_nor_if_it_ends_with_who_started_it():
    desk = Desk(Rules(max_workers=1))
    rows = stored(desk, "a")
    assert desk.asked(want(1), stored=rows, listed=(alive("a"),)) == 0
    plan = desk.look(seen(want(1), stored=rows, listed=(ended("a"),)), after=1)
    assert (sum(ask.n for ask in plan.asks), plan.gone) == (1, ("a",))
    assert desk.policy.failures == 0


def test_one_that_lives_beyond_its_time_is_counted_and_kept_in_the_books():
    desk = Desk(Rules(max_workers=1))
    rows = stored(desk, "a", left=1)
    assert desk.asked(want(1), stored=rows, listed=(alive("a"),)) == 0
    for _ in range(3):
        plan = desk.look(seen(want(1), stored=rows, listed=(alive("a"),)), after=60)
        assert (plan.asks, plan.gone) == ((), ())


def test_who_was_started_by_another_process_says_nothing_about_ours():
    desk = Desk()
    rows = stored(desk, "a")
    assert desk.asked(want(1), stored=rows) == 0
    assert desk.asked(want(1), after=6, stored=rows, present=("a",), steps={}) == 1
    assert desk.policy.last_error == ""


def test_a_request_without_an_answer_may_have_been_heard():
    desk = Desk(Rules(max_workers=2))
    [ask] = desk.look(seen(want(4)), grant=False).asks
    desk.policy.failed("it did not answer in time", desk.now, ask, ["n0", "n1"])
    assert desk.asked(want(4), after=20) == 0
    assert desk.look(seen(want(4)), after=40).give_up == ("n0", "n1")
    assert desk.asked(want(4), after=30) == 2


def test_what_was_not_asked_for_after_all_does_not_count():
    desk = Desk(Rules(max_workers=2))
    [ask] = desk.look(seen(want(4)), grant=False).asks
    desk.policy.withdrawn(ask)
    assert desk.policy.failures == 0
    assert desk.asked(want(4), after=6) == 2


@pytest.mark.parametrize(
    ("most", "tasks", "present", "says"),
    [
        (3, 0, 0, "none of at most 3 workers is on its way"),
        (3, 1, 0, "1 of at most 3 workers is on its way"),
        (3, 9, 0, "3 of at most 3 workers are on their way"),
        (1, 9, 0, "1 of at most 1 worker is on its way"),
        (3, 0, 1, "1 of at most 3 workers is there, none is on its way"),
        (3, 9, 3, "3 of at most 3 workers are there, none is on its way"),
    ],
)
def test_it_says_how_it_stands(most: int, tasks: int, present: int, says: str):
    desk = Desk(Rules(max_workers=most))
    desk.look(seen(*([want(tasks)] if tasks else []), present=("a", "b", "c")[:present]))
    assert desk.policy.describe(desk.now) == says


def test_who_was_given_up_and_lives_on_is_not_said_to_be_there():
    desk = Desk(Rules(max_workers=2))
    desk.asked(want(4))
    desk.look(seen(want(4), present=("n0",), listed=(alive("n0"), alive("n1"))), after=60)
    words = desk.policy.describe(desk.now)
    assert words.startswith(
        "1 of at most 2 workers is there, none is on its way; 1 told to end and not gone yet; cools"
    )
    desk.look(seen(want(4), present=("n0",), listed=(alive("n0"), ended("n1"))), after=1)
    assert "told to end" not in desk.policy.describe(desk.now)


# -- a provisioner that is wrong -------------------------------------------------------------------


def test_workers_count_although_they_share_a_name():
    """As where every machine is made with the same variable."""
    desk = Desk(Rules(max_workers=3))
    assert desk.asked(want(100), present=("pool", "pool")) == 1
    assert Desk().asked(want(100), present=("pool", "pool", "pool")) == 0
    assert Desk().asked(want(100), listed=(alive("pool"), alive("pool"))) == 1
    # the same worker, joined and listed, is one
    assert Desk().asked(want(100), present=("a", "b"), listed=(alive("a"), alive("b"))) == 1
    words = (
        "2 of at most 3 workers are there, none is on its way; more than one worker is called pool"
    )
    desk = Desk()
    desk.look(seen(present=("pool", "pool")))
    assert desk.policy.describe(desk.now) == words


def test_who_was_granted_beyond_what_was_asked_for_counts_until_it_has_ended():
    desk = Desk(Rules(max_workers=5))
    [ask] = desk.look(seen(want(4)), grant=False).asks
    desk.policy.asked(ask, ["a", "b"], desk.now, ["x", "y"], "it granted 2 workers too many")
    assert desk.policy.failures == 1
    assert desk.asked(want(100), after=11) == 1
    books = (Stored("x", desk.now + SECOND), Stored("y", desk.now + SECOND))
    assert desk.asked(want(100), after=11, listed=(ended("x"), alive("y")), stored=books) == 1
    assert desk.policy.failures == 1  # they were told to end
    assert "1 told to end and not gone yet" in desk.policy.describe(desk.now)


# -- a leader that comes back ----------------------------------------------------------------------


def came_back(desk: Desk, *listed: Provisioned) -> ProvisionPlan:
    """It led, asked for n0, did not lead for a while, and leads again."""
    desk.look(seen(want(2))._replace(term=1))
    return desk.look(seen(want(2), listed=listed)._replace(term=3), after=30)


def test_who_came_and_went_under_another_leader_is_no_failure():
    for listed in [(), (ended("n0", "exit code 0: idle for 3s"),), (failed("n0"),)]:
        desk = Desk(Rules(max_workers=1))
        assert sum(ask.n for ask in came_back(desk, *listed).asks) == 1
        assert (desk.policy.failures, desk.policy.last_error) == (0, "")


def test_nor_is_one_whose_name_somebody_took_away():
    desk = Desk(Rules(max_workers=1))
    desk.asked(want(1))
    assert desk.asked(want(1), after=6, listed=(ended("n0", "exit code 0: idle for 3s"),)) == 1
    assert desk.policy.failures == 0


def test_who_lives_on_counts_for_a_leader_that_comes_back():
    desk = Desk(Rules(max_workers=1))
    assert came_back(desk, alive("n0")).asks == ()


def test_who_ended_while_another_led_was_told_then():
    desk = Desk(Rules(max_workers=1))
    desk.asked(want(1))
    desk.policy.ended(["n0"])
    assert desk.asked(want(1), after=6, listed=(failed("n0"),)) == 1
    assert desk.policy.failures == 0


def test_a_worker_that_stands_still_counts_as_long_as_it_is_listed():
    """Its lease has passed and its row is gone, and it may wake up: its process is there."""
    desk = Desk(Rules(max_workers=1))
    desk.asked(want(1))
    desk.look(seen(present=("n0",), listed=(alive("n0"),)), after=1)
    for _ in range(200):
        assert desk.asked(want(1), after=7, listed=(alive("n0"),)) == 0
    assert desk.asked(want(1), after=7, listed=(ended("n0"),)) == 1


def test_what_a_lost_answer_asked_for_is_found_in_the_list():
    desk = Desk(Rules(max_workers=2))
    [ask] = desk.look(seen(want(4)), grant=False).asks
    desk.policy.failed("it did not answer in time", desk.now, ask)
    assert desk.asked(want(4), after=11, listed=(alive("x"), alive("y"))) == 0


def test_for_what_a_new_worker_does_not_fit_no_other_is_started():
    desk = Desk()
    store = {"store": "s1"}
    assert desk.asked(want(1)) == 1
    assert desk.asked(want(1), after=6, present=("n0",), steps=store) == 0
    assert "n0 came and does not fit step fetch (async)" in desk.policy.last_error
    assert desk.asked(want(1), after=6) == 0
    assert desk.asked(want(1, step="store"), after=6) == 1
    desk.look(seen(present=("n1",), steps=store), after=1)
    assert desk.asked(want(1), after=280) == 0
    assert desk.asked(want(1), after=20) == 1


@pytest.mark.parametrize(
    "row", [{"permits": {"async": 0, "thread": 8}}, {"total": 0}, {"steps": {"fetch": "s0"}}]
)
def test_a_new_worker_is_judged_by_its_own_row(row: dict[str, object]):
    desk = Desk()
    desk.asked(want(1))
    # Somebody started by hand would do, and is full: that says nothing about the new one.
    assert desk.asked(want(1, workers=1), after=6, present=("n0",), **row) == 0
    assert "n0 came and does not fit step fetch (async)" in desk.policy.last_error


def test_a_new_worker_that_fits_is_not_blamed_when_demand_counts_no_worker():
    desk = Desk()
    desk.asked(want(1))
    assert desk.asked(want(2, workers=0), after=6, present=("n0",)) == 1
    assert desk.policy.last_error == ""


@pytest.mark.parametrize("steps", [STEPS, {}])
def test_a_worker_that_drains_when_it_is_first_seen_is_not_judged(steps: dict[str, str]):
    desk = Desk()
    assert desk.asked(want(1)) == 1
    sight = seen(want(1, workers=0), present=("n0",), draining=True, steps=steps)
    assert sum(ask.n for ask in desk.look(sight, after=6).asks) == 1
    assert desk.policy.last_error == ""


def test_what_is_set_aside_takes_no_permits_of_workers_on_their_way():
    desk = Desk(Rules(max_workers=9), Capacity({"async": 1}, steps={**STEPS, "alien": "s1"}))
    assert desk.asked(want(1, step="alien")) == 1
    desk.look(seen(present=("n0",)), after=1)
    asked = [
        desk.asked(want(20, step="alien"), want(1), after=6, present=("n0",)) for _ in range(5)
    ]
    assert asked == [1, 0, 0, 0, 0]


def test_what_no_worker_fits_takes_no_permits_of_workers_on_their_way():
    desk = Desk(Rules(max_workers=9), Capacity({"async": 1}, steps=STEPS))
    asked = [desk.asked(want(20, step="alien"), want(1), after=6) for _ in range(5)]
    assert asked == [1, 0, 0, 0, 0]


def test_a_worker_that_fits_ends_the_setting_aside():
    desk = Desk(capacity=Capacity({"async": 1}, steps={**STEPS, "new": "s1"}))
    desk.asked(want(1, step="new"))
    assert desk.asked(want(1, step="new"), want(1), after=6, present=("n0",)) == 1
    mended = seen(want(1, step="new"), present=("n1",), steps={**STEPS, "new": "s1"})
    assert sum(ask.n for ask in desk.look(mended, after=6).asks) == 1


# -- steps that nobody knows beforehand ------------------------------------------------------------


def test_for_steps_nobody_knows_one_probe_comes_first_and_the_rest_once_it_fits():
    desk = Desk(Rules(max_workers=9), ANY)
    assert desk.asked(want(10)) == 1
    assert desk.asked(want(10), after=6) == 0
    assert desk.asked(want(10, room=2), after=6, present=("n0",)) == 4


def test_for_steps_the_workers_do_not_have_it_stays_at_the_probe():
    desk = Desk(Rules(max_workers=9), ANY)
    aliens = [want(50, step=f"alien{n}") for n in range(20)]
    assert desk.asked(*aliens) == 1
    for _ in range(40):
        assert desk.asked(*aliens, after=6, present=("n0",)) == 0
    assert desk.asked(*aliens, want(4), after=6, present=("n0",)) == 2
    assert desk.asked(*aliens, after=60, present=("n0", "n1", "n2")) == 1  # five minutes later


def test_a_step_that_is_new_after_the_probe_gets_one_of_its_own():
    desk = Desk(Rules(max_workers=9), ANY)
    desk.asked(want(1))
    assert desk.asked(want(9, step="new"), after=6) == 0  # the probe on its way may have it
    assert desk.asked(want(9, step="new"), after=6, present=("n0",)) == 1
    reloaded = seen(want(8, step="new"), present=("n1",), steps={"new": "s1"})
    assert sum(ask.n for ask in desk.look(reloaded, after=6).asks) == 4


def test_other_labels_need_a_probe_of_their_own():
    desk = Desk(Rules(max_workers=9), ANY)
    assert desk.asked(want(9), want(9, needs=GPU)) == 2
    assert desk.asked(want(9), want(9, needs=GPU), after=6, present=("n0",)) > 1
    plan = desk.look(seen(want(9, needs=GPU), present=("n0",)), after=6)
    assert plan.asks == ()  # its own is still on the way


def test_probes_keep_to_the_maximum():
    assert Desk(Rules(max_workers=0), ANY).asked(want(1)) == 0
    assert Desk(Rules(max_workers=1), ANY).asked(want(9), want(9, needs=GPU)) == 1


def test_steps_known_beforehand_keep_it_from_asking_at_all():
    steps = {"fetch": "other"}
    desk = Desk(capacity=Capacity({"async": 2}, steps=steps))
    assert desk.asked(want(1)) == 0
    assert "no worker for step fetch (async)" in desk.policy.describe(desk.now)
    steps["fetch"] = "s1"
    assert desk.asked(want(1), after=1) == 1


def test_a_provisioner_that_grants_nothing_has_failed():
    desk = Desk()
    [ask] = desk.look(seen(want(1)), grant=False).asks
    desk.policy.asked(ask, [], desk.now)
    assert desk.policy.failures == 1
    assert desk.asked(want(1), after=4) == 0


# -- settings --------------------------------------------------------------------------------------


def test_b14_the_settings_are_checked(tmp_path: object):
    settings = Settings(max_workers=3)
    assert Rules.of(settings) == Rules(3)
    with pytest.raises(
        InvalidSettings, match=r"start_timeout \(500ms\) must not be below poll \(1s\)"
    ):
        Settings(max_workers=3, start_timeout_us=SECOND // 2)
    with pytest.raises(InvalidSettings, match="provisioned_idle_exit"):
        load(overrides={"max_workers": 3, "provisioned_idle_exit": "10ms"})
    with pytest.raises(InvalidSettings, match="max_workers must be 0 or more"):
        load(overrides={"max_workers": -1})
    with pytest.raises(InvalidSettings, match="10,000 or less"):
        load(overrides={"max_workers": 10_001})
