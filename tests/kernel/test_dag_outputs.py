"""Outputs in the memory of a leader: only those that something may still read."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
from tests.support.worlds import graph, items, step

from locktender.base.graph import Const, Graph, Item, Output, PoolNeed
from locktender.base.model import Failure
from locktender.kernel.dag import RunGraph
from locktender.kernel.node_state import PLAIN, Existing
from locktender.simulate.scenarios import random_graph

LARGE = 10_000


def value(tag: int) -> bytes:
    return msgspec.json.encode(f"{tag:04}" * (LARGE // 4))


def kept(progress: RunGraph) -> int:
    """How many large outputs are in memory."""
    return sum(
        len(held) // LARGE
        for state in progress.steps
        for held in (state.output, *(state.items or ()))
        if held is not None
    )


def begun(flow: Graph, count: int = 0, existing: Iterable[Existing] = ()) -> RunGraph:
    progress = RunGraph(flow, {}, [msgspec.json.encode(list(range(count)))], {})
    progress.begin(list(existing))
    return progress


def ended(node: int, idx: int, ordinal: int) -> Existing:
    return Existing(node, idx, ordinal, "completed", value(node), None, final=True)


def test_an_output_that_nothing_reads_is_not_kept():
    flow = graph(items("fetch"), step("last", after=(0,)))
    progress = begun(flow, 100)
    for idx in range(100):
        progress.completed(0, idx, value(idx))
        assert kept(progress) == 0
    progress.completed(1, PLAIN, b"1")
    assert progress.finished


def test_an_output_is_kept_until_its_last_reader_started():
    flow = graph(
        step("a"),
        step("b", args=(Output(0),)),
        step("c", args=(Output(0),), after=(1,)),
    )
    progress = begun(flow)
    progress.completed(0, PLAIN, value(0))
    assert kept(progress) == 1, "c waits"
    asked = progress.completed(1, PLAIN, value(1)).requests
    assert kept(progress) == 0
    assert msgspec.json.decode(value(0)) in msgspec.json.decode(asked[0].input)["args"]


def test_the_result_is_kept():
    flow = graph(step("a"), step("b", after=(0,)), result=Output(0))
    progress = begun(flow)
    progress.completed(0, PLAIN, value(7))
    progress.completed(1, PLAIN, value(1))
    assert progress.verdict() == (True, value(7), None)


def test_a_list_of_results_is_kept_once():
    flow = graph(items("fetch"), step("sum", args=(Output(0),)), result=Output(0))
    progress = begun(flow, 50)
    for idx in range(50):
        progress.completed(0, idx, value(idx))
    assert kept(progress) == 50
    progress.completed(1, PLAIN, b"1")
    assert msgspec.json.decode(progress.verdict()[1] or b"") == [
        msgspec.json.decode(value(idx)) for idx in range(50)
    ]


def test_items_are_dropped_when_the_items_after_them_have_them():
    flow = graph(items("a"), items("b", Output(0)), items("c", Output(1)))
    progress = begun(flow, 20)
    for idx in range(20):
        asked = progress.completed(0, idx, value(idx)).requests
        assert [each.input for each in asked] == [value(idx)]
        assert kept(progress) == 0


def test_items_wait_for_a_map_that_has_not_begun():
    flow = graph(step("gate"), items("a"), items("b", Output(1), after=(0,)))
    progress = begun(flow, 20)
    for idx in range(20):
        progress.completed(1, idx, value(idx))
    assert kept(progress) == 20
    asked = progress.completed(0, PLAIN, b"1").requests
    assert [each.input for each in asked] == [value(idx) for idx in range(20)]
    assert kept(progress) == 0


def test_what_every_item_is_given_is_kept_until_the_map_ended():
    """The leader's own worker makes the call of each item when it starts."""
    flow = graph(step("a"), items("b", Const(0), args=(Item(), Output(0))))
    progress = begun(flow, 3)
    progress.completed(0, PLAIN, value(0))
    for idx in range(3):
        assert kept(progress) == 1
        progress.completed(1, idx, b"1")
    assert kept(progress) == 0


def test_a_key_of_a_pool_is_kept_until_the_task_ended():
    flow = graph(step("a"), step("b", pools=(PoolNeed("api", 1, (Output(0),)),)))
    progress = begun(flow)
    progress.completed(0, PLAIN, value(0))
    assert kept(progress) == 1
    progress.completed(1, PLAIN, b"1")
    assert kept(progress) == 0


def test_a_new_leader_keeps_no_more():
    flow = graph(items("a"), items("b", Output(0)), step("end", after=(1,)))
    rows = [ended(0, idx, idx) for idx in range(50)]
    rows += [ended(1, idx, 50 + idx) for idx in range(50)]
    assert kept(begun(flow, 50, rows)) == 0


def test_every_run_ends_with_the_same_inputs_and_result():
    """Random graphs: as if all outputs were kept."""
    for seed in range(60):
        flow = random_graph(random.Random(seed), "flow")
        consts = [b"[1,2,3,4,5,6,7]", b"1", b"2"]
        one, other = (told(flow, consts, seed, keep=keep) for keep in (False, True))
        assert one == other, seed


def told(flow: Graph, consts: list[bytes], seed: int, *, keep: bool) -> list[Any]:
    chance = random.Random(seed)
    progress = RunGraph(flow, {}, consts, {"tenant": "acme"})
    if keep:
        for state in progress.steps:
            state.readers += 1
    seen: list[Any] = []
    advance = progress.begin()
    waiting: list[tuple[int, int]] = []
    while True:
        for each in advance.requests:
            seen.append((each.node, each.idx, each.input))
            waiting.append((each.node, each.idx))
        seen += [(each.node, each.idx, each.reason) for each in advance.skips]
        seen += advance.shared
        if not waiting:
            break
        node, idx = waiting.pop(chance.randrange(len(waiting)))
        if chance.random() < 0.1:
            advance = progress.failed(node, idx, Failure("Boom", "as planned"))
        else:
            advance = progress.completed(node, idx, msgspec.json.encode([seed, node, idx]))
    return [*seen, progress.finished and progress.verdict()]
