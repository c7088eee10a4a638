# ruff: noqa: S101
"""One active run per key, retries of ended runs, and ceilings for several runs at once."""

from __future__ import annotations

import msgspec
import pytest

from locktender.base.changes import TaskRow
from locktender.base.clock import SECOND
from locktender.base.commits import RunEnd
from locktender.base.errors import NotFound
from locktender.base.ids import task_id
from locktender.base.limits import TagRule
from locktender.store.protocol import Store, Submitted
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    changes_of,
    history,
    new_run,
    set_ceiling,
    set_tag,
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
        assert request.request is not None
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
        subjects = [
            request.request.subject
            for request in (await store.load()).requests
            if request.request is not None
        ]
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

    async def test_a_queued_replacement_that_ends_gives_the_key_back(
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


async def ended(
    store: Store, leader: SceneLeader, state: str = "failed", **fields: object
) -> Submitted:
    run = await submitted(store, **fields)
    await leader.start(run.seq)
    await leader.end(run.seq, state)
    return run


class TestRetrying:
    @pytest.mark.parametrize("state", ["failed", "cancelled", "timed_out"])
    async def test_an_ended_run_is_queued_again(self, world: StoreScene, state: str) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader, state, deadline_us=SECOND, priority=3)
        world.clock.advance(SECOND)
        [result] = await store.retry([run.id])
        assert (result.id, result.seq, result.outcome) == (run.id, run.seq, "created")
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.generation, row.queued_at) == ("queued", 1, world.clock.now())
        assert (row.verdict, row.output, row.error) == (None, None, None)
        assert (row.started_at, row.ended_at) == (0, 0)
        assert row.deadline_at == world.clock.now() + SECOND
        assert [entry.run.id for entry in await store.queue(5)] == [run.id]
        event = (await history(store, run.seq))[-1]
        assert (event.before, event.after, event.actor) == (state, "queued", "client")
        assert event.data["generation"] == 1
        counts = await store.counts()
        assert (counts.admitted[""], counts.closed[""], counts.active[""]) == (2, 1, 1)

    async def test_finished_tasks_keep_their_outputs(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store)
        await leader.start(run.seq)
        task = TaskRow(task_id(run.seq, 0), 0, -1, "completed", output=b"7")
        await leader.commit(tasks_new=[task])
        await leader.end(run.seq, "failed")
        await store.retry([run.id])
        assert await store.tasks(run.seq) == [task]

    async def test_a_repeated_retry_is_one_retry(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        await store.retry([run.id, run.id])
        [again] = await store.retry([run.id])
        assert again.outcome == "created"
        row = await store.run(run.id)
        assert row is not None
        assert row.generation == 1
        assert (await changes_of(store, run.seq)).count(("failed", "queued")) == 1

    async def test_what_succeeded_is_not_run_again(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader, "succeeded")
        [result] = await store.retry([run.id])
        assert result.outcome == "finished"
        assert await store.queue(5) == []

    async def test_nodes_that_are_named_run_again(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run, other = await submitted(store), await submitted(store)
        kept, again = (
            TaskRow(task_id(run.seq, node), node, -1, "completed", output=b"7") for node in (0, 1)
        )
        beside = TaskRow(task_id(other.seq, 1), 1, -1, "completed", output=b"7")
        for each in (run, other):
            await leader.start(each.seq)
        await leader.commit(tasks_new=[kept, again, beside])
        for each in (run, other):
            await leader.end(each.seq, "succeeded")
        for _ in range(2):  # repeated after a lost answer
            [result] = await store.retry([run.id], [1])
            assert result.outcome == "created"
        found = [msgspec.json.decode(row.error or b"null") for row in await store.tasks(run.seq)]
        assert [None if each is None else each["type"] for each in found] == [None, "again"]
        assert await store.tasks(other.seq) == [beside]
        event = (await history(store, run.seq))[-1]
        assert (event.before, event.after, event.data["again"]) == ("succeeded", "queued", [1])

    async def test_a_retry_passes_the_ceiling(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        await set_ceiling(store, 1)
        await submitted(store)
        [result] = await store.retry([run.id])
        assert (result.outcome, result.ceiling, result.limit) == ("rejected", "max_active", 1)
        row = await store.run(run.id)
        assert row is not None
        assert (row.state, row.generation) == ("failed", 0)

    async def test_a_retry_needs_its_key(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader, key="k")
        other = await submitted(store, key="k")
        [result] = await store.retry([run.id])
        assert (result.outcome, result.id) == ("duplicate", other.id)
        await leader.end(other.seq, "cancelled", "queued")
        await store.retry([run.id])
        assert (await submitted(store, key="k")).id == run.id

    async def test_an_unknown_run(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await ended(store, leader)
        with pytest.raises(NotFound):
            await store.retry([run.id, "nobody"])
        row = await store.run(run.id)
        assert row is not None
        assert row.state == "failed"


RULES = {
    "team": TagRule("team", max_active=3),
    "team=a": TagRule("team", "a", max_active=3),
    "team=*": TagRule("team", per_value=True, max_active=3),
}


def refusal_of(answer: Submitted) -> tuple[str, str, int, int, int]:
    return answer.ceiling, answer.rule, answer.active, answer.limit, answer.wanted


async def tagged(store: Store, count: int, others: int = 0, **how: bool) -> list[Submitted]:
    """`others` carry no tag and stand between them."""
    runs = [new_run(tags={"team": "a"}) for _ in range(count)]
    return await submit(store, *runs[:1], *(new_run() for _ in range(others)), *runs[1:], **how)


class TestCeilings:
    @pytest.mark.parametrize("rule", RULES)
    async def test_only_runs_that_count_there_are_counted(
        self, world: StoreScene, rule: str
    ) -> None:
        store = await world.open()
        await set_tag(store, RULES[rule])
        await tagged(store, 2)
        answers = await tagged(store, 2, others=7)
        name = "team" if rule == "team" else "team=a"
        assert {refusal_of(each) for each in answers} == {(name, rule, 2, 3, 2)}
        assert all(SECOND <= each.retry_after_us <= 3_600 * SECOND for each in answers)

    @pytest.mark.parametrize("rule", RULES)
    async def test_more_than_a_ceiling_allows_at_all_never_fit(
        self, world: StoreScene, rule: str
    ) -> None:
        store = await world.open()
        await set_tag(store, RULES[rule])
        answers = await tagged(store, 4, others=2)
        assert {(each.active, each.limit, each.wanted) for each in answers} == {(0, 3, 4)}
        assert {each.retry_after_us for each in answers} == {0}
        assert (await store.counts()).queued == 0
        # Some of them: what fits is taken, and the last one may come again.
        answers = await tagged(store, 4, others=2, partial=True)
        assert [each.outcome for each in answers] == ["created"] * 5 + ["rejected"]
        assert (answers[-1].active, answers[-1].wanted) == (3, 1)
        assert answers[-1].retry_after_us >= SECOND

    async def test_of_several_ceilings_the_one_that_never_opens_is_named(
        self, world: StoreScene
    ) -> None:
        """A run refused at the total was not counted at its tag, and the refusal names the total."""
        store = await world.open()
        await set_ceiling(store, 6)
        await set_tag(store, RULES["team=*"])
        await submit(store, *(new_run() for _ in range(5)))
        answers = await submit(store, *(new_run(tags={"team": "a"}) for _ in range(5)))
        assert {refusal_of(each) for each in answers} == {("team=a", "team=*", 0, 3, 5)}
        # And each ceiling by itself.
        answers = await submit(store, *(new_run() for _ in range(2)))
        assert {refusal_of(each) for each in answers} == {("max_active", "max_active", 5, 6, 2)}
        answers = await submit(store, *(new_run(tags={"team": "a"}) for _ in range(3)))
        assert {refusal_of(each) for each in answers} == {("max_active", "max_active", 5, 6, 3)}

    async def test_those_that_attach_ask_for_no_place(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 3)
        first = await submitted(store, key="k")
        again = [new_run(key="k") for _ in range(4)]
        answers = await submit(store, *again, new_run(), new_run())
        assert [each.outcome for each in answers] == ["attached"] * 4 + ["created"] * 2
        assert {each.id for each in answers[:4]} == {first.id}
        answers = await submit(store, *again, new_run())
        assert {refusal_of(each) for each in answers} == {("max_active", "max_active", 3, 3, 1)}

    async def test_a_key_that_comes_twice_asks_for_one_place(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 2)
        await submit(store, new_run(), new_run())
        answers = await submit(store, *(new_run(key="k") for _ in range(3)))
        assert {refusal_of(each) for each in answers} == {("max_active", "max_active", 2, 2, 1)}
        assert all(each.retry_after_us for each in answers)

    async def test_a_retry_is_refused_like_a_submission(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        run = await submitted(store, tags={"team": "a"})
        await leader.start(run.seq)
        await leader.end(run.seq, "failed")
        await set_tag(store, RULES["team=*"])
        await tagged(store, 3)
        [answer] = await store.retry([run.id])
        assert answer.outcome == "rejected"
        assert refusal_of(answer) == ("team=a", "team=*", 3, 3, 1)
        assert answer.retry_after_us >= SECOND
