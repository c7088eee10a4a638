"""Alive, stalled, dead: by the leader's own clock, and by what is known of a process without its help (F5, F6)."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.worlds import graph, items, needs, numbers, settle, slots, step, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.model import Proof, WorkerLife
from locktender.kernel.liveness import LEASE_PASSED, PROCESS_DIED, PROOF_PAUSE_US, LeaseWatch
from locktender.simulate.scenarios import violations
from locktender.simulate.world import LEASE, SimWorld

GRACE = 60 * SECOND
NOW = 1_000_000 * SECOND


def life(lease_until: int = NOW, proof: Proof = "none") -> WorkerLife:
    return WorkerLife("w", lease_until, LEASE, proof)


def test_a_lease_passes_by_the_leaders_clock_alone():
    watch = LeaseWatch(GRACE)
    for steady, until in ((0, NOW), (5 * SECOND, NOW + 5 * SECOND)):
        assert watch.judge([life(until)], NOW, steady).dead == []
    # The store's clock is far ahead, or back: that changes nothing.
    for now in (NOW + 3_600 * SECOND, NOW - 3_600 * SECOND):
        judged = watch.judge([life(NOW + 5 * SECOND)], now, 5 * SECOND + LEASE - 1)
        assert (judged.dead, judged.stalled) == ([], {})
    [dead] = watch.judge([life(NOW + 5 * SECOND)], NOW, 5 * SECOND + LEASE).dead
    assert dead == ("w", NOW + 5 * SECOND, LEASE_PASSED)


def test_a_new_leader_gives_a_late_worker_a_whole_lease():
    watch = LeaseWatch(GRACE)
    for steady in (7, 7 + LEASE - 1):
        judged = watch.judge([life(NOW)], NOW + 30 * SECOND, steady)
        assert (judged.dead, list(judged.stalled)) == ([], ["w"])
    # It renews: it was never stalled, the clock had jumped.
    assert watch.judge([life(NOW + 31 * SECOND)], NOW + 30 * SECOND, 8 + LEASE).stalled == {}


def test_a_live_process_is_stalled_until_the_grace_ends():
    watch = LeaseWatch(GRACE)
    assert watch.judge([life(proof="held")], NOW, 0).stalled == {}
    for steady in (LEASE, LEASE + GRACE - 1):
        judged = watch.judge([life(proof="held")], NOW, steady)
        assert (judged.dead, judged.stalled) == ([], {"w": steady - LEASE})
    [dead] = watch.judge([life(proof="held")], NOW, LEASE + GRACE).dead
    assert "stalled for longer than 1m" in dead.reason


def test_a_process_known_to_be_dead_is_lost_at_once():
    watch = LeaseWatch(GRACE)
    assert watch.judge([life(proof="held")], NOW, 0).dead == []
    assert watch.judge([life(proof="gone")], NOW, 1).dead[0].reason == PROCESS_DIED


def test_a_lost_proof_of_life_may_come_back_for_a_moment():
    """A worker that wakes up connects again before it renews."""
    watch = LeaseWatch(GRACE)
    watch.judge([life(proof="held")], NOW, 0)
    assert watch.judge([life(proof="held")], NOW, 2 * LEASE).stalled
    assert watch.judge([life()], NOW, 2 * LEASE + PROOF_PAUSE_US - 1).dead == []
    assert watch.judge([life()], NOW, 2 * LEASE + PROOF_PAUSE_US).dead


def test_a_worker_that_ended_its_lease_itself_is_lost_at_once():
    assert LeaseWatch(GRACE).judge([life(0, "held")], NOW, 0).dead


# -- in the simulator --------------------------------------------------------------------------------


def crowd(*, proof: bool) -> SimWorld:
    """Two workers, a pool with one slot, bodies of 30 s: longer than a lease."""
    made = world(took=30 * SECOND, rules={("pool", "db"): {"limit": 1}}, workers=0)
    for name in ("w1", "w2"):
        made.add_worker(name, {"async": 1}, proof=proof)
    made.submit(graph(items("db", pools=needs(db=1))), consts=numbers(3))
    return made


def holder(made: SimWorld) -> str:
    return next(body.worker for body in made.bodies if not body.end)


def test_a_stalled_worker_keeps_its_slots_and_is_charged_nothing():
    made = crowd(proof=True)
    made.plan(SECOND, lambda: made.stall_worker(holder(made), 25 * SECOND))
    settle(made)
    assert made.peak(slots("db")) == 1
    told = [event.after for event in made.model.events if event.subject == "worker"]
    assert (told.count("stalled"), told.count("resumed"), told.count("lost")) == (1, 1, 0)
    assert {row.abandons for row in made.model.tasks.values()} == {0}


def test_without_proof_the_lease_decides():
    made = crowd(proof=False)
    made.plan(SECOND, lambda: made.stall_worker(holder(made), 25 * SECOND))
    made.run(until=made.steady + 60 * SECOND)
    assert "lost" in {event.after for event in made.model.events if event.subject == "worker"}
    assert made.peak(slots("db")) == 2  # what the proof is for


def test_a_stalled_worker_gets_no_offers():
    made = world(took=10 * MILLISECOND, workers=0)
    made.add_worker("w1", {"async": 5}, proof=True)
    made.add_worker("w2", {"async": 5}, proof=True)
    made.stall_worker("w1", 60 * SECOND)
    for at in range(12, 40, 2):
        made.plan(at * SECOND, lambda: made.submit(graph(step("late"))))
    settle(made)
    assert {body.worker for body in made.bodies} == {"w2"}
    assert not any(row.offers > 1 for row in made.model.tasks.values())


def test_an_offer_to_a_stalled_worker_is_a_violation():
    made = world(took=10 * MILLISECOND, workers=1)
    made.submit(graph(step("one")))
    settle(made)
    offer = next(event for event in made.model.events if event.after == "scheduled")
    stalls = msgspec.structs.replace(
        offer,
        subject="worker",
        task=0,
        before="",
        after="stalled",
        run=0,
        data={"worker": offer.data["worker"]},
    )
    made.model.events.insert(made.model.events.index(offer), stalls)
    assert "which is stalled" in str(violations(made)[0])


@pytest.mark.parametrize("by", [30 * SECOND, -30 * SECOND])
@pytest.mark.parametrize("proof", [True, False])
def test_a_set_clock_loses_no_worker_under_any_leader(by: int, proof: bool):
    made = crowd(proof=proof)
    made.plan(3 * SECOND, lambda: made.jump_clock(by))
    made.plan(3 * SECOND, made.kill_leader)
    made.plan(4 * SECOND, made.lead)
    settle(made)
    assert made.peak(slots("db")) == 1
    assert "lost" not in {event.after for event in made.model.events if event.subject == "worker"}
    assert {row.abandons for row in made.model.tasks.values()} == {0}


@pytest.mark.parametrize("by", [30 * SECOND, -30 * SECOND])
def test_a_dead_worker_is_found_in_one_lease_by_any_clock(by: int):
    made = crowd(proof=False)
    made.plan(3 * SECOND, lambda: made.kill_worker(holder(made)))
    made.plan(4 * SECOND, lambda: made.jump_clock(by))
    killed = made.steady + 3 * SECOND
    settle(made)
    again = sorted(body.start for body in made.bodies)[1]
    assert killed + LEASE - 2 * SECOND <= again <= killed + LEASE + 3 * SECOND
    assert made.peak(slots("db")) == 1
