"""B6: workers are requested on overflow only, once, within a maximum, an interval and a cool-down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest
from tests.support.worlds import worker_row

from locktender.base.config import Settings, load
from locktender.base.errors import InvalidSettings
from locktender.base.model import AskedWorker, WorkerRow
from locktender.kernel.demand import Demand, Want
from locktender.provision.policy import (
    MAX_COOLDOWN_US,
    SET_ASIDE_US,
    Ask,
    Policy,
    ProvisionPlan,
    Rules,
    WorkersSeen,
)
from locktender.provision.protocol import Capacity, Provisioned

SECOND = 1_000_000
GPU = (("gpu", "a100"),)
STEPS = {"fetch": "s1", "store": "s1"}
KNOWN = Capacity({"async": 2, "thread": 1}, steps=STEPS)
UNKNOWN_STEPS = Capacity({"async": 2, "thread": 1})


def want(
    tasks: int,
    *,
    room: int = 0,
    executor: str = "async",
    needs: tuple[tuple[str, str], ...] = (),
    step: str = "fetch",
) -> Want:
    return Want(executor, needs, step, "s1", tasks, 0, 1, room)


def failed(name: str, why: str = "exit code 3") -> Provisioned:
    return Provisioned(name, "failed", 0, why)


def alive(name: str) -> Provisioned:
    return Provisioned(name, "running")


def ended(name: str, why: str = "exit code 0", *, released: bool = False) -> Provisioned:
    return Provisioned(name, "ended", 0, why, released)


class Leader:
    """A policy with a clock, the stored names, and a provisioner that grants everything."""

    def __init__(self, most: int = 3, capacity: Capacity = KNOWN, interval_us: int = 1) -> None:
        self.one = capacity
        self.stored: dict[str, AskedWorker] = {}
        self.now = 100 * SECOND
        self.rules = Rules(most, interval_us)
        self.names = 0
        self.take_over()

    def take_over(self) -> None:
        """Another process leads: of what was before it knows the stored names only."""
        self.policy = Policy(self.rules, self._capacity)

    def _capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        if dict(needs) not in ({}, dict(GPU)):
            return None
        return msgspec.structs.replace(self.one, labels={**self.one.labels, **needs})

    def plan(
        self,
        *wants: Want,
        after: float = 0.0,
        present: Iterable[str] = (),
        listed: Iterable[Provisioned] | None = (),
        **row: object,
    ) -> ProvisionPlan:
        """`row`: how the workers present differ from others."""
        self.now += int(after * SECOND)
        rows: list[WorkerRow] = [
            worker_row(f"w-{n}", provision=name, **{"steps": STEPS, **row})
            for n, name in enumerate(present)
        ]
        for name in present:
            if name in self.stored and not self.stored[name].joined_at:
                self.joins(name)
        demand = Demand(sum(each.tasks for each in wants), wants, len(rows))
        seen = WorkersSeen(
            demand, rows, None if listed is None else list(listed), list(self.stored.values())
        )
        plan = self.policy.plan(seen, self.now)
        for name in plan.gone:
            del self.stored[name]
        for ask in plan.asks:
            self.policy.asked(ask, self.store(ask))
        return plan

    def store(self, ask: Ask) -> list[str]:
        names = [f"n{self.names + n}" for n in range(ask.n)]
        self.names += ask.n
        until = self.now + self.rules.start_timeout_us
        body = msgspec.json.encode(ask.capacity)
        self.stored |= {name: AskedWorker(name, self.now, until, 0, body) for name in names}
        return names

    def joins(self, name: str) -> None:
        self.stored[name] = msgspec.structs.replace(self.stored[name], joined_at=self.now)

    def asks(self, *wants: Want, **seen: object) -> int:
        plan = self.plan(*wants, **seen)  # pyright: ignore[reportArgumentType]
        return sum(ask.n for ask in plan.asks)

    @property
    def says(self) -> str:
        return self.policy.status().words(self.now)


# -- how many --------------------------------------------------------------------------------------


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
        ((want(20, step="alien"), want(1)), 1),
    ],
)
def test_how_many_are_requested(wants: tuple[Want, ...], expected: int):
    """Two async permits and one thread each; at most three workers."""
    assert Leader().asks(*wants) == expected


def test_total_and_unlimited_permits_of_a_worker():
    bounded = Capacity({"async": 5, "thread": 5}, total=2, steps=STEPS)
    assert Leader(10, bounded).asks(want(2), want(2, executor="thread")) == 2
    assert Leader(10, Capacity({"async": -1}, steps=STEPS)).asks(want(10_000)) == 1


def test_the_reason_names_the_waiting_steps():
    [ask] = Leader().plan(want(4), want(1, step="store")).asks
    assert ask.reason == "for 5 tasks of fetch, store that lack only a worker"
    [ask] = Leader().plan(want(1)).asks
    assert ask.reason == "for 1 task of fetch that lacks only a worker"


def test_nothing_is_requested_twice_for_the_same_tasks():
    leader = Leader(10)
    assert leader.asks(want(4)) == 2
    for _ in range(5):
        assert leader.asks(want(4), after=6) == 0
    # the store has marked one as joined before the leader has read its row
    leader.joins("n0")
    assert leader.asks(want(4), after=1) == 0
    assert leader.asks(want(5), after=1) == 1


def test_workers_on_their_way_count_towards_the_maximum():
    leader = Leader()
    assert leader.asks(want(4)) == 2
    assert leader.asks(want(100), after=6) == 1
    assert leader.asks(want(100), after=6) == 0


def test_between_two_requests_the_interval_passes():
    leader = Leader(10, interval_us=5 * SECOND)
    assert leader.asks(want(2)) == 1
    assert leader.asks(want(20), after=4.9) == 0
    assert leader.asks(want(20), after=0.1) == 9


def test_workers_started_by_hand_do_not_count_and_late_ones_do():
    assert Leader().asks(want(9), present=("", "", "", "")) == 3
    # their names were removed, or several workers were given the same name
    assert Leader().asks(want(100), present=("late", "late")) == 1


def test_an_impossible_worker_is_not_requested():
    leader = Leader(capacity=Capacity({"async": 2}, steps={"fetch": "other"}))
    assert leader.asks(want(1)) == 0
    assert leader.says.endswith("the provisioner has no worker for step fetch (async)")
    leader.one = KNOWN
    assert leader.asks(want(1), after=1) == 1


# -- over a take-over ------------------------------------------------------------------------------


def test_the_next_leader_counts_stored_names_as_capacity():
    leader = Leader()
    assert leader.asks(want(4)) == 2
    leader.take_over()
    assert leader.asks(want(4), after=1) == 0
    assert leader.asks(want(100), after=1) == 1
    assert leader.says == "3 of at most 3 workers are on their way"


def test_a_name_stored_by_another_version_still_counts():
    leader = Leader(1)
    leader.stored["a"] = AskedWorker("a", 0, leader.now + 60 * SECOND, 0, b"?")
    assert leader.asks(want(1)) == 0


def test_of_workers_of_another_process_the_end_is_no_failure():
    leader = Leader(2)
    leader.asks(want(4))
    leader.take_over()
    # one ends with the process that started it, the other never joins
    assert leader.plan(want(4), listed=(ended("n0"),), after=1).gone == ("n0",)
    assert leader.plan(want(4), after=59).gone == ("n1",)
    assert (leader.policy.failures, leader.policy.last_error) == (0, "")


def test_a_worker_ended_under_another_leader_is_not_reported():
    leader = Leader(1)
    leader.asks(want(1))
    leader.stored.clear()
    assert leader.asks(want(1), after=6, listed=(failed("n0"),)) == 1
    assert leader.policy.failures == 0


# -- which names count -----------------------------------------------------------------------------


def test_a_listed_worker_without_a_row_counts():
    leader = Leader(1)
    leader.asks(want(1))
    leader.plan(present=("n0",), listed=(alive("n0"),), after=1)
    released = [
        name
        for _ in range(20)
        for plan in [leader.plan(want(1), after=7, listed=(alive("n0"),))]
        for name in plan.release
        if not plan.asks
    ]
    assert released == ["n0"]
    assert leader.says == "none of at most 1 worker is on its way; 1 released and not gone yet"
    assert leader.asks(want(1), after=1, listed=(ended("n0"),)) == 1


def test_an_unlisted_worker_counts_for_some_seconds():
    leader = Leader(1)
    leader.asks(want(1))
    leader.plan(present=("n0",), after=1)
    assert leader.plan(want(1), after=1) == ProvisionPlan()
    assert leader.plan(want(1), after=4.9) == ProvisionPlan()
    plan = leader.plan(want(1), after=0.1)
    assert (len(plan.asks), plan.gone) == (1, ("n0",))


@pytest.mark.parametrize("listed", [True, False])
def test_a_worker_that_does_not_join_in_time_is_released(listed: bool):
    leader = Leader(1)
    leader.asks(want(1))
    there = (alive("n0"),) if listed else ()
    assert leader.plan(want(1), listed=there, after=59) == ProvisionPlan()
    plan = leader.plan(want(1), listed=there, after=1)
    assert (plan.release, plan.gone) == (("n0",), () if listed else ("n0",))
    assert "n0 did not join within start_timeout (1m00s)" in leader.policy.last_error
    if listed:  # it counts until it has ended
        assert leader.plan(want(1), listed=there, after=20) == ProvisionPlan()
    assert leader.asks(want(1), after=20, listed=(ended("n0"),) if listed else ()) == 1
    assert leader.policy.failures == 1


def test_without_a_list_names_stay_and_nothing_is_requested():
    leader = Leader(2)
    leader.asks(want(1))
    for _ in range(30):
        leader.now += 3 * SECOND
        leader.policy.list_failed("failed to list workers: no route", leader.now)
        assert leader.plan(want(9), listed=None) == ProvisionPlan()
    assert list(leader.stored) == ["n0"]
    assert leader.policy.failures == 4  # one per cool-down: after 0, 10, 30 and 70 seconds


# -- failures --------------------------------------------------------------------------------------


def test_a_failure_cools_down_twice_as_long_each_time():
    leader = Leader(1)
    for n in range(9):
        leader.policy.failed("no quota", leader.now)
        cooldown = leader.policy.cooling_until - leader.now
        assert cooldown == min(10 * 2**n * SECOND, MAX_COOLDOWN_US)
        assert leader.plan(want(1), after=(cooldown - 1) / SECOND) == ProvisionPlan()
    assert leader.asks(want(1), after=0.001) == 1


def test_a_worker_that_joins_ends_the_row_of_failures():
    leader = Leader()
    leader.asks(want(1))
    leader.policy.failed("no quota", leader.now)
    leader.plan(present=("n0",), after=1)
    assert leader.policy.failures == 0


def test_workers_that_die_at_start_are_one_failure():
    leader = Leader()
    assert leader.asks(want(6)) == 3
    dead = (failed("n0", "exit code 3:\nModuleNotFoundError"), failed("n1"), alive("n2"))
    assert leader.asks(want(6), after=6, listed=dead) == 0
    assert "n0 ended before it had joined: exit code 3: ModuleNotFound" in leader.policy.last_error
    assert "; cools down 10s after: worker n0" in leader.says
    assert leader.asks(want(6), after=10, listed=dead) == 2
    assert leader.policy.failures == 1


def test_a_worker_that_exits_well_and_never_joined_is_a_failure():
    leader = Leader(1)
    leader.asks(want(1))
    plan = leader.plan(want(1), listed=(ended("n0", "exit code 0: bye"),), after=6)
    assert plan == ProvisionPlan((), (), ("n0",))
    assert leader.policy.last_error == "worker n0 ended before it had joined: exit code 0: bye"


@pytest.mark.parametrize("how", ["seen", "between two steps", "released"])
def test_a_worker_that_ends_well_is_no_failure(how: str):
    leader = Leader()
    leader.asks(want(1))
    if how == "seen":
        leader.plan(present=("n0",), after=1)
    elif how == "between two steps":
        leader.joins("n0")
    end = ended("n0", released=how == "released")
    assert leader.asks(want(1), after=6, listed=(end,)) == 1
    assert (leader.policy.failures, leader.policy.last_error) == (0, "")


# -- workers that do not fit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", [{"permits": {"async": 0, "thread": 8}}, {"total": 0}, {"steps": {"fetch": "s0"}}]
)
def test_no_worker_is_started_for_a_step_it_does_not_fit(row: dict[str, object]):
    leader = Leader()
    assert leader.asks(want(1)) == 1
    assert leader.asks(want(1), after=6, present=("n0",), **row) == 0
    assert "n0 joined and does not fit step fetch (async)" in leader.says
    assert leader.asks(want(1), want(1, step="store"), after=6, present=("n0",)) == 1
    let_go = (ended("n1", released=True),)
    assert leader.asks(want(1), after=6, present=("n0",), listed=let_go) == 0
    assert leader.asks(want(1), after=SET_ASIDE_US / SECOND, present=("n0",)) == 1


def test_steps_that_no_worker_of_a_server_has_are_tried_once():
    """`server --spawn` does not know the steps of its workers before one has joined."""
    leader = Leader(2, UNKNOWN_STEPS)
    aliens = [want(50, step=f"alien{n}") for n in range(20)]
    assert leader.asks(*aliens) == 2
    for _ in range(40):
        assert leader.asks(*aliens, after=6, present=("n0",)) == 0
    assert leader.asks(*aliens, want(4), after=6, present=("n0",)) == 1


def test_a_worker_that_fits_ends_the_setting_aside():
    leader = Leader(9, UNKNOWN_STEPS)
    leader.asks(want(1, step="new"))
    assert leader.asks(want(1, step="new"), want(1), after=6, present=("n0",)) == 1
    new = {**STEPS, "new": "s1"}
    assert leader.asks(want(1, step="new"), after=6, present=("n1",), steps=new) == 1


def test_a_worker_first_seen_draining_is_not_judged():
    leader = Leader()
    leader.asks(want(1))
    assert leader.asks(want(1), after=6, present=("n0",), draining=True, steps={}) == 1
    assert leader.policy.last_error == ""


# -- what it says, and settings --------------------------------------------------------------------


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
def test_it_says_how_many_there_are(most: int, tasks: int, present: int, says: str):
    leader = Leader(most)
    leader.plan(*([want(tasks)] if tasks else []), present=("a", "b", "c")[:present])
    assert leader.says == says


def test_b14_the_settings_are_checked():
    assert Rules.of(Settings(max_workers=3)) == Rules(3)
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
