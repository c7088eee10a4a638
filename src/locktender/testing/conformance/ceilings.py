# ruff: noqa: S101
"""Several runs at a ceiling, all or none: which ceiling it is, how many count there, and whether waiting helps."""

from __future__ import annotations

import pytest

from locktender.base.clock import SECOND
from locktender.base.limits import TagRule
from locktender.store.protocol import Store, Submitted
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    new_run,
    set_ceiling,
    set_tag,
    submit,
    submitted,
)

RULES = {
    "team": TagRule("team", max_active=3),
    "team=a": TagRule("team", "a", max_active=3),
    "team=*": TagRule("team", per_value=True, max_active=3),
}


def told(answer: Submitted) -> tuple[str, str, int, int, int]:
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
        assert {told(each) for each in answers} == {(name, rule, 2, 3, 2)}
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
        """Whoever is refused at the total has asked nobody at its tag, and is told of it all the same."""
        store = await world.open()
        await set_ceiling(store, 6)
        await set_tag(store, RULES["team=*"])
        await submit(store, *(new_run() for _ in range(5)))
        answers = await submit(store, *(new_run(tags={"team": "a"}) for _ in range(5)))
        assert {told(each) for each in answers} == {("team=a", "team=*", 0, 3, 5)}
        # And each ceiling by itself.
        answers = await submit(store, *(new_run() for _ in range(2)))
        assert {told(each) for each in answers} == {("max_active", "max_active", 5, 6, 2)}
        answers = await submit(store, *(new_run(tags={"team": "a"}) for _ in range(3)))
        assert {told(each) for each in answers} == {("max_active", "max_active", 5, 6, 3)}

    async def test_those_that_attach_ask_for_no_place(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 3)
        first = await submitted(store, key="k")
        again = [new_run(key="k") for _ in range(4)]
        answers = await submit(store, *again, new_run(), new_run())
        assert [each.outcome for each in answers] == ["attached"] * 4 + ["created"] * 2
        assert {each.id for each in answers[:4]} == {first.id}
        answers = await submit(store, *again, new_run())
        assert {told(each) for each in answers} == {("max_active", "max_active", 3, 3, 1)}

    async def test_a_key_that_comes_twice_asks_for_one_place(self, world: StoreScene) -> None:
        store = await world.open()
        await set_ceiling(store, 2)
        await submit(store, new_run(), new_run())
        answers = await submit(store, *(new_run(key="k") for _ in range(3)))
        assert {told(each) for each in answers} == {("max_active", "max_active", 2, 2, 1)}
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
        assert told(answer) == ("team=a", "team=*", 3, 3, 1)
        assert answer.retry_after_us >= SECOND
