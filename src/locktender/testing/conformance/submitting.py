# ruff: noqa: S101
"""Submitting: the queue, the ceiling, all or none."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from locktender.base.clock import SECOND
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.limits import TagRule
from locktender.store.protocol import RunFilter, Submit
from locktender.testing.conformance.world import (
    DIGEST,
    GRAPH,
    SceneLeader,
    StoreScene,
    history,
    new_run,
    set_ceiling,
    set_tag,
    submit,
    submitted,
)


class TestSubmitting:
    async def test_a_run_is_stored_queued_with_one_event(self, world: StoreScene) -> None:
        store = await world.open()
        run = new_run(params={"n": 1}, tags={"team": "a"}, priority=5, deadline_us=SECOND)
        [result] = await submit(store, run)
        assert (result.id, result.outcome) == (run.id, "created")
        stored = await store.run(run.id)
        assert stored is not None
        assert (stored.seq, stored.state, stored.params, stored.tags, stored.priority) == (
            result.seq,
            "queued",
            b'{"n":1}',
            {"team": "a"},
            5,
        )
        assert stored.queued_at == world.clock.now()
        assert stored.deadline_at == world.clock.now() + SECOND
        assert await store.graph(DIGEST) == GRAPH
        [event] = await history(store, result.seq)
        assert (event.subject, event.before, event.after, event.actor) == (
            "run",
            "new",
            "queued",
            "client",
        )
        assert event.data["flow"] == "demo"
        assert event.data["tags"] == {"team": "a"}
        assert event.data["lane"] == stored.lane
        assert event.data["rank"] == [-5, world.clock.now()]

    async def test_a_snapshot_has_the_highest_number_of_a_run(self, world: StoreScene) -> None:
        """Also if that run has ended: a later notification of it is old."""
        store = await world.open()
        assert (await store.load()).last_run == 0
        leader = await SceneLeader.stand(store)
        await submitted(store)
        run = await submitted(store)
        await leader.start(run.seq)
        await leader.end(run.seq, "cancelled")
        assert (await store.load()).last_run == run.seq

    @pytest.mark.parametrize("size", [60, 1_200])  # more than a thousand may be written another way
    async def test_runs_of_one_batch_keep_what_is_their_own(
        self, world: StoreScene, size: int
    ) -> None:
        store = await world.open()
        await set_tag(store, TagRule("team", limit=5, per_value=True))
        runs = [
            new_run(
                flow=f"demo-{n % 2}",
                params={"n": n},
                tags={"team": f"t{n % 3}", "n": str(n // 30 % 2)} if n % 4 else {},
                priority=n % 5,
                key=f"k{n}" if n % 7 == 0 else None,
                deadline_us=SECOND if n % 2 else None,
            )
            for n in range(size)
        ]
        results = await submit(store, *runs)
        assert [each.outcome for each in results] == ["created"] * size
        for run, result in zip(runs, results, strict=True):
            if result.seq % (size // 60):
                continue
            stored = await store.run(run.id)
            assert stored is not None
            assert (stored.seq, stored.flow, stored.params, stored.tags, stored.priority) == (
                result.seq,
                run.flow,
                run.params,
                run.tags,
                run.priority,
            )
            assert (stored.key, stored.queued_at) == (run.key, world.clock.now())
            [event] = await history(store, result.seq)
            assert event.data == {
                "flow": run.flow,
                "graph": run.graph,
                "tags": run.tags,
                "priority": run.priority,
                "generation": 0,
                "lane": stored.lane,
                "rank": [-run.priority, world.clock.now()],
                "kind": "flow",
            } | ({"key": run.key} if run.key is not None else {})
        lanes = {
            run.tags.get("team"): stored.lane
            for run in runs[:12]
            if (stored := await store.run(run.id)) is not None
        }
        assert len(set(lanes.values())) == 4  # one for each team, one for those without

    async def test_a_repeated_submission_is_the_same_run(self, world: StoreScene) -> None:
        store = await world.open()
        run = new_run()
        [first] = await submit(store, run)
        [again] = await submit(store, run)
        assert again == first
        assert len(await history(store, first.seq)) == 1
        counts = await store.counts()
        assert (counts.admitted[""], counts.queued) == (1, 1)

    async def test_one_id_twice_in_a_batch_is_one_run(self, world: StoreScene) -> None:
        store = await world.open()
        run = new_run()
        first, again = await submit(store, run, run)
        assert first == again
        assert (await store.counts()).queued == 1

    async def test_a_large_batch_keeps_its_order(self, world: StoreScene) -> None:
        store = await world.open()
        runs = [new_run(tags={"n": str(n % 7)}) for n in range(1_000)]
        results = await submit(store, *runs)
        assert [result.seq for result in results] == sorted({result.seq for result in results})
        assert [entry.run.id for entry in await store.queue(2_000)] == [run.id for run in runs]

    async def test_beyond_the_ceiling_nothing_is_stored(self, world: StoreScene) -> None:
        """B4: ceiling 15, the 16th is rejected and leaves no row."""
        store = await world.open()
        await set_ceiling(store, 15)
        await submit(store, *(new_run() for _ in range(15)))
        events = len(await history(store))
        late = new_run()
        [result] = await store.submit(Submit([late], {"new-graph": b"{}"}))
        for _ in range(100):
            if result.as_of:
                break
            # Somebody else's transaction on the same server was in flight.
            [result] = await store.submit(Submit([late], {"new-graph": b"{}"}))
        assert (result.outcome, result.ceiling, result.active, result.limit) == (
            "rejected",
            "max_active",
            15,
            15,
        )
        assert SECOND <= result.retry_after_us <= 3_600 * SECOND
        assert result.as_of == (await history(store))[-1].seq
        assert await store.run(late.id) is None
        with pytest.raises(NotFound):
            await store.graph("new-graph")
        assert len(await history(store)) == events

    async def test_all_or_none(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 2)
        results = await submit(store, *(new_run() for _ in range(3)))
        assert [result.outcome for result in results] == ["rejected"] * 3
        assert {result.ceiling for result in results} == {"max_active"}
        assert await store.runs(RunFilter()) == []
        assert (await store.counts()).admitted[""] == 0

    async def test_what_was_stored_before_stays_so_beside_a_refusal(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await set_ceiling(store, 1)
        run = new_run()
        [first] = await submit(store, run)
        again, refused = await submit(store, run, new_run())
        assert again == first
        assert refused.outcome == "rejected"

    async def test_what_fits_is_admitted_when_partial(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 2)
        results = await submit(store, *(new_run() for _ in range(3)), partial=True)
        assert [result.outcome for result in results] == ["created", "created", "rejected"]
        assert (await store.counts()).active[""] == 2

    async def test_a_closed_run_makes_room(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 1)
        run = await submitted(store)
        leader = await SceneLeader.stand(store)
        await leader.start(run.seq)
        assert (await submitted(store)).outcome == "rejected"
        await leader.end(run.seq)
        assert (await submitted(store)).outcome == "created"

    async def test_retry_after_follows_the_pace_of_closing(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 10)
        leader = await SceneLeader.stand(store, lease_us=3_600 * SECOND)
        # Given one run that closes every ten seconds.
        for _ in range(5):
            run = await submitted(store)
            await leader.start(run.seq)
            world.clock.advance(10 * SECOND)
            await leader.end(run.seq)
        await submit(store, *(new_run() for _ in range(10)))
        result = await submitted(store)
        assert result.outcome == "rejected"
        assert 5 * SECOND <= result.retry_after_us <= 15 * SECOND
        # When nothing has closed for a long time, at least a minute is promised.
        world.clock.advance(600 * SECOND)
        assert (await submitted(store)).retry_after_us >= 60 * SECOND

    @pytest.mark.parametrize(("together", "every"), [(1, 10), (5, 10), (3, 1), (1, 25)])
    async def test_a_submitter_that_waits_for_retry_after_is_admitted(
        self, world: StoreScene, together: int, every: int
    ) -> None:
        """Under a steady drain, at whatever second it is refused."""
        store = await world.open()
        await set_ceiling(store, 10)
        leader = await SceneLeader.stand(store, lease_us=36_000 * SECOND)
        active = [each.seq for each in await submit(store, *(new_run() for _ in range(10)))]
        await leader.start(*active)

        async def drain(seconds: int) -> None:
            """Time passes; room is made as it does, and taken at once until the end."""
            for _ in range(seconds):
                world.clock.advance(SECOND)
                self.second += 1
                if self.second % every:
                    continue
                for run in active[:together]:
                    await leader.end(run)
                del active[:together]

        async def refill() -> None:
            while (made := await submitted(store)).outcome == "created":
                await leader.start(made.seq)
                active.append(made.seq)

        self.second = 0
        for moment in (3, 1, every, 2 * every + 1, every // 2 + 1, 90):
            await drain(moment)
            await refill()
            refused = await submitted(store)
            assert refused.outcome == "rejected"
            assert SECOND <= refused.retry_after_us <= max(60, 4 * every) * SECOND
            await drain(-(-refused.retry_after_us // SECOND))
            assert (await submitted(store)).outcome == "created"
            await refill()

    async def test_retry_after_counts_everybody_who_is_too_many(self, world: StoreScene) -> None:
        """A lowered ceiling, and several handed in together, need more than one to close."""
        store = await world.open()
        leader = await SceneLeader.stand(store, lease_us=3_600 * SECOND)
        runs = await submit(store, *(new_run() for _ in range(30)))
        await leader.start(*(run.seq for run in runs))
        for run in runs[:20]:
            world.clock.advance(2 * SECOND)
            await leader.end(run.seq)
        await set_ceiling(store, 10)
        alone = await submitted(store)
        several = await submit(store, *(new_run() for _ in range(5)))
        assert 2 * SECOND <= alone.retry_after_us <= 3 * SECOND
        assert {9 * SECOND <= each.retry_after_us <= 12 * SECOND for each in several} == {True}
        each = await submit(store, *(new_run() for _ in range(3)), partial=True)
        waits = [result.retry_after_us for result in each]
        assert waits == sorted(waits)
        assert waits[0] < waits[-1]
        await set_ceiling(store, 4)
        assert (await submitted(store)).retry_after_us >= 14 * SECOND

    @pytest.mark.parametrize(
        ("rule", "ceiling", "fits", "other"),
        [
            (TagRule("team", max_active=2), "team", {"team": "a"}, {}),
            (TagRule("team", "a", max_active=2), "team=a", {"team": "a"}, {"team": "b"}),
            (
                TagRule("team", per_value=True, max_active=2),
                "team=a",
                {"team": "a"},
                {"team": "b"},
            ),
        ],
    )
    async def test_ceilings_of_tags(
        self,
        world: StoreScene,
        rule: TagRule,
        ceiling: str,
        fits: dict[str, str],
        other: dict[str, str],
    ) -> None:
        store = await world.open()
        await set_tag(store, rule)
        await submit(store, new_run(tags=fits), new_run(tags=fits))
        refused = await submitted(store, tags=fits)
        assert (refused.outcome, refused.ceiling, refused.active, refused.limit) == (
            "rejected",
            ceiling,
            2,
            2,
        )
        assert (await submitted(store, tags=other)).outcome == "created"

    async def test_a_hold_passes_every_ceiling_and_is_not_counted(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 1)
        await submitted(store)
        hold = await submitted(store, kind="hold")
        assert hold.outcome == "created"
        leader = await SceneLeader.stand(store)
        await leader.start(hold.seq)
        await leader.end(hold.seq)
        counts = await store.counts()
        assert (counts.admitted[""], counts.closed[""], counts.active[""]) == (1, 0, 1)

    async def test_the_ceiling_is_exact_under_concurrent_submitters(
        self, world: StoreScene
    ) -> None:
        stores = [await world.open(), await world.open()]
        await set_ceiling(stores[0], 15)
        results = await asyncio.gather(*(submitted(stores[n % 2]) for n in range(60)))
        outcomes = [result.outcome for result in results]
        assert outcomes.count("created") == 15
        assert outcomes.count("rejected") == 45
        assert (await stores[0].counts()).active[""] == 15

    async def test_a_verb_that_fails_does_not_hurt_those_committed_with_it(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        bad = new_run()
        results = await asyncio.gather(
            *(submitted(store) for _ in range(10)),
            store.submit(Submit([structs.replace(bad, graph="nowhere")], {})),
            *(submitted(store) for _ in range(10)),
            return_exceptions=True,
        )
        assert [n for n, r in enumerate(results) if isinstance(r, BaseException)] == [10]
        assert isinstance(results[10], InvalidInput)
        assert await store.run(bad.id) is None
        counts = await store.counts()
        assert (counts.admitted[""], counts.active[""], counts.queued) == (20, 20, 20)

    async def test_a_run_without_its_graph_is_refused(self, world: StoreScene) -> None:
        store = await world.open()
        run = new_run()
        with pytest.raises(InvalidInput):
            await store.submit(Submit([run], {}))
        assert await store.run(run.id) is None
        assert (await store.counts()).admitted[""] == 0
