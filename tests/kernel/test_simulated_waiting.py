"""Deadlines that a run sets for its own waiting, affinity, and what counts as demand."""

from __future__ import annotations

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import Const, Graph, Item, Node, Output, PoolNeed
from locktender.simulate.model import Behaviour
from locktender.simulate.scenarios import violations
from locktender.simulate.world import SimWorld

QUICK = Behaviour(lambda _draw, _node: 5 * MILLISECOND)
ONE = Graph("one", (Node("a", "a", executor="async", needs={"gpu": "yes"}),))


def errors(world: SimWorld) -> list[str]:
    return [
        event.data["error"]["type"]
        for event in world.model.events
        if event.subject == "task" and event.after == "failed"
    ]


def test_b7_a_runs_own_dispatch_deadline_ends_its_wait() -> None:
    world = SimWorld(1, QUICK)
    world.add_worker("w", {"async": 1})
    world.lead()
    world.submit(ONE, dispatch_deadline=20 * SECOND)
    world.run(world.now + 15 * SECOND)
    assert errors(world) == []
    world.run(world.now + 10 * SECOND)
    assert errors(world) == ["capacity"]
    assert violations(world) == []


def test_e5_a_run_s_own_queue_timeout_ends_its_wait_at_a_pool() -> None:
    world = SimWorld(1, Behaviour(lambda _draw, _node: 60 * SECOND))
    world.set_rule("pool", "db", {"limit": 1})
    world.add_worker("w", {"async": 5})
    world.lead()
    graph = Graph("pooled", (Node("a", "a", executor="async", pools=(PoolNeed("db"),)),))
    world.submit(graph)
    world.submit(graph, queue_timeout=2 * SECOND)
    world.run(world.now + 5 * SECOND)
    assert errors(world) == ["queue_timeout"]


def test_d8_tasks_of_one_affinity_go_to_one_worker() -> None:
    world = SimWorld(1, QUICK)
    for name in ("w0", "w1", "w2"):
        world.add_worker(name, {"async": 10})
    world.lead()
    chain = [Node("n0", "s", executor="async", affinity="cache")]
    chain += [
        Node(f"n{index}", "s", executor="async", affinity="cache", args=(Output(index - 1),))
        for index in range(1, 6)
    ]
    world.submit(Graph("chain", tuple(chain)))
    world.run()
    assert len({body.worker for body in world.bodies}) == 1
    assert violations(world) == []


def test_d8_affinity_reaches_over_runs() -> None:
    """What is warm in a worker is warm for whoever comes next, and not only for the rest of its run."""
    world = SimWorld(1, QUICK)
    for name in ("w0", "w1", "w2"):
        world.add_worker(name, {"async": 10})
    world.lead()
    for text in ("x", "y", "x", "y", "x", "y", "x"):
        world.submit(Graph(text, (Node(text, "s", executor="async", affinity=text),)))
        world.run(world.now + SECOND)
    where: dict[str, set[str]] = {}
    for body in world.bodies:
        where.setdefault(body.node.name, set()).add(body.worker)
    assert len(where) == 2
    assert {len(each) for each in where.values()} == {1}
    assert violations(world) == []


def test_demand_counts_only_what_every_other_gate_would_let_go() -> None:
    world = SimWorld(1, QUICK)
    world.set_rule("pool", "db", {"limit": 2})
    world.lead()
    node = Node("a", "a", executor="async", args=(Item(),), over=Const(0), pools=(PoolNeed("db"),))
    world.submit(Graph("many", (node,)), consts=b"[[1,2,3,4,5,6,7,8]]")
    world.run(world.now + 3 * SECOND)
    assert world.peak_demand == 2
