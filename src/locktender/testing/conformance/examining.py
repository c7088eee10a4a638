# ruff: noqa: S101
"""Lists of what has certain tags: in parts of a bounded length, nothing missed, nothing twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from locktender.store.protocol import EventFilter, Examine, Examined, RunFilter
from locktender.testing.conformance.mailing import let_wait_for_event
from locktender.testing.conformance.world import SceneLeader, StoreScene, new_run, submit, submitted

T = TypeVar("T")
MINE = {"tenant": "acme"}
LIKE_MINE: tuple[dict[str, str], ...] = (
    {"tenant": "globex"},
    {"tenant": "acme2"},
    {'x"tenant': "acme"},
    {"other": '"tenant":"acme"'},
    {},
)
"""Tags of others: some have the text of the wanted pair in them."""


async def whole(verb: Callable[[Any], Awaitable[Examined[T, Any]]], most_parts: int) -> list[T]:
    """All parts, one after the other."""
    found: list[T] = []
    place: Any = None
    for _ in range(most_parts):
        part = await verb(place)
        found += part.rows
        place = part.place
        if place is None:
            return found
    raise AssertionError(f"{most_parts} parts were read, and there are more")


class TestExamining:
    async def test_runs_behind_many_of_others_are_found_part_by_part(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        mine = await submit(store, *(new_run(tags={**MINE, "n": str(n)}) for n in range(3)))
        await submit(store, *(new_run(tags=LIKE_MINE[n % 5]) for n in range(20)))
        await leader.start(mine[1].seq)
        await leader.end(mine[1].seq, "failed")
        wanted = [each.seq for each in reversed(mine)]

        async def part(states: list[str] | None, before: int | None) -> Examined[Any, int]:
            where = RunFilter(states=states, tags=MINE, limit=2, before=before)
            return await store.examine_runs(where, 4)

        first = await part(None, None)
        assert first.rows == []
        assert first.place is not None, "others stand before them: there may be more"
        found = await whole(lambda place: part(None, place), 8)
        assert [row.seq for row in found] == wanted
        found = await whole(lambda place: part(["queued", "failed"], place), 8)
        assert [row.seq for row in found] == wanted
        found = await whole(lambda place: part(["failed"], place), 1)
        assert [row.seq for row in found] == [mine[1].seq]
        assert await store.examine_runs(RunFilter(tags={"tenant": "none"}), 100) == ([], None)

    async def test_queued_runs_have_their_places_among_all(self, world: StoreScene) -> None:
        store = await world.open()
        tags = [LIKE_MINE[n % 5] if n % 4 else MINE for n in range(22)]
        await submit(store, *(new_run(tags=each) for each in tags))
        await submitted(store, tags=MINE, priority=5)

        for limit, most in ((1, 3), (2, 4), (100, 5), (100, 100)):
            found = await whole(
                lambda place, limit=limit, most=most: store.examine_queue(
                    Examine(MINE, limit, most), place
                ),
                16,
            )
            assert [each.position for each in found] == [1, 2, 6, 10, 14, 18, 22]
            every = {each.position: each.run.id for each in await store.queue(100)}
            assert [every[each.position] for each in found] == [each.run.id for each in found]

    async def test_events_of_own_runs_are_found_the_last_first(self, world: StoreScene) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        mine = await submitted(store, tags=MINE)
        others = await submit(store, *(new_run(tags=LIKE_MINE[n % 5]) for n in range(9)))
        for each in others:
            await leader.start(each.seq)
        await leader.start(mine.seq)
        await leader.end(mine.seq, "failed")
        found = await whole(lambda place: store.examine_events(Examine(MINE, 2, 5), place), 16)
        assert {row.run for row in found} == {mine.seq}
        numbers = [row.seq for row in found]
        assert numbers == sorted(numbers, reverse=True)
        assert len(numbers) == len(set(numbers)) == 3
        everything = await whole(lambda place: store.examine_events(Examine({}, 2, 5), place), 64)
        history = [row.seq for row in await store.events(EventFilter(limit=1_000))]
        assert [row.seq for row in everything] == history[::-1]
        assert 0 in {row.run for row in everything}, "of the leader itself"

    async def test_waits_of_own_runs_are_found_behind_those_of_others(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        made = [
            (await submitted(store, tags=MINE if n in (4, 9) else LIKE_MINE[n % 5])).seq
            for n in range(10)
        ]
        for run in made:
            await leader.start(run)
            await let_wait_for_event(leader, run, "go")
        found = await whole(lambda place: store.examine_waits(Examine(MINE, 1, 3), place), 16)
        assert [each.run for each in found] == [made[4], made[9]]
        await leader.end(made[4], "failed")
        found = await whole(lambda place: store.examine_waits(Examine(MINE, 5, 3), place), 16)
        assert [each.run for each in found] == [made[9]]
