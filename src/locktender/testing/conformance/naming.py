# ruff: noqa: S101
"""Runs submitted by name: announced flows, and the commit that gives a run its traced graph."""

from __future__ import annotations

import pytest

from locktender.base.announced import AnnouncedFlow
from locktender.base.changes import RunEnd, RunUnfolded
from locktender.base.errors import NotLeader
from locktender.testing.conformance.world import SceneLeader, StoreScene, submitted

BODY = b'{"flow":"f","nodes":[],"version":1}'


class TestNaming:
    async def test_what_was_announced_last_counts(self, world: StoreScene) -> None:
        store = await world.open()
        old, new = AnnouncedFlow("b", "1"), AnnouncedFlow("b", "2", parameters={"type": "object"})
        await store.announce([AnnouncedFlow("a", "1", tags={"t": "x"}), old])
        await store.announce([new])
        await store.announce([new])
        await store.announce([])
        assert await store.flows() == [AnnouncedFlow("a", "1", tags={"t": "x"}), new]
        other = await world.open()
        assert await other.flows(["b", "c"]) == [new]
        assert await other.forget_flow("b") is True
        assert await other.forget_flow("b") is False
        assert [flow.name for flow in await store.flows()] == ["a"]

    async def test_a_traced_run_has_its_graph_with_one_commit(self, world: StoreScene) -> None:
        store = await world.open()
        first, second = await submitted(store), await submitted(store)
        leader = await SceneLeader.stand(store)
        await leader.start(first.seq, second.seq)
        traced = RunUnfolded(first.seq, "digest", BODY, b"[1]")
        # One whose graph is empty ends with the same commit; both share a graph.
        await leader.commit(
            runs_unfolded=[RunUnfolded(second.seq, "digest", BODY, b"[]"), traced],
            runs_ended=[RunEnd(second.seq, "succeeded", b"null", None, 1)],
        )
        row = await store.run(first.id)
        assert row is not None
        assert (row.graph, row.consts, row.state) == ("digest", b"[1]", "running")
        assert await store.graph("digest") == BODY
        ended = await store.run(second.id)
        assert ended is not None
        assert (ended.graph, ended.consts, ended.state) == ("digest", b"[]", "succeeded")

    async def test_a_leader_whose_term_is_over_gives_no_graph(self, world: StoreScene) -> None:
        store = await world.open()
        run = await submitted(store)
        leader = await SceneLeader.stand(store)
        await leader.start(run.seq)
        await SceneLeader.stand(store, "l1")
        with pytest.raises(NotLeader):
            await leader.commit(runs_unfolded=[RunUnfolded(run.seq, "digest", BODY, b"[1]")])
        row = await store.run(run.id)
        assert row is not None
        assert row.graph != "digest"
