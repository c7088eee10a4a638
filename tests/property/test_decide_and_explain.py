"""Deciding and explaining follow one set of rules: at every cycle of random worlds they agree."""

from __future__ import annotations

import pytest
from tests.support.worlds import settle

from locktender.base.states import HOLDING, TaskState
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.entries import RunEntry, TaskEntry
from locktender.kernel.explain import Typical, explain_task
from locktender.kernel.explain_runs import open_tasks
from locktender.kernel.gates.protocol import Block, SlotGate
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.scenarios import random_world

OF_THE_RUN = ("back_off", "sequential", "fair")
"""Reasons that stand beside the gates: the task is not in line yet, or a turn that blocks nothing."""


def blocks_of(lead: Scheduler, entry: TaskEntry, now: int) -> list[Block]:
    assert entry.lane is not None
    return list(lead.ledger.task_queue.blocks(entry.lane, entry, now))


def gates_explained(lead: Scheduler, entry: TaskEntry, now: int) -> list[str]:
    reasons = explain_task(lead, entry, Typical(), now)
    return [each.gate for each in reasons if each.gate.partition(":")[0] not in OF_THE_RUN]


def compare(lead: Scheduler, now: int) -> int:
    """After a whole cycle: every task in line is blocked, and explained by the blocks that decide."""
    compared = 0
    for entry in lead.lifecycle.tasks.values():
        if entry.state != TaskState.REQUESTED or entry.lane is None or not entry.in_line:
            continue
        blocks = blocks_of(lead, entry, now)
        assert blocks, f"task {entry.id} waits and nothing blocks it"
        assert gates_explained(lead, entry, now) == [block.name for block in blocks]
        parked_at = entry.lane.parked_at
        if entry.lane.head() is entry and parked_at is not None:
            # A reservation that lost its point meanwhile opens no gate: `reconsider` wakes its pools.
            kept = isinstance(parked_at, SlotGate) and parked_at.kept
            assert kept or any(block.gate is parked_at for block in blocks)
        compared += 1
    return compared


def compare_counts(run: RunEntry) -> None:
    """What is found of a run without looking at all its tasks is what there is."""
    found = open_tasks(run)
    tasks = list(run.tasks.values())
    assert found.in_flight == [task for task in tasks if task.state in HOLDING]
    assert found.aside == [task for task in tasks if task.state not in HOLDING and not task.in_line]
    lines: dict[tuple[int, int], list[TaskEntry]] = {}
    for task in tasks:
        if task.in_line:
            lines.setdefault((task.node, id(task.lane)), []).append(task)
    firsts = [min(each, key=lambda task: (task.rank, task.id)) for each in lines.values()]
    expected = {first.id: len(each) for first, each in zip(firsts, lines.values(), strict=True)}
    assert {first.id: count for first, count in found.standing} == expected


def first_open(lead: Scheduler, now: int) -> TaskEntry | None:
    """Of the tasks that nothing blocks before a cycle, the one whose turn is next."""
    queue = lead.ledger.task_queue
    found = [
        (queue.key(lane, head), head)
        for lane in queue.lanes.values()
        if (head := lane.head()) is not None and not gates_explained(lead, head, now)
    ]
    return min(found, key=lambda each: each[0])[1] if found else None


def in_line(lead: Scheduler) -> set[int]:
    return {entry.id for entry in lead.lifecycle.tasks.values() if entry.in_line}


def started(lead: Scheduler, now: int) -> set[int]:
    tasks = lead.lifecycle.tasks.values()
    return {entry.id for entry in tasks if entry.state in HOLDING and entry.scheduled_at == now}


@pytest.mark.parametrize("seed", range(40))
def test_decide_and_explain_agree(seed: int):
    sim = random_world(seed)
    compared = [0]
    original = Scheduler.cycle

    def cycle(lead: Scheduler, now: int) -> Cycle:
        expected = first_open(lead, now)
        before, reserved = in_line(lead), set(lead.ledger.task_queue.reserved.values())
        done = original(lead, now)
        joined = in_line(lead) | started(lead, now)
        same = joined <= before and reserved >= set(lead.ledger.task_queue.reserved.values())
        # A task that joined, or got a reservation, in this very cycle may stand before those in line.
        if expected is not None and expected.id in lead.lifecycle.tasks and same:
            assert expected.state != TaskState.REQUESTED, f"task {expected.id} did not start"
        for run in lead.ledger.runs.values():
            compare_counts(run)
        if not done.unfinished:
            compared[0] += compare(lead, now)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "cycle", cycle)
        settle(sim)
    waits = [event for event in sim.model.events if event.subject == "wait"]
    assert compared[0] > 0 or not any("task" in event.data for event in waits)
