"""Rebuild equals lived on: a leader that starts from rows decides what the old one would have decided.

Two worlds of one seed are led to the same instant. In one the leader lives on;
in the other a new one is restored from the rows. Fair turns, bypass counts and
reservations start anew with a term (DESIGN §4), so the worlds have no fair key
and no task that needs more than one slot; placement is `pack`, which has no memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import (
    Compare,
    Const,
    Graph,
    Item,
    Node,
    PoolNeed,
    RetryPolicy,
    Tag,
    Truthy,
)
from locktender.base.ids import run_of
from locktender.base.states import HOLDING
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.model import Behaviour
from locktender.simulate.scenarios import random_world
from locktender.simulate.world import SimWorld

POOLS = ("db", "api", "gpu")


def chain(draw: random.Random, name: str) -> Graph:
    """Steps and maps one after another: at no instant do two nodes of a run become ready together,
    so that nothing hangs on the order in which a leader was told."""
    nodes: list[Node] = []
    for index in range(draw.randint(1, 5)):
        mapped = draw.random() < 0.5
        nodes.append(
            Node(
                name=f"n{index}",
                step=f"step{index % 3}",
                executor=draw.choice(["async", "thread"]),
                over=Const(0) if mapped else None,
                args=(Item(),) if mapped else (),
                window=draw.choice([None, 1, 3]) if mapped else None,
                on_error=draw.choice(["fail", "collect"]) if mapped else "fail",
                after=(index - 1,) if index else (),
                when=draw.choice(
                    [None, None, None, Truthy(Const(1)), Compare("==", Const(1), Const(2))]
                ),
                run_if=draw.choice(["success", "success", "always"]) if index else "success",
                pools=pool_needs(draw),
                retry=RetryPolicy(draw.choice([0, 1, 3]), delay_us=100 * MILLISECOND),
                timeout_us=draw.choice([None, None, 90 * MILLISECOND]),
                queue_timeout_us=draw.choice([None, None, None, SECOND]),
            )
        )
    return Graph(
        name,
        tuple(nodes),
        max_parallel=draw.choice([None, None, 2]),
        max_parallel_by={"thread": 1} if draw.random() < 0.3 else {},
        fail=draw.choice(["continue", "continue", "fast"]),
    )


def pool_needs(draw: random.Random) -> tuple[PoolNeed, ...]:
    kind = draw.random()
    if kind < 0.3:
        return ()
    return (
        (PoolNeed("tenant", 1, (Tag("tenant"),)),)
        if kind < 0.4
        else (PoolNeed(draw.choice(POOLS)),)
    )


def chained_world(seed: int) -> SimWorld:
    draw = random.Random(seed)
    world = SimWorld(
        seed,
        Behaviour(
            duration=lambda rng, _node: rng.choice([1, 5, 20, 100, 300]) * MILLISECOND,
            failure=draw.choice([0.0, 0.2]),
            latency=draw.choice([100, MILLISECOND, 20 * MILLISECOND]),
        ),
    )
    rules: dict[tuple[str, str], Any] = {
        ("runs", ""): {"limit": draw.choice([-1, 2, 4])},
        ("engine", "placement"): {"value": "pack"},
        ("engine", "max_starts_per_cycle"): {"value": draw.choice([5, 1_000])},
        ("pool", "tenant[*]"): {"limit": 1},
    }
    for pool in POOLS:
        rules["pool", pool] = {"limit": draw.randint(1, 4)}
    if draw.random() < 0.3:
        rules["pool", "api"]["rate"] = {"count": 20, "per_us": SECOND, "burst": 2}
    if draw.random() < 0.5:
        rules["tag", "tenant=*"] = {"key": "tenant", "per_value": True, "limit": draw.randint(1, 2)}
    for (kind, name), rule in rules.items():
        world.set_rule(kind, name, rule)
    for index in range(draw.randint(1, 3)):
        world.add_worker(f"w{index}", {"async": draw.randint(1, 9), "thread": 2})
    world.lead()
    flows = [chain(draw, f"flow{index}") for index in range(3)]
    for _ in range(draw.randint(4, 14)):
        world.plan(draw.randrange(SECOND), lambda: submit(world, draw, flows))
    for _ in range(draw.randint(0, 2)):
        world.plan(draw.randrange(2 * SECOND), lambda: cancel(world, draw))
    for _ in range(draw.randint(0, 3)):
        rule = {"limit": draw.randint(1, 5), "paused": draw.random() < 0.3}
        pool = draw.choice(POOLS)
        world.plan(draw.randrange(2 * SECOND), lambda p=pool, r=rule: world.set_rule("pool", p, r))
    if draw.random() < 0.3:
        world.plan(draw.randrange(SECOND), lambda: world.kill_worker("w0"))
    return world


def submit(world: SimWorld, draw: random.Random, flows: list[Graph]) -> None:
    world.submit(
        draw.choice(flows),
        consts=b"[[1,2,3,4,5],1,2]",
        tags={"tenant": draw.choice(["acme", "globex"])},
        priority=draw.choice([0, 0, 3]),
    )


def cancel(world: SimWorld, draw: random.Random) -> None:
    if world.model.runs:
        world.cancel(draw.choice(list(world.model.runs)))


def led_to(make: Callable[[int], SimWorld], seed: int, moment: int) -> SimWorld:
    world = make(seed)
    world.run(until=world.now + moment)
    return world


def restored(world: SimWorld) -> Scheduler | None:
    """The next leader, as it is right after it has read the rows and what else there is to know."""
    if world.scheduler is None:
        return None
    world.lead()
    world._gather(world.scheduler)
    return world.scheduler


def living(world: SimWorld) -> Scheduler | None:
    if world.scheduler is not None:
        world._gather(world.scheduler)
    return world.scheduler


def decisions(scheduler: Scheduler, now: int) -> tuple[set[int], set[tuple[int, int, int, str]]]:
    before = {entry.id for entry in scheduler.lifecycle.tasks.values() if entry.state in HOLDING}
    runs: set[int] = set()
    while True:
        cycle = scheduler.cycle(now)
        runs |= {start.run for start in cycle.commit.runs_started}
        if not cycle.unfinished:
            break
    started = {
        (run_of(entry.id), entry.node, entry.idx, entry.worker or "")
        for entry in scheduler.lifecycle.tasks.values()
        if entry.state in HOLDING and entry.id not in before
    }
    return runs, started


def books(scheduler: Scheduler) -> dict[str, Any]:
    """Everything that is charged, and everybody who waits."""
    ledger = scheduler.ledger
    return {
        "runs": ledger.run_gate.used,
        "tags": {name: gate.used for name, gate in ledger.tag_gates.items() if gate.used},
        "pools": {name: pool.used for name, (pool, *_) in ledger.slot_gates.items() if pool.used},
        "rates": {
            gate.dump() for gates in ledger.slot_gates.values() for gate in gates if gate.timed
        },
        "permits": {
            worker.id: (worker.used, worker.offered, {k: n for k, n in worker.used_by.items() if n})
            for worker in ledger.workers.by_id.values()
            if worker.used
        },
        "windows": {
            (run.seq, node): gate.used
            for run in ledger.runs.values()
            for node, gate in run.windows.items()
        },
        "parallel": {
            run.seq: (run.parallel.used if run.parallel else 0) for run in ledger.runs.values()
        },
        "tasks": {
            (run_of(entry.id), entry.node, entry.idx): (
                entry.state,
                entry.in_line,
                entry.not_before,
                entry.requested_at,
                entry.attempt,
                entry.tries,
                entry.abandons,
                entry.worker,
            )
            for entry in scheduler.lifecycle.tasks.values()
        },
        "verdicts": {run.seq: run.row.verdict for run in ledger.runs.values()},
    }


def same_books(lived: Scheduler, again: Scheduler) -> None:
    first, second = books(lived), books(again)
    for name, was in first.items():
        assert second[name] == was, name


QUICK = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
seeds = st.integers(0, 10**6)
moments = st.integers(0, 2_500).map(lambda at: at * MILLISECOND)


@QUICK
@given(seed=seeds, moment=moments)
def test_a_restored_leader_decides_like_the_old_one(seed: int, moment: int):
    lived_on, taken_over = (led_to(chained_world, seed, moment) for _ in range(2))
    lived, again = living(lived_on), restored(taken_over)
    if lived is None or again is None:
        return
    same_books(lived, again)
    assert decisions(lived, lived_on.now) == decisions(again, taken_over.now)


@QUICK
@given(seed=seeds, moment=moments)
def test_a_restored_leader_has_the_same_books_in_any_world(seed: int, moment: int):
    """Any graph, any need, any fair key: what is charged and who waits is derived from rows alone.

    Without cached steps: a new leader looks their keys up again, and may find what came since.
    """
    lived_on, taken_over = (
        led_to(partial(random_world, clock_jumps=False, cached=False), seed, moment)
        for _ in range(2)
    )
    # A worker in the leader's process has told the old leader what the rows do not know yet.
    if any(worker.local for worker in lived_on.workers.values()):
        return
    # A new leader asks at once who has died; the old one would at its next sweep.
    dead = (worker for worker in lived_on.workers.values() if worker.proof == "gone")
    if any(worker.id in lived_on.model.workers for worker in dead):
        return
    # A new leader begins with the next slice of a map that is being expanded.
    lived = living(lived_on)
    if lived is None or any(each.backlog.maps for each in lived.lifecycle.run_graphs.values()):
        return
    again = restored(taken_over)
    assert again is not None
    same_books(lived, again)
