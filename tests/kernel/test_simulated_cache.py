"""Cached results, simulated: taken once, by whoever leads, and never after their time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.worlds import graph, items, needs, numbers, step, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.commits import CacheClear
from locktender.base.graph import CacheRule, Const, Graph, Output
from locktender.base.named_runs import TracedFlow, tracing_graph, unfold
from locktender.simulate.scenarios import random_world, violations
from locktender.simulate.world import SimWorld

KEPT = CacheRule(3_600 * SECOND)


def flow(ttl_us: int = KEPT.ttl_us, **options: Any) -> Graph:
    rule = CacheRule(ttl_us)
    return graph(
        items("each", pools=needs(db=1), cache=rule),
        step("last", args=(Output(0),), cache=rule, **options),
        result=Output(1),
    )


def made(**options: Any) -> SimWorld:
    return world(rules={("pool", "db"): {"limit": 1}}, **options)


def hits(made: SimWorld, run: int) -> int:
    return sum("cached" in event.data for event in made.model.events if event.run == run)


def submit(made: SimWorld, of: Graph, items: int = 3) -> int:
    row = made.submit(of, consts=numbers(items))
    assert row is not None
    return row.seq


def settled(made: SimWorld) -> None:
    made.run()
    assert violations(made) == []


@pytest.mark.parametrize("local", [True, False])
def test_the_second_run_takes_every_result_and_starts_nothing(local: bool):
    world = made(local=local)
    first = submit(world, flow())
    settled(world)
    second = submit(world, flow())
    settled(world)
    assert (hits(world, first), hits(world, second)) == (0, 4)
    assert [row.attempt for row in world.model.tasks.values()] == [1] * 4 + [0] * 4
    assert world.model.runs[first].output == world.model.runs[second].output


def test_a_leader_dead_between_commits_changes_no_result():
    for at in range(0, 60, 2):
        world = made()
        first = submit(world, flow())
        world.plan(SECOND, lambda world=world: submit(world, flow()))
        for base in (0, SECOND):
            world.plan(base + at * MILLISECOND, world.lead)
            world.plan(base + at * MILLISECOND + 1, world.lead)
        settled(world)
        states = {row.state for row in world.model.runs.values()}
        assert states == {"succeeded"}
        # what ended while its leader died is not kept: the next run makes it again
        stored = [event.run for event in world.model.events if event.after == "stored"]
        assert hits(world, first + 1) == stored.count(first) >= 3
        assert stored.count(first + 1) == 4 - stored.count(first)


def test_a_result_is_taken_until_its_time_and_not_after():
    world = made()
    submit(world, flow(ttl_us=2 * SECOND))
    runs: list[int] = []
    for at in (1, 3):
        world.plan(at * SECOND, lambda: runs.append(submit(world, flow(ttl_us=2 * SECOND))))
    settled(world)
    assert [hits(world, run) for run in runs] == [4, 0]


def test_a_cleared_result_is_not_taken_nor_kept_again():
    world = made()
    submit(world, flow())
    settled(world)
    world.model.clears.append(CacheClear("nobody", None))
    second = submit(world, flow())
    settled(world)
    assert hits(world, second) == 4
    world.model.clears.append(CacheClear("each", None))
    third = submit(world, flow())
    settled(world)
    assert hits(world, third) == 1
    kept = {each.step for each in world.model.cached.values()}
    assert kept == {"each", "last"}


def test_failed_and_skipped_results_are_never_kept():
    world = made(failure=1.0)
    run = submit(world, flow())
    settled(world)
    assert world.model.runs[run].state == "failed"
    assert world.model.cached == {}


def test_arguments_count_by_parameter_however_they_are_given():
    def called(*, args: tuple[Any, ...] = (), **kwargs: Any) -> Graph:
        rule = CacheRule(SECOND * 60, "everywhere", ("a", "b"), (), kwargs.pop("left_out", {}))
        node = step("same", args=args, kwargs=kwargs, cache=rule)
        return graph(node, result=Output(0), flow=f"flow {len(args)} {sorted(kwargs)}")

    world = made()
    graphs = [
        called(args=(Const(0), Const(1))),
        called(args=(Const(0),), b=Const(1)),
        called(a=Const(0), b=Const(1)),
        called(args=(Const(0),), left_out={"b": "2"}),
        called(args=(Const(1), Const(0))),
    ]
    runs: list[int] = []
    for each in graphs:
        row = world.submit(each, consts=b'[{"y":1,"x":[1]},2]')
        assert row is not None
        runs.append(row.seq)
        settled(world)
    assert [hits(world, run) for run in runs] == [0, 1, 1, 1, 0]


def test_a_scope_is_the_flow_unless_it_is_everything():
    counts: dict[str, list[int]] = {}
    for scope in ("flow", "everywhere"):
        world = made()
        for name in ("one", "two"):
            rule = CacheRule(SECOND * 60, scope)
            row = world.submit(graph(step("same", cache=rule), flow=name))
            assert row is not None
            settled(world)
            counts.setdefault(scope, []).append(hits(world, row.seq))
    assert counts == {"flow": [0, 0], "everywhere": [0, 1]}


@pytest.mark.parametrize("seed", range(30_000, 30_010))
def test_random_worlds_with_cached_steps_keep_every_promise(seed: int):
    world = random_world(seed)
    settled(world)


def test_a_traced_graph_finds_its_computed_keys():
    keyed = step("main", cache=CacheRule(SECOND, key=0))
    traced = TracedFlow(graph(step("main.key"), keyed), {}, [])
    unfolded, _ = unfold(tracing_graph("flow", ()), traced)
    rule = unfolded.nodes[2].cache
    assert rule is not None
    assert rule.key == 1
    assert unfolded.nodes[1].name == "main.key"
