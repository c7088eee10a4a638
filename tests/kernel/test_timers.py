"""The heap of instants: offers that end together share one entry of it."""

from __future__ import annotations

from locktender.kernel.timers import Timers


def test_offers_of_one_instant_share_an_entry():
    timers = Timers()
    for task in range(500):
        timers.set_offer(100, task, task + 1_000)
    assert timers.next() == 100
    assert not list(timers.due(99))
    assert list(timers.due(100)) == [(100, "offer", task, task + 1_000) for task in range(500)]
    assert not len(timers)


def test_an_offer_after_its_instant_is_due_again():
    timers = Timers()
    timers.set_offer(100, 1, 11)
    assert list(timers.due(100)) == [(100, "offer", 1, 11)]
    timers.set_offer(100, 2, 12)
    assert list(timers.due(100)) == [(100, "offer", 2, 12)]


def test_offers_come_between_other_timers():
    timers = Timers()
    timers.set_offer(100, 1, 11)
    timers.set_offer(50, 2, 12)
    timers.set(75, "back_off", 3, 75)
    timers.set_offer(100, 4, 14)
    kinds = [(at, kind, task) for at, kind, task, _ in timers.due(200)]
    assert kinds == [(50, "offer", 2), (75, "back_off", 3), (100, "offer", 1), (100, "offer", 4)]


def test_offers_move_with_the_clock():
    """An offer that is made after the move ends at its own instant, also if that is the old one of others."""
    timers = Timers()
    timers.set_offer(100, 1, 11)
    timers.move(-40)
    timers.set_offer(100, 2, 12)
    assert list(timers.due(60)) == [(60, "offer", 1, 11)]
    assert not list(timers.due(99))
    assert list(timers.due(100)) == [(100, "offer", 2, 12)]


def test_offers_that_do_not_matter_are_dropped():
    timers = Timers()
    for task in range(1_000):
        timers.set_offer(100, task, task + 10)
    timers.keep(lambda kind, task: kind == "offer" and task == 7)
    assert len(timers) < 10
    assert list(timers.due(100)) == [(100, "offer", 7, 17)]
