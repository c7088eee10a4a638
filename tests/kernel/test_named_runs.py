"""G6: a run submitted by name goes on with the graph that a worker traced, whoever leads in between."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.worlds import graph, items, needs, settle, step, world

from locktender.base.changes import TaskRow
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import (
    TRACE,
    Compare,
    Const,
    Graph,
    Node,
    Output,
    Param,
    PoolNeed,
    Truthy,
)
from locktender.base.model import WorkerRow
from locktender.base.named_runs import TracedFlow, read_traced, tracing_graph, unfold
from locktender.base.states import TaskState
from locktender.kernel.explain import Typical, explain_task
from locktender.simulate.world import SimWorld

TWO_STEPS = graph(
    step("first", args=(Param("n"),)),
    step("second", args=(Output(0),), after=(0,)),
    flow="named",
    result=Output(1),
    max_parallel=1,
)
FIRST = tracing_graph("named", ["n"])


def traced(of: Graph, params: bytes = b'{"n":7}', consts: bytes = b"[]") -> bytes:
    return b'{"graph":%s,"params":%s,"consts":%s}' % (msgspec.json.encode(of), params, consts)


def named_world(output: bytes = traced(TWO_STEPS), **options: object) -> SimWorld:
    def made(_row: TaskRow, node: Node) -> bytes:
        return output if node.step == TRACE else b"1"

    return world(output=made, **options)  # pyright: ignore[reportArgumentType]


def test_g6_a_traced_graph_is_the_flow_behind_its_tracing_step():
    flow = graph(
        step("a", args=(Const(0), Param("n"))),
        items("b", over=Output(0, ("list",)), pools=(PoolNeed("api", 1, (Param("k"),)),)),
        step("c", after=(1,), when=Compare("==", Output(0), Param("n"))),
        step("d", when=Truthy(Param("k"))),
        flow="f",
        result=Output(2),
    )
    first = tracing_graph("f", ["n"])
    whole, consts = unfold(first, read_traced(traced(flow, b'{"n":7,"k":"x"}', b'["c"]')))
    assert [node.name for node in whole.nodes] == [TRACE, "a", "b", "c", "d"]
    assert consts == [b'"c"', b"7", b'"x"']
    assert whole.nodes[1].args == (Const(0), Const(1))
    assert whole.nodes[2].over == Output(1, ("list",))
    assert whole.nodes[2].pools[0].key == (Const(2),)
    assert whole.nodes[3].after == (2,)
    assert whole.nodes[3].when == Compare("==", Output(1), Const(1))
    assert whole.nodes[4].when == Truthy(Const(2))
    assert whole.result == Output(3)
    assert isinstance(read_traced(traced(flow)), TracedFlow)


@pytest.mark.parametrize("local", [True, False])
def test_g6_a_run_goes_on_with_its_graph(local: bool):
    sim = named_world(local=local)
    run = sim.submit(FIRST, params=b'{"n":7}')
    settle(sim)
    assert run is not None
    row = sim.model.runs[run.seq]
    assert (row.state, row.output, row.params) == ("succeeded", b"1", b'{"n":7}')
    assert [node.name for node in sim.model.graphs[row.graph].nodes] == [TRACE, "first", "second"]
    [first] = [task for task in sim.model.tasks.values() if task.node == 1]
    assert first.input == b'{"args":[7],"kwargs":{}}'
    assert sum(event.subject == "trace" for event in sim.model.events) == 1


@pytest.mark.parametrize("at", range(0, 60, 2))
def test_g6_a_leader_may_change_at_any_instant(at: int):
    sim = named_world()
    for _ in range(3):
        sim.submit(FIRST, params=b'{"n":7}')
    sim.plan(at * MILLISECOND, sim.lead)
    settle(sim)
    assert {run.state for run in sim.model.runs.values()} == {"succeeded"}
    assert sum(event.subject == "trace" for event in sim.model.events) == 3


def test_g6_tracing_that_raises_fails_the_run():
    sim = named_world(fate=lambda _row, node: TaskState.FAILED if node.step == TRACE else None)
    run = sim.submit(FIRST, params=b'{"n":7}')
    settle(sim)
    assert run is not None
    row = sim.model.runs[run.seq]
    assert row.state == "failed"
    assert b'"Boom"' in (row.error or b"")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (b"1", b"the traced graph is refused"),
        (traced(graph(step("a", after=(4,)))), b"nodes[1].after"),
        (traced(FIRST), b"is itself a graph that is to be traced"),
        (traced(graph(step("a", pools=needs(db=5)))), b"db"),
    ],
)
def test_g6_a_graph_that_the_checker_refuses_fails_the_run(output: bytes, said: bytes):
    sim = named_world(output, rules={("pool", "db"): {"limit": 2}})
    run = sim.submit(FIRST, params=b'{"n":7}')
    settle(sim)
    assert run is not None
    row = sim.model.runs[run.seq]
    assert row.state == "failed"
    assert said in (row.error or b"")


def test_g6_limits_of_the_flow_hold_for_the_traced_graph():
    wide = graph(items("m", over=Param("n")), flow="named", max_parallel=2)
    sim = named_world(traced(wide, b'{"n":[1,2,3,4,5,6]}'))
    sim.submit(FIRST, params=b'{"n":[1,2,3,4,5,6]}')
    settle(sim)
    assert sim.peak(lambda body: body.node.name == "m") == 2


def test_g6_the_reason_names_the_flow_that_no_worker_knows():
    sim = named_world(workers=0)
    sim.add_worker("w")
    row = sim.model.workers["w"]
    assert isinstance(row, WorkerRow)
    sim.model.workers["w"] = msgspec.structs.replace(row, steps={}, flows={"name": "x"})
    sim.submit(FIRST, params=b'{"n":7}')
    sim.run(until=sim.now + SECOND)
    assert sim.scheduler is not None
    [entry] = sim.scheduler.lifecycle.tasks.values()
    [reason] = explain_task(sim.scheduler, entry, Typical(), sim.now)
    assert reason.text == "no worker knows flow named. Did you mean 'name'?"
    assert sim.peak_demand == 1
    assert sim.scheduler.ledger.run_gate.used == 0
