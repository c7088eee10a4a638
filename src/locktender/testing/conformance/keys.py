# ruff: noqa: S101
"""Keys: one active run per key, and what a second submission may do about it."""

from __future__ import annotations

from locktender.base.changes import RunEnd
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    changes_of,
    new_run,
    set_ceiling,
    submit,
    submitted,
)


class TestKeys:
    async def test_the_same_submission_attaches(self, world: StoreScene) -> None:
        store = await world.open()
        first = await submitted(store, key="k", params={"n": 1})
        second = await submitted(store, key="k", params={"n": 1})
        assert (second.id, second.seq, second.outcome) == (first.id, first.seq, "attached")
        assert await changes_of(store, first.seq) == [("new", "queued")]

    async def test_attaching_works_at_the_ceiling(self, world: StoreScene) -> None:
        """B4."""
        store = await world.open()
        await set_ceiling(store, 1)
        first = await submitted(store, key="k")
        assert (await submitted(store, key="k")).id == first.id
        assert (await submitted(store)).outcome == "rejected"

    async def test_other_parameters_are_a_duplicate_that_says_which(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        first = await submitted(store, key="k", params={"n": 1, "same": 0, "gone": 1})
        second = await submitted(store, key="k", params={"n": 2, "same": 0, "new": 1})
        assert (second.outcome, second.id) == ("duplicate", first.id)
        assert second.difference == "gone, n, new"
        other = await submitted(store, key="k", flow="other")
        assert (other.outcome, other.difference) == ("duplicate", "flow")

    async def test_reject(self, world: StoreScene) -> None:
        store = await world.open()
        first = await submitted(store, key="k")
        second = await submitted(store, key="k", on_duplicate="reject")
        assert (second.outcome, second.id) == ("duplicate", first.id)

    async def test_a_duplicate_refuses_its_companions(self, world: StoreScene) -> None:
        store = await world.open()
        await submitted(store, key="k")
        results = await submit(store, new_run(), new_run(key="k", on_duplicate="reject"))
        assert [result.outcome for result in results] == ["rejected", "duplicate"]
        assert (await store.counts()).queued == 1

    async def test_a_key_is_free_when_its_run_has_ended(self, world: StoreScene) -> None:
        store = await world.open()
        first = await submitted(store, key="k")
        leader = await SceneLeader.stand(store)
        await leader.start(first.seq)
        await leader.end(first.seq, "failed")
        second = await submitted(store, key="k", on_duplicate="reject")
        assert second.outcome == "created"
        assert second.id != first.id

    async def test_one_key_twice_in_a_batch(self, world: StoreScene) -> None:
        store = await world.open()
        first, second = await submit(store, new_run(key="k"), new_run(key="k"))
        assert (first.outcome, second.outcome) == ("created", "attached")
        assert second.id == first.id

    async def test_replace_cancels_the_old_and_waits_for_it(self, world: StoreScene) -> None:
        store = await world.open()
        old = await submitted(store, key="k")
        new = await submitted(store, key="k", on_duplicate="replace")
        assert new.outcome == "created"
        row = await store.run(new.id)
        assert row is not None
        assert row.waits_for == old.seq
        [request] = (await store.load()).requests
        assert (request.request.kind, request.request.subject) == ("cancel", old.id)
        # The key is the new run's: the old one's end does not free it.
        leader = await SceneLeader.stand(store)
        await leader.start(old.seq)
        await leader.end(old.seq, "cancelled", "cancelling")
        assert (await submitted(store, key="k")).id == new.id
        row = await store.run(new.id)
        assert row is not None
        assert row.waits_for is None

    async def test_a_chain_of_replacements(self, world: StoreScene) -> None:
        """The middle one is cancelled in the queue; the last still waits for the one that runs."""
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, key="k")
        await leader.start(first.seq)
        second = await submitted(store, key="k", on_duplicate="replace")
        third = await submitted(store, key="k", on_duplicate="replace")
        subjects = [request.request.subject for request in (await store.load()).requests]
        assert subjects == [first.id, second.id]
        await leader.end(second.seq, "cancelled", "queued")
        row = await store.run(third.id)
        assert row is not None
        assert row.waits_for == first.seq
        await leader.end(first.seq, "cancelled", "cancelling")
        row = await store.run(third.id)
        assert row is not None
        assert row.waits_for is None
        assert [entry.run.id for entry in await store.queue(10)] == [third.id]

    async def test_a_replacement_that_ends_in_the_queue_leaves_the_key_to_the_replaced(
        self, world: StoreScene
    ) -> None:
        """The replaced run has not ended: a third must not find the key free beside it."""
        store = await world.open()
        leader = await SceneLeader.stand(store)
        first = await submitted(store, key="k")
        await leader.start(first.seq)
        second = await submitted(store, key="k", on_duplicate="replace")
        third = await submitted(store, key="k", on_duplicate="replace")
        now = await store.now()
        ends = [RunEnd(each.seq, "cancelled", None, None, now) for each in (second, third)]
        await leader.commit(runs_ended=ends)
        assert (await submitted(store, key="k", on_duplicate="reject")).id == first.id
        fourth = await submitted(store, key="k", on_duplicate="replace")
        row = await store.run(fourth.id)
        assert row is not None
        assert row.waits_for == first.seq
        # And once nobody has it, it is free.
        await leader.end(fourth.seq, "cancelled", "queued")
        await leader.end(first.seq, "cancelled", "running")
        assert (await submitted(store, key="k", on_duplicate="reject")).outcome == "created"

    async def test_a_chain_that_ends_at_once(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        chain = await submit(store, *(new_run(key="k", on_duplicate="replace") for _ in range(3)))
        assert [result.outcome for result in chain] == ["created"] * 3
        now = await store.now()
        await leader.commit(
            runs_ended=[RunEnd(each.seq, "cancelled", None, None, now) for each in chain[:2]]
        )
        row = await store.run(chain[2].id)
        assert row is not None
        assert row.waits_for is None

    async def test_skip_if_finished(self, world: StoreScene) -> None:
        store = await world.open()
        first = await submitted(store, key="k", on_duplicate="skip_if_finished")
        assert first.outcome == "created"
        attached = await submitted(store, key="k", on_duplicate="skip_if_finished")
        assert (attached.outcome, attached.id) == ("attached", first.id)
        leader = await SceneLeader.stand(store)
        await leader.start(first.seq)
        await leader.end(first.seq)
        skipped = await submitted(store, key="k", on_duplicate="skip_if_finished")
        assert (skipped.outcome, skipped.id, skipped.seq) == ("finished", first.id, first.seq)

    async def test_a_failed_run_does_not_count_as_finished(self, world: StoreScene) -> None:
        store = await world.open()
        first = await submitted(store, key="k")
        leader = await SceneLeader.stand(store)
        await leader.start(first.seq)
        await leader.end(first.seq, "failed")
        again = await submitted(store, key="k", on_duplicate="skip_if_finished")
        assert again.outcome == "created"
