"""Seed 002, simulated: one owner per state (C1, C2), every end frees what was held (C5), cancel races (E10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.support.worlds import graph, items, needs, numbers, settle, step, world

from locktender.base.changes import TaskRow
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import Const, Graph, Node, PoolNeed, RetryPolicy
from locktender.base.states import HOLDING, TASK_CHANGES, TERMINAL_RUNS, RunState, TaskState
from locktender.kernel.lifecycle import Defaults
from locktender.simulate.scenarios import violations
from locktender.simulate.world import SimWorld

WHERE = pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
POOL = {("pool", "db"): {"limit": 2}}
DB = needs(db=1)


# -- C5 --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """One way for a task to end."""

    flow: Graph
    ends: str
    """The state the run ends in."""
    fate: Callable[[TaskRow, Node], TaskState | None] | None = None
    act: Callable[[SimWorld], None] | None = None
    took: int = 100 * MILLISECOND
    bodies: int = 1


def first_fails(row: TaskRow, _node: Node) -> TaskState | None:
    return TaskState.FAILED if row.attempt == 1 else None


def kill(sim: SimWorld) -> None:
    sim.add_worker("spare")
    sim.plan(50 * MILLISECOND, lambda: sim.kill_worker(sim.bodies[0].worker))
    # The worker in the leader's process takes the leader with it.
    sim.plan(5 * SECOND, lambda: sim.lead() if sim.scheduler is None else None)


def hold_all(sim: SimWorld) -> None:
    """Somebody else has the whole pool for longer than the task will wait."""
    sim.submit(graph(step("hog", pools=needs(db=2)), flow="hog"))


PATHS = {
    "success": Path(graph(step(pools=DB)), "succeeded"),
    "failure": Path(graph(step(pools=DB)), "failed", fate=lambda _row, _node: TaskState.FAILED),
    "timeout": Path(graph(step(pools=DB, timeout_us=20 * MILLISECOND)), "failed"),
    "retry": Path(
        graph(step(pools=DB, retry=RetryPolicy(1, delay_us=SECOND))),
        "succeeded",
        fate=first_fails,
        bodies=2,
    ),
    "cancel": Path(
        graph(step(pools=DB)),
        "cancelled",
        act=lambda sim: sim.plan(50 * MILLISECOND, lambda: sim.cancel(1)),
    ),
    "deadline": Path(graph(step(pools=DB)), "timed_out"),
    "abandon": Path(graph(step(pools=DB)), "succeeded", act=kill, bodies=2),
    "handed back": Path(
        graph(step(pools=DB)),
        "succeeded",
        fate=lambda row, _node: TaskState.HANDED_BACK if row.attempt == 1 else None,
        bodies=2,
    ),
    "queue timeout": Path(
        graph(step(pools=DB, queue_timeout_us=SECOND)),
        "failed",
        act=hold_all,
        took=5 * SECOND,
        bodies=0,
    ),
    "capacity": Path(graph(step(pools=DB, needs={"gpu": "a100"})), "failed", bodies=0),
}


@WHERE
@pytest.mark.parametrize("name", PATHS)
def test_c5_every_path_frees_its_slots_exactly_once(name: str, local: bool):
    path = PATHS[name]
    sim = world(
        local=local,
        took=path.took,
        fate=path.fate,
        rules=POOL,
        defaults=Defaults(dispatch_deadline_us=3 * SECOND),
    )
    if path.act is hold_all:
        hold_all(sim)
        sim.run(until=sim.now + 20 * MILLISECOND)
    row = sim.submit(path.flow, deadline=50 * MILLISECOND if name == "deadline" else None)
    assert row is not None
    if path.act is not None and path.act is not hold_all:
        path.act(sim)
    settle(sim)
    assert sim.model.runs[row.seq].state == path.ends
    assert sum(body.node.name == "a" for body in sim.bodies) == path.bodies
    assert_nothing_is_held(sim)
    # Freed once and not twice: a task that needs all of it runs, and two never run together.
    sim.behaviour = world().behaviour
    for _ in range(3):
        sim.submit(graph(step("all", pools=needs(db=2)), flow="all"))
    settle(sim)
    assert sim.peak(lambda body: int(body.node.name == "all")) == 1


def assert_nothing_is_held(sim: SimWorld) -> None:
    assert not [row for row in sim.model.tasks.values() if row.held or row.state in HOLDING]
    assert not sim.model.orders
    assert sim.scheduler is not None
    ledger = sim.scheduler.ledger
    assert {name: pool.used for name, (pool, *_) in ledger.slot_gates.items()} in ({"db": 0}, {})
    assert ledger.run_gate.used == 0
    for worker in ledger.workers.by_id.values():
        assert (worker.used, worker.offered) == (0, 0)


@WHERE
def test_c5_thousands_of_ends_of_every_kind_leave_nothing_held(local: bool):
    flow = graph(
        items(pools=DB, window=5, on_error="collect", retry=RetryPolicy(1, delay_us=MILLISECOND),
              timeout_us=8 * MILLISECOND),
        max_parallel=4,
    )  # fmt: skip
    sim = world(local=local, workers=2, took=lambda draw, _node: draw.randint(1, 10) * MILLISECOND,
                failure=0.3, rules=POOL)  # fmt: skip
    for index in range(6):
        sim.submit(flow, consts=numbers(60))
        sim.plan((index * 97 + 40) * MILLISECOND, lambda run=index + 1: sim.cancel(run))
    settle(sim)
    assert_nothing_is_held(sim)
    assert len({body.state for body in sim.bodies}) >= 3


# -- C1, C2 ----------------------------------------------------------------------------------------


@WHERE
def test_c1_one_write_per_change_by_its_owner_without_a_gap(local: bool):
    flow = graph(items(retry=RetryPolicy(2, delay_us=10 * MILLISECOND)), step("z", after=(0,)))
    sim = world(local=local, workers=2, failure=0.4, seed=5)
    sim.submit(flow, consts=numbers(12))
    settle(sim)
    state: dict[int, str] = {}
    for event in sim.model.events:
        if event.subject != "task":
            continue
        assert event.before == state.get(event.task, "new")
        assert event.before != event.after
        owner = TASK_CHANGES[event.before, event.after]
        told_by = str(event.data.get("by", event.actor)).partition(":")[0]
        assert told_by == {"leader": "leader", "worker": "worker"}[owner]
        state[event.task] = event.after
    assert state == {row.id: row.state for row in sim.model.tasks.values()}


def test_c2_repeated_or_late_deliveries_count_once():
    """Every end is told again by the worker, and again after a new leader has come."""
    flow = graph(items(pools=DB, retry=RetryPolicy(1, delay_us=MILLISECOND)), step("z", after=(0,)))
    sim = world(workers=2, failure=0.2, rules=POOL, seed=3)
    original = sim.model.finish
    told: list[tuple[object, ...]] = []

    def finish(*arguments: object, **options: object) -> bool:
        done = original(*arguments, **options)  # type: ignore[arg-type]
        told.append(arguments)
        assert not original(*arguments, **options)  # type: ignore[arg-type]
        return done

    sim.model.finish = finish  # type: ignore[method-assign]

    def repeat_all() -> None:
        for arguments in reversed(told):
            assert not original(*arguments)  # type: ignore[arg-type]

    for moment in (15, 40, 80):
        sim.plan(moment * MILLISECOND, repeat_all)
        sim.plan(moment * MILLISECOND, sim.lead)
    for _ in range(3):
        sim.submit(flow, consts=numbers(8))
    settle(sim)
    assert sim.model.stale >= len(told)
    done = Counter(event.task for event in sim.model.events if event.after == "completed")
    assert set(done.values()) == {1}


def test_c2_a_lost_worker_that_wakes_up_writes_nothing():
    sim = world(workers=2, took=SECOND, rules=POOL)
    sim.submit(graph(step(pools=DB)))
    sim.run(until=sim.now + 100 * MILLISECOND)
    [zombie] = sim.bodies
    sim.kill_worker(zombie.worker)
    settle(sim)
    after = dict(sim.model.tasks)
    for state in (TaskState.COMPLETED, TaskState.FAILED, TaskState.HANDED_BACK):
        assert not sim.model.finish(zombie.worker, zombie.task, zombie.token, state, sim.now)
    assert not sim.model.accept(zombie.worker, zombie.task, zombie.token, sim.now)
    assert sim.model.tasks == after
    assert violations(sim) == []


# -- E10 -------------------------------------------------------------------------------------------

RACE = graph(step("a", pools=DB), step("b", after=(0,)), step("clean", after=(1,), run_if="always"))


def raced(local: bool, cancel_at: int | None, flow: Graph = RACE) -> SimWorld:
    sim = world(local=local, took=5 * MILLISECOND, rules=POOL)
    sim.submit(flow)
    if cancel_at is not None:
        sim.plan(cancel_at, lambda: sim.cancel(1))
    return settle(sim)


@WHERE
def test_e10_cancel_against_start_at_every_possible_instant(local: bool):
    calm = raced(local, None)
    begin = calm.model.events[0].at
    instants = {event.at - begin for event in calm.model.events}
    # Every instant at which anything happens, one microsecond to either side, and a fine grid between.
    moments = {at + off for at in instants for off in (-1, 0, 1) if at + off >= 0}
    moments |= set(range(0, max(instants) + 2 * MILLISECOND, 250))
    outcomes: Counter[str] = Counter()
    for moment in sorted(moments):
        sim = raced(local, moment)
        run = sim.model.runs[1]
        assert run.state in TERMINAL_RUNS
        outcomes[run.state] += 1
        told = [event.after for event in sim.model.events if event.subject == "run"]
        if run.state == "cancelled":
            # Whatever had begun by then, nothing but clean-up starts once it is told.
            later = [body for body in sim.bodies if body.start > begin + moment + 2 * MILLISECOND]
            assert {body.node.name for body in later} <= {"clean"}
            assert told[-1] == "cancelled"
            assert told.count("cancelled") == 1
        else:
            assert run.state == "succeeded"
            assert "cancelling" not in told
        assert_nothing_is_held(sim)
    assert set(outcomes) == {"cancelled", "succeeded"}


@WHERE
def test_e10_a_queued_run_that_is_cancelled_never_starts(local: bool):
    sim = world(local=local, rules={("runs", ""): {"limit": 1}}, took=SECOND)
    sim.submit(graph(step()))
    sim.submit(graph(step()))
    sim.plan(100 * MILLISECOND, lambda: sim.cancel(2))
    settle(sim)
    assert sim.model.runs[2].state == "cancelled"
    assert {body.task >> 20 for body in sim.bodies} == {1}


def test_e10_cancel_against_the_end_of_an_offer_nobody_takes():
    """The worker is deaf: its offer runs out at the very moment of the cancel."""
    ttl = Defaults().offer_ttl_us
    for moment in range(ttl - 1_000, ttl + 4_000, 100):
        sim = world(rules=POOL)
        sim.workers["w0"].alive = False  # it beats no more and obeys nothing
        sim.submit(graph(step(pools=DB)))
        sim.plan(moment, lambda sim=sim: sim.cancel(1))
        settle(sim)
        assert sim.model.runs[1].state == "cancelled"
        assert sim.bodies == []
        assert_nothing_is_held(sim)


def test_a_clean_up_that_cannot_be_asked_for_ends_its_run():
    """It fails with its request, in the middle of what the failure of the map's item brings."""
    nobody = PoolNeed("api", 1, (Const(1),))
    clean_up = step("clean", after=(0,), run_if="always", pools=(nobody,))
    made = world(fate=lambda _row, _node: TaskState.FAILED)
    run = made.submit(graph(items(), clean_up), consts=b"[[1],null]").seq
    settle(made)
    assert made.model.runs[run].state == RunState.FAILED
