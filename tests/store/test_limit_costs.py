"""What limits cost in waiting: who asks again reads only what is new, and is told the same as who asks first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender.base.clock import SECOND, ManualClock
from locktender.base.commits import RunEvents
from locktender.base.events import NO_RUN, Change, Event, EventRow
from locktender.observe import holders
from locktender.observe.holders import MINUTE, CostBook, Samples, limit_costs
from locktender.store.protocol import EventFilter
from locktender.store.sqlite.store import SqliteStore
from locktender.testing.conformance.world import SceneLeader

GATE = "pool:db"
HOUR = 3_600 * SECOND


class CountingStore(SqliteStore):
    rows = 0

    async def events(self, where: EventFilter) -> list[EventRow]:
        found = await super().events(where)
        self.rows += len(found)
        return found


async def told(leader: SceneLeader, clock: ManualClock, times: int, holder: int = 7) -> None:
    """So many seconds in which the gate is held, and costs one second each."""
    for _ in range(times):
        clock.advance(SECOND)
        held = Change("wait", 0, GATE, GATE, 0, {"held": [[holder, 1]]})
        cost = Change("cost", 0, "", "", 0, {"gates": {GATE: [SECOND, 2]}})
        await leader.commit(events=[RunEvents(NO_RUN, [held, cost])])


async def test_a_holder_without_a_part_is_forgotten_with_the_others(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "costs.db", clock)
    await store.open()
    try:
        leader = await SceneLeader.stand(store, lease_us=10 * HOUR)
        book = CostBook(store, HOUR)
        held = Change("wait", 0, GATE, GATE, 0, {"held": [[7, 9], [8, 1]]})
        for us in (SECOND, 3):
            clock.advance(5 * MINUTE)
            cost = Change("cost", 0, "", "", 0, {"gates": {GATE: [us, 1]}})
            await leader.commit(events=[RunEvents(NO_RUN, [held, cost])])
            [found] = await book.read()
        assert [(each.run, each.us) for each in found.to] == [
            ("#7", SECOND * 9 // 10 + 3),
            ("#8", SECOND // 10),
        ]
        clock.advance(HOUR - 4 * MINUTE)
        [left] = await book.read()
        assert (left.us, left.waits) == (3, 1)
        assert [(each.run, each.us) for each in left.to] == [("#7", 3)]
        clock.advance(10 * MINUTE)
        assert await book.read() == []
    finally:
        await store.close()


async def test_costs_are_followed_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "PAGE", 8)
    monkeypatch.setattr(holders, "OVERLAP", 3)
    clock = ManualClock()
    store = CountingStore(tmp_path / "costs.db", clock)
    await store.open()
    try:
        leader = await SceneLeader.stand(store, lease_us=10 * HOUR)
        await told(leader, clock, 40, holder=5)
        clock.advance(HOUR)
        await told(leader, clock, 10)
        book = CostBook(store, HOUR)
        store.rows = 0
        [first] = await book.read()
        assert (first.gate, first.us, first.waits) == (GATE, 10 * SECOND, 20)
        assert [(each.run, each.us) for each in first.to] == [("#7", 10 * SECOND)]
        assert store.rows < 30  # of 50: what is too old is not read
        assert await book.read() == [first]
        store.rows = 0
        await told(leader, clock, 2, holder=9)
        [second] = await book.read()
        assert (second.us, second.waits) == (12 * SECOND, 24)
        assert store.rows < 12
        assert [second] == await limit_costs(store, HOUR)
        now = await store.now()
        minutes = book.history({GATE, "pool:other"}, now, 3)
        assert [each.at for each in minutes] == [now - now % MINUTE - n * MINUTE for n in (2, 1, 0)]
        assert sum(each.us for each in minutes) == 12 * SECOND
        assert sum(each.waits for each in minutes) == 24
        later = now - now % MINUTE + MINUTE + MINUTE // 4
        last = minutes[-1].waits
        assert book.passed(later) == {GATE: pytest.approx(last * 3 / 4)}
        assert book.passed(later + MINUTE) == {}
        clock.advance(HOUR // 2)
        await told(leader, clock, 3, holder=9)
        clock.advance(HOUR // 2 + 2 * MINUTE)
        [left] = await book.read()
        assert (left.us, left.waits) == (3 * SECOND, 6)
        assert [(each.run, each.us) for each in left.to] == [("#9", 3 * SECOND)]
        clock.advance(HOUR + 61 * SECOND)
        assert await book.read() == []
    finally:
        await store.close()


def test_shares_of_a_long_time_look_at_few_samples() -> None:
    looked = 0

    class Looked(list[tuple[int, int]]):
        def __iter__(self) -> Iterator[tuple[int, int]]:
            nonlocal looked
            looked += 1
            return super().__iter__()

    samples = Samples(())
    for at in range(10_000):
        held = Looked([(1 + at % 2, 1), (3, 1)])
        event = Event(at, at * SECOND, 1, 1, "", 0, "wait", 0, GATE, GATE, 0, {"held": held})
        samples.add(event)
    shares = samples.shares(GATE, 0, 10_000 * SECOND, most=64)
    assert looked <= 4 * 64
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[3] == pytest.approx(0.5)
