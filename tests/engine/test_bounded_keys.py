"""`keep` and `max_queued`: runs of a key wait for each other, and only so many of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.steps import word_steps as flows

from locktender import Client, InvalidInput, RunCancelled, RunState
from locktender.testing import eventually

ALL_TRANSPORTS = "long"


@pytest.fixture(autouse=True)
def _gate() -> Iterator[None]:
    flows.GATE.clear()
    yield
    flows.GATE.set()


def test_the_newest_waits_and_the_one_before_it_is_dropped(engine: Client):
    runs = [engine.submit(flows.two_steps, 1, key="k", keep="newest")]
    eventually(lambda: runs[0].status() is RunState.RUNNING)
    runs += [engine.submit(flows.two_steps, n, key="k", keep="newest") for n in (2, 3, 4)]
    for dropped, later in ((runs[1], runs[2]), (runs[2], runs[3])):
        with pytest.raises(RunCancelled, match=f"dropped: .* and {later.id} came after it"):
            dropped.result("60s")
    assert f"run {runs[0].id}, which goes before it" in str(runs[3].why())
    flows.GATE.set()
    assert [runs[0].result("60s"), runs[3].result("60s")] == [2, 5]


def test_the_oldest_wait_and_others_are_skipped(engine: Client):
    runs = [engine.submit(flows.two_steps, 1, key="k", keep="oldest", max_queued=2)]
    eventually(lambda: runs[0].status() is RunState.RUNNING)
    runs += [
        engine.submit(flows.two_steps, n, key="k", keep="oldest", max_queued=2) for n in (2, 3, 4)
    ]
    assert [run.submitted for run in runs] == ["created", "created", "created", "skipped"]
    assert runs[3].id == runs[2].id
    flows.GATE.set()
    assert [run.result("60s") for run in runs[:3]] == [2, 3, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": "newest"}, "needs a key"),
        ({"keep": "latest", "key": "k"}, "must be one of newest, oldest"),
        ({"max_queued": 2, "key": "k"}, "max_queued needs keep"),
        ({"max_queued": 0, "keep": "newest", "key": "k"}, "max_queued"),
        ({"keep": "newest", "key": "k", "on_duplicate": "replace"}, "contradict"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    engine: Client, options: dict[str, object], words: str
):
    with pytest.raises(InvalidInput, match=words):
        engine.submit(flows.two_steps, 1, **options)  # type: ignore[arg-type]


def test_of_a_burst_the_last_one_runs(engine: Client):
    # The first ones wait for longer than the test may last: only the last can run.
    burst = [engine.submit(flows.beside, n, key="k", debounce="10m") for n in range(3)]
    last = engine.submit(flows.beside, 9, key="k", debounce="1ms")
    assert last.result("60s") == 10
    later = (*burst[1:], last)
    for dropped, after in zip(burst, later, strict=True):
        with pytest.raises(RunCancelled, match=f"dropped: .* and {after.id} came after it"):
            dropped.result("60s")
    waiting = engine.submit(flows.beside, 1, key="k", debounce="10m")
    assert waiting.status() is RunState.WAITING
    waiting.cancel()
    assert waiting.wait("60s") is RunState.CANCELLED


def test_a_debounced_run_starts_after_the_one_that_runs(engine: Client):
    first = engine.submit(flows.two_steps, 1, key="k")
    eventually(lambda: first.status() is RunState.RUNNING)
    second = engine.submit(flows.two_steps, 2, key="k", debounce="1ms")
    eventually(lambda: second.status() is RunState.QUEUED)
    assert f"run {first.id}, which goes before it" in str(second.why())
    flows.GATE.set()
    assert [first.result("60s"), second.result("60s")] == [2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"debounce": "5s"}, "debounce needs a key"),
        ({"debounce": "5s", "key": "k", "keep": "newest"}, "debounce and keep"),
        ({"debounce": "5s", "key": "k", "on_duplicate": "reject"}, "debounce and on_duplicate"),
        ({"debounce": "5s", "key": "k", "delay": "1s"}, "debounce and delay"),
        ({"debounce": "-5s", "key": "k"}, "debounce"),
        ({"debounce": "5s", "key": "k", "deadline": "1s"}, "would end the run before it starts"),
    ],
)
def test_debounce_that_makes_no_sense_is_refused(
    engine: Client, options: dict[str, object], words: str
):
    with pytest.raises(InvalidInput, match=words):
        engine.submit(flows.two_steps, 1, **options)  # type: ignore[arg-type]


def test_throttled_runs_wait_for_their_time_and_none_is_lost(engine: Client):
    runs = [engine.submit(flows.beside, n, key="k", throttle="2/1h") for n in range(4)]
    assert [run.result("60s") for run in runs[:2]] == [1, 2]
    assert {run.status() for run in runs[2:]} == {RunState.WAITING}
    why = str(runs[2].why())
    assert "throttled, of key k 2 start in 1h" in why
    assert "sleeps until" in why
    # Another key, and the flow itself, have lines of their own; runs of a key execute side by side.
    together = [engine.submit(flows.two_steps, n, key="o", throttle="2/h") for n in (1, 2)]
    eventually(lambda: {run.status() for run in together} == {RunState.RUNNING})
    flows.GATE.set()
    assert [run.result("60s") for run in together] == [2, 3]
    assert engine.submit(flows.beside, 5, throttle="2/h").result("60s") == 6
    for run in runs[2:]:
        run.cancel()
        assert run.wait("60s") is RunState.CANCELLED


def test_throttled_runs_start_when_their_time_has_come(engine: Client):
    runs = [engine.submit(flows.beside, n, throttle="1/50ms") for n in range(3)]
    assert [run.result("60s") for run in runs] == [1, 2, 3]
    queued = [
        event.at
        for run in runs
        for event in run.events()
        if (event.subject, event.after) == ("run", "queued")
    ]
    spans = [(b - a).total_seconds() for a, b in itertools.pairwise(queued)]
    assert sum(spans) >= 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"throttle": "often"}, "invalid rate"),
        ({"throttle": "2000/h"}, "at most 1,000"),
        ({"throttle": "2/h", "debounce": "5s"}, "debounce and throttle"),
        ({"throttle": "2/h", "key": "k", "keep": "newest"}, "throttle and keep"),
        ({"throttle": "2/h", "delay": "1s"}, "throttle and delay"),
    ],
)
def test_throttles_that_make_no_sense_are_refused(
    engine: Client, options: dict[str, object], words: str
):
    with pytest.raises(InvalidInput, match=words):
        engine.submit(flows.two_steps, 1, **options)  # type: ignore[arg-type]
