"""H1: what `why` names as sufficient is: when all of it happens the task starts, and not before."""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy

import msgspec
import pytest
from tests.support.worlds import settle, worker_row

from locktender.base.changes import End
from locktender.base.limits import PoolRule
from locktender.base.states import HOLDING, TaskState
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain import what_opens
from locktender.kernel.gate_view import GateView
from locktender.kernel.gates.worker import WorkerGate
from locktender.kernel.openings import tried
from locktender.kernel.reasons import GateOpening
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.scenarios import random_world

ASKED = 6
"""Waiting tasks that are asked about in each world: each is tried in several copies of the scheduler."""
SAMPLE = 25
SEEDS = 300
TRIED: Counter[str] = Counter()


class Copy:
    """The scheduler as it is, in which things happen that do not happen in the world."""

    def __init__(self, lead: Scheduler, task: int, now: int) -> None:
        self.lead = deepcopy(lead)
        self.now = now
        self.entry: TaskEntry = self.lead.lifecycle.tasks[task]
        self.known = set(self.lead.lifecycle.tasks)
        # Also who waits for the end of a back-off: it comes into line while time passes.
        self.waited = {
            each.id
            for each in self.lead.lifecycle.tasks.values()
            if each.state == TaskState.REQUESTED
        }

    def cycle(self) -> None:
        while Scheduler.cycle(self.lead, self.now).unfinished:
            pass

    def apply(self, opening: GateOpening, *, less: int = 0) -> None:
        """`less`: a limit that is smaller by so much than what is named."""
        lead, pool = self.lead, opening.gate.partition(":")[2]
        if opening.permits:
            assert self.entry.lane is not None
            gate = self.entry.lane.worker_gate
            assert isinstance(gate, WorkerGate)
            wanted, permits = gate.requirement, opening.permits - less
            row = worker_row(
                "new",
                permits={wanted.executor: permits},
                claim=permits,
                labels=dict(wanted.needs),
                steps={wanted.step: wanted.signature},
            )
            if permits:
                lead.put_worker(row)
        elif opening.limit is not None or opening.resume:
            rule = lead.ledger.limits.pool(pool) or PoolRule()
            limit = rule.limit if opening.limit is None else opening.limit - less
            rule = msgspec.structs.replace(rule, limit=limit, paused=rule.paused and bool(less))
            pools = {**lead.ledger.limits.pools, pool: rule}
            lead.set_limits(msgspec.structs.replace(lead.ledger.limits, pools=pools), [], self.now)
        elif opening.at is None:
            # As if those that end held nothing else: their end may open more than this gate.
            assert self.entry.lane is not None
            gate = next(each for each in self.entry.lane.gates if each.label() == opening.gate)
            gate.used -= opening.slots - less
            lead.ledger.task_queue.opened(gate)

    def end(self, task: TaskEntry) -> None:
        if task.state == TaskState.SCHEDULED:
            self.lead.accepted(task.id, task.token, self.now)
        self.lead.ended(End(task.id, task.token, "completed", b"1"), self.now, local=True)

    def wait(self, until: int) -> None:
        """Those before it go as time lets them."""
        self.cycle()
        queue = self.lead.ledger.task_queue
        while (wake := queue.next_wake()) is not None and wake < until:
            self.now = max(wake, self.now + 1)
            self.cycle()
        self.now = until

    @property
    def started(self) -> bool:
        return self.entry.state in HOLDING

    @property
    def began(self) -> set[int]:
        tasks = self.lead.lifecycle.tasks
        return {each for each in self.waited if each in tasks and tasks[each].state in HOLDING}

    @property
    def disturbed(self) -> bool:
        """Something else happened: tasks came that nobody asked about, or slots were reserved meanwhile."""
        return bool(set(self.lead.lifecycle.tasks) - self.known)


def happened(
    lead: Scheduler,
    task: int,
    now: int,
    opens: tuple[GateOpening, ...],
    skip: GateOpening | None,
    less: int,
) -> Copy:
    copy = Copy(lead, task, now)
    for each in opens:
        if each is not skip:
            copy.apply(each)
        elif less and not (each.at is not None and each.limit is None):
            copy.apply(each, less=less)
    timed = [each.at for each in opens if each.at is not None and each.limit is None]
    if timed:
        until = max(timed)
        late = skip is not None and skip.at == until and skip.limit is None
        copy.wait(until - 1 if late else until)
    copy.cycle()
    return copy


def check(lead: Scheduler, entry: TaskEntry, now: int) -> None:
    opens = what_opens(lead, entry, now)
    assert opens, f"task {entry.id} waits and nothing is named"
    if any(each.about for each in opens):
        return
    lane = entry.lane
    assert lane is not None
    held_back = set(lead.ledger.task_queue.reserved.values())
    copy = happened(lead, entry.id, now, opens, None, 0)
    reserved = set(copy.lead.ledger.task_queue.reserved.values()) != held_back
    before = {each.id for each in tried(GateView(lead.ledger, now), entry, lane).before}
    others = copy.began - before - {entry.id}
    timed = any(each.at is not None for each in opens)
    if copy.disturbed or (timed and others) or (reserved and not copy.started):
        TRIED["disturbed"] += 1
        return
    assert copy.started, (entry.id, opens, list(what_opens(copy.lead, copy.entry, copy.now)))
    last = max((each.at for each in opens if each.at is not None), default=0)
    for each in opens:
        if each.at is not None and each.at < last:
            continue  # it is over when the later one is
        TRIED[each.gate.partition(":")[0]] += 1
        copy = happened(lead, entry.id, now, opens, each, 1)
        assert not copy.started or copy.disturbed, (entry.id, each, opens)
    if len(opens) == 1 and opens[0].ends:
        check_ends(lead, entry, now, opens[0])


def check_ends(lead: Scheduler, entry: TaskEntry, now: int, opening: GateOpening) -> None:
    """It is enough that so many of the tasks end, whichever they are."""
    copy = Copy(lead, entry.id, now)
    for task in random.Random(entry.id).sample(opening.tasks, opening.ends):
        copy.end(copy.lead.lifecycle.tasks[task])
    copy.cycle()
    if copy.disturbed:
        TRIED["disturbed"] += 1
        return
    assert copy.started, (entry.id, opening)
    TRIED["ends"] += 1


def waiting(lead: Scheduler) -> list[TaskEntry]:
    return [
        entry
        for entry in lead.lifecycle.tasks.values()
        if entry.state == TaskState.REQUESTED and entry.in_line and entry.run.placed
    ]


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < SAMPLE else pytest.mark.long) for seed in range(SEEDS)],
)
def test_h1_what_is_named_lets_it_start_and_less_does_not(seed: int):
    sim, draw = random_world(seed), random.Random(seed)
    asked = [0]
    original = Scheduler.cycle

    def cycle(lead: Scheduler, now: int) -> Cycle:
        done = original(lead, now)
        if not done.unfinished and asked[0] < ASKED and lead is sim.scheduler:
            found = waiting(lead)
            if found and draw.random() < 0.2:
                asked[0] += 1
                with pytest.MonkeyPatch.context() as real:
                    real.setattr(Scheduler, "cycle", original)
                    check(lead, draw.choice(found), now)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "cycle", cycle)
        settle(sim)
