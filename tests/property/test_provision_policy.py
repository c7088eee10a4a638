"""Whatever happens: never above the maximum, never asked twice, and never without need."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.worlds import worker_row

from locktender.base.model import AskedWorker
from locktender.kernel.demand import Demand, Want
from locktender.provision.policy import Ask, Policy, Rules, WorkersSeen
from locktender.provision.protocol import Capacity, Provisioned

SECOND = 1_000_000
PERMITS = {"async": 3, "thread": 1}


class Machine:
    """A provisioner, its workers and a leader, all in one place and under one clock."""

    def __init__(self, most: int, *, steps: bool = True) -> None:
        """`steps`: what its workers have is known beforehand."""
        self.steps = {"step": "s"} if steps else None
        self.policy = Policy(Rules(max_workers=most), self.capacity)
        self.most = most
        self.now = SECOND
        self.starting: list[str] = []
        self.present: list[str] = []
        self.ended: list[Provisioned] = []
        self.open: list[tuple[Ask, list[str]]] = []
        """Asked for, stored, and not answered yet."""
        self.stored: dict[str, AskedWorker] = {}
        self.names = 0
        self.foreign: set[str] = set()
        """Started by a process that is no more."""
        self.asked_at: list[int] = []

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return Capacity(PERMITS, total=3, steps=self.steps)

    @property
    def asked_for(self) -> int:
        return sum(ask.n for ask, _ in self.open)

    @property
    def living(self) -> int:
        return len(self.starting) + len(self.present)

    def look(self, tasks: dict[str, int], room: int) -> None:
        self.cut_off()
        wants = tuple(
            Want(executor, (), "step", "s", n, 0, 1, min(room, n))
            for executor, n in tasks.items()
            if n
        )
        rows = [worker_row(name, provision=name) for name in self.present]
        running = [Provisioned(name, "running") for name in self.starting + self.present]
        demand = Demand(sum(want.tasks for want in wants), wants, len(rows))
        # A provisioner that tells nobody else of what it started: the store alone knows.
        listed = [each for each in (*running, *self.ended) if each.name not in self.foreign]
        plan = self.policy.plan(
            WorkersSeen(demand, rows, listed, tuple(self.stored.values())), self.now
        )
        for name in plan.release:
            self.end(name, "ended")
        for name in plan.gone:
            assert name not in self.starting + self.present, "forgotten while it lives"
            del self.stored[name]
        on_the_way = len(self.starting) + self.asked_for
        asked = sum(ask.n for ask in plan.asks)
        overflow = {want.executor: want.tasks - want.room for want in wants}
        if not any(overflow.values()):
            assert not asked, "asked although everything is accepted"
        if asked:
            # No more than if each kind had workers of its own, and none for what is already on its way.
            needed = sum(-(-n // PERMITS[executor]) for executor, n in overflow.items())
            assert asked <= needed
            if set(overflow) == {"async"}:
                assert asked + on_the_way <= max(needed, on_the_way)
            assert not self.asked_at or self.now - self.asked_at[-1] >= 5 * SECOND
            self.asked_at.append(self.now)
        for ask in plan.asks:
            names = [f"n{self.names + i}" for i in range(ask.n)]
            self.names += ask.n
            body, until = msgspec.json.encode(ask.capacity), self.now + 60 * SECOND
            for name in names:
                self.stored[name] = AskedWorker(name, self.now, until, 0, body)
            self.open.append((ask, names))
        assert self.living + self.asked_for <= self.most

    def cut_off(self) -> None:
        """A step waits for its requests; each gets no more time than its workers."""
        if self.open:
            for ask, names in self.open:
                self.policy.asked(ask, names)
            self.policy.failed("timed out", self.now)
            self.now += 60 * SECOND
        self.open = []

    def take_over(self) -> None:
        """Another process leads: it knows what is stored and who is there, and nothing else."""
        self.foreign |= {*self.starting, *self.present}
        for _, names in self.open:
            # The one before was killed before it was answered: what it asked for may yet come.
            self.starting += names
            self.foreign |= set(names)
        self.open = []
        self.policy = Policy(Rules(max_workers=self.most), self.capacity)
        self.asked_at = []

    def answer(self, *, fails: bool) -> None:
        for ask, names in self.open:
            if fails:
                self.policy.failed("no quota", self.now)
                for name in names:
                    del self.stored[name]
                continue
            self.starting += names
            self.policy.asked(ask, names)
        self.open = []

    def join(self) -> None:
        if self.starting:
            name = self.starting.pop(0)
            self.present.append(name)
            row = self.stored[name]
            self.stored[name] = msgspec.structs.replace(row, joined_at=self.now)

    def end(self, name: str, state: str) -> None:
        for group in (self.starting, self.present):
            if name in group:
                group.remove(name)
                self.ended.append(Provisioned(name, "failed" if state == "failed" else "ended"))


actions = st.one_of(
    st.tuples(
        st.just("look"),
        st.integers(0, 12),
        st.integers(0, 4),
        st.integers(0, 6),
        st.integers(0, 70),
    ),
    st.tuples(st.just("answer"), st.booleans()),
    st.just(("join",)),
    st.just(("take over",)),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(["ended", "failed"])),
)


@settings(max_examples=300, deadline=None)
@given(most=st.integers(0, 5), steps=st.booleans(), story=st.lists(actions, max_size=40))
def test_never_above_the_maximum_and_never_without_need(
    most: int, steps: bool, story: list[tuple[object, ...]]
):
    machine = Machine(most, steps=steps)
    for action in story:
        match action:
            case ("look", int(waiting), int(threads), int(room), int(seconds)):
                machine.now += seconds * SECOND
                machine.look({"async": waiting, "thread": threads}, room)
            case ("answer", bool(fails)):
                machine.answer(fails=fails)
            case ("join",):
                machine.join()
            case ("take over",):
                machine.take_over()
            case ("end", int(index), str(state)):
                everybody = machine.starting + machine.present
                if everybody:
                    machine.end(everybody[index % len(everybody)], state)
            case _:
                raise AssertionError(action)


@settings(max_examples=100, deadline=None)
@given(
    tasks=st.integers(1, 60),
    most=st.integers(1, 30),
    gaps=st.lists(st.integers(1, 59), min_size=1, max_size=12),
)
def test_an_unchanged_demand_is_asked_for_exactly_once(tasks: int, most: int, gaps: list[int]):
    """Until somebody joins or fails: whatever the time between two looks."""
    machine = Machine(most)
    machine.look({"async": tasks}, 0)
    machine.answer(fails=False)
    asked = machine.names
    assert asked == min(most, -(-tasks // 3))
    waited = 0
    for gap in gaps:
        waited += gap
        if waited >= 60:
            break
        machine.now += gap * SECOND
        machine.look({"async": tasks}, 0)
        machine.answer(fails=False)
    assert machine.names == asked
