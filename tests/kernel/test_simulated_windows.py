"""Seed 000, simulated: the fan-out window (A1–A4) and sequential flows (D1)."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from tests.support.worlds import graph, items, needs, numbers, of, settle, step, world

from locktender.base.changes import TaskRow
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.graph import Node, Output, RetryPolicy
from locktender.base.states import TaskState
from locktender.simulate.model import SimBody
from locktender.simulate.world import SimWorld

WHERE = pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])


def uneven(draw: random.Random, _node: Node) -> int:
    return draw.randint(1, 50) * MILLISECOND


def bodies(world: SimWorld, name: str) -> list[SimBody]:
    return [body for body in world.bodies if body.node.name == name]


def echo(row: TaskRow, _node: Node) -> bytes:
    return msgspec.json.encode(row.idx)


@WHERE
def test_a1_a_window_of_three_over_five_items(local: bool):
    flow = graph(items(window=3), step("sum", args=(Output(0),)), result=Output(1))
    sim = world(local=local, took=lambda draw, _node: draw.randint(5, 50) * MILLISECOND)
    sim.submit(flow, consts=numbers(5))
    sim.run(until=sim.now + 2 * MILLISECOND)
    # All rows exist up front, with their inputs; three of them are on their way.
    rows = [row for row in sim.model.tasks.values() if row.node == 0]
    assert [row.input for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
    assert [row.state == "requested" for row in rows] == [False, False, False, True, True]
    settle(sim)
    ran = bodies(sim, "m")
    assert [body.task for body in ran] == sorted(body.task for body in ran)
    assert sim.peak(of("m")) == 3
    # One more for each that ended: from the fourth on, a start follows an end.
    for later, ended in zip(ran[3:], sorted(body.end for body in ran), strict=False):
        assert later.start >= ended
    [successor] = bodies(sim, "sum")
    assert successor.start >= max(body.end for body in ran)


@WHERE
@pytest.mark.parametrize("seed", range(5))
def test_a2_the_measured_peak_is_exactly_the_window(local: bool, seed: int):
    sim = world(seed=seed, local=local, workers=2, took=uneven)
    sim.submit(graph(items(window=3)), consts=numbers(20))
    settle(sim)
    assert sim.peak(of("m")) == 3
    assert len(sim.bodies) == 20


@WHERE
def test_a2_the_window_is_regained_after_three_end_at_once(local: bool):
    sim = world(local=local)
    sim.submit(graph(items(window=3)), consts=numbers(21))
    settle(sim)
    ran = bodies(sim, "m")
    starts = sorted({body.start for body in ran})
    assert len(starts) == 7
    for start in starts:
        assert sum(body.start == start for body in ran) == 3


@pytest.mark.parametrize("workers", [1, 3])
def test_a3_many_items_end_in_the_same_instant(workers: int):
    flow = graph(items(), step("sum", args=(Output(0),)), result=Output(1))
    sim = world(workers=workers, permits={"async": 500}, output=echo)
    sim.submit(flow, consts=numbers(120))
    settle(sim)
    ran = bodies(sim, "m")
    assert len({body.task for body in ran}) == len(ran) == 120
    assert len({body.end for body in ran}) <= 3  # claims of 50 come in a few waves
    assert len(bodies(sim, "sum")) == 1
    assert {body.worker for body in ran} == {f"w{index}" for index in range(workers)}


@WHERE
@pytest.mark.parametrize(("window", "peak"), [(1, 1), (7, 7), (8, 7), (1_000, 7), (None, 7)])
def test_a4_windows_from_one_to_larger_than_the_list(local: bool, window: int | None, peak: int):
    sim = world(local=local)
    sim.submit(graph(items(window=window)), consts=numbers(7))
    settle(sim)
    assert sim.peak(of("m")) == peak


@WHERE
def test_a4_an_empty_list_runs_the_successor_with_an_empty_list(local: bool):
    flow = graph(items(window=3), step("sum", args=(Output(0),)))
    sim = world(local=local)
    sim.submit(flow, consts=b"[[]]")
    settle(sim)
    assert [body.node.name for body in sim.bodies] == ["sum"]
    [row] = [row for row in sim.model.tasks.values() if row.node == 1]
    assert row.input == b'{"args":[[]],"kwargs":{}}'


def second_fails(row: TaskRow, node: Node) -> TaskState | None:
    return TaskState.FAILED if node.name == "m" and row.idx == 1 else None


@WHERE
def test_a4_a_failing_item_ends_the_map(local: bool):
    flow = graph(items(window=2), step("sum", args=(Output(0),)), result=Output(1))
    sim = world(local=local, fate=second_fails)
    sim.submit(flow, consts=numbers(9))
    settle(sim)
    states = [row.state for row in sim.model.tasks.values() if row.node == 0]
    assert states == ["completed", "failed"] + ["skipped"] * 7
    assert bodies(sim, "sum") == []
    assert sim.model.runs[1].state == "failed"


@WHERE
def test_a4_a_failing_item_is_collected(local: bool):
    flow = graph(
        items(window=2, on_error="collect"), step("sum", args=(Output(0),)), result=Output(0)
    )
    sim = world(local=local, fate=second_fails, output=echo)
    sim.submit(flow, consts=numbers(4))
    settle(sim)
    run = sim.model.runs[1]
    assert run.state == "succeeded"
    first, error, third, fourth = msgspec.json.decode(run.output or b"")
    assert (first, third, fourth) == (0, 2, 3)
    assert error["$locktender.error"]["type"] == "Boom"
    assert sim.peak(of("m")) == 2


@WHERE
def test_a4_cancel_in_the_middle(local: bool):
    flow = graph(items(window=3, pools=needs(db=1)), step("sum", args=(Output(0),)))
    sim = world(local=local)
    sim.submit(flow, consts=numbers(20))
    sim.plan(25 * MILLISECOND, lambda: sim.cancel(1))
    settle(sim)
    assert sim.model.runs[1].state == "cancelled"
    states = [row.state for row in sim.model.tasks.values() if row.node == 0]
    assert set(states) == {"completed", "cancelled"}
    assert bodies(sim, "sum") == []
    assert sim.peak(of("m")) == 3


def test_a_waiting_retry_leaves_the_window_to_others():
    policy = RetryPolicy(1, delay_us=SECOND, jitter=False)
    sim = world(
        fate=lambda row, _node: TaskState.FAILED if row.attempt == 1 and not row.idx else None
    )
    sim.submit(graph(items(window=1, retry=policy)), consts=numbers(4))
    settle(sim)
    order = [body.task & 0xFFFFF for body in sim.bodies]
    assert order == [0, 1, 2, 3, 0]
    assert sim.peak(of("m")) == 1


# -- D1 --------------------------------------------------------------------------------------------


def twice_bad(row: TaskRow, _node: Node) -> TaskState | None:
    return TaskState.FAILED if row.attempt <= (row.node + max(0, row.idx)) % 3 else None


@WHERE
def test_d1_sequential_tasks_keep_their_order_when_retried(local: bool):
    policy = RetryPolicy(3, delay_us=200 * MILLISECOND)
    chain = [
        step(f"s{index}", after=(index - 1,) if index else (), retry=policy) for index in range(10)
    ]
    sim = world(local=local, workers=3, took=uneven, fate=twice_bad)
    sim.submit(graph(*chain, sequential=True))
    settle(sim)
    assert sim.model.runs[1].state == "succeeded"
    ran = sim.bodies
    assert [body.node.name for body in ran] == sorted(body.node.name for body in ran)
    assert all(before.end <= after.start for before, after in pairwise(ran))
    assert len(ran) == 10 + 3 * 1 + 3 * 2
    assert sim.peak(lambda _body: 1) == 1


@WHERE
def test_d1_a_sequential_map_keeps_its_order_when_retried(local: bool):
    policy = RetryPolicy(3, delay_us=200 * MILLISECOND)
    flow = graph(
        items(window=1, retry=policy), step("end", after=(0,), retry=policy), sequential=True
    )
    sim = world(local=local, workers=3, took=uneven, fate=twice_bad)
    sim.submit(flow, consts=numbers(6))
    settle(sim)
    assert [body.task for body in sim.bodies] == sorted(body.task for body in sim.bodies)
    assert all(before.end <= after.start for before, after in pairwise(sim.bodies))


@WHERE
def test_d1_a_map_of_an_inner_sequential_flow_keeps_its_order(local: bool):
    """The flow around it is not sequential: its own steps run beside the map."""
    policy = RetryPolicy(3, delay_us=200 * MILLISECOND)
    flow = graph(items(window=1, retry=policy, in_order=True), items("beside"))
    sim = world(local=local, workers=3, took=uneven, fate=twice_bad)
    sim.submit(flow, consts=numbers(6))
    for moment in range(1, 12):
        sim.plan(moment * 130 * MILLISECOND, sim.lead)
    settle(sim)
    ran = [body.task for body in sim.bodies if body.node.name == "m"]
    assert len(ran) > 6
    assert ran == sorted(ran)


def test_d1_the_order_survives_new_leaders():
    policy = RetryPolicy(3, delay_us=200 * MILLISECOND)
    flow = graph(items(window=1, retry=policy), sequential=True)
    sim = world(workers=2, took=uneven, fate=twice_bad)
    sim.submit(flow, consts=numbers(6))
    for moment in range(1, 12):
        sim.plan(moment * 130 * MILLISECOND, sim.lead)
    settle(sim)
    assert [body.task for body in sim.bodies] == sorted(body.task for body in sim.bodies)
