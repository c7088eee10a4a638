"""Order across lanes: a gate that opens serves the first waiter of all lanes."""

from __future__ import annotations

from dataclasses import dataclass

from locktender.base.limits import PoolRule
from locktender.kernel.admission import AdmissionQueue
from locktender.kernel.gates.pool import PoolGate
from locktender.kernel.gates.protocol import Lane


@dataclass
class One:
    id: int
    rank: tuple[int, int]


def test_a_freed_slot_goes_to_the_oldest_of_all_lanes() -> None:
    pool = PoolGate("db", PoolRule(limit=3))
    queue: AdmissionQueue[One] = AdmissionQueue()
    lane_a: Lane[One] = Lane("a", (), ((pool, 1),))
    lane_b: Lane[One] = Lane("b", (), ((pool, 1),))
    pool.used = 3
    for waiter, lane in [(1, lane_a), (5, lane_a), (6, lane_a), (2, lane_b), (3, lane_b)]:
        queue.add(One(waiter, (0, waiter)), lane)
    assert [waiter.id for waiter, _ in queue.decide(0, 10)] == []

    queue.release((), ((pool, 3),))

    assert [waiter.id for waiter, _ in queue.decide(0, 10)] == [1, 2, 3]
