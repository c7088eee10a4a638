"""Messages of the client: rates, durations, unknown limits and pools, keys that are taken."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.cli_harness import FLOWS, locktender

from locktender import InvalidInput, NotFound, flow, step
from locktender.base import names
from locktender.base.limits import parse_rate
from locktender.client.client import Client
from locktender.testing import VirtualClock

pytest_plugins = ["locktender.testing.plugin"]
SECOND = 1_000_000

ALL_TRANSPORTS = True


@step
def twice(x: int) -> int:
    return 2 * x


@flow
def doubled(x: int) -> int:
    return twice(x)


def test_a_list_of_known_words_says_how_many_more_there_are():
    known = [f"word{n:02d}" for n in range(13)]
    hint = names.did_you_mean("zzz", known)
    assert hint is not None
    assert hint.endswith("word09 and 3 more.")
    assert str(names.did_you_mean("zzz", known[:11])).endswith("word09, word10.")


@pytest.mark.parametrize(
    ("written", "count", "seconds"),
    [("60/min", 60, 60), ("20/s", 20, 1), ("5/h", 5, 3600), ("1/second", 1, 1), ("9/10s", 9, 10)],
)
def test_a_rate_takes_the_usual_words_for_time(written: str, count: int, seconds: int):
    rate = parse_rate(written)
    assert (rate.count, rate.per_us) == (count, seconds * SECOND)


def test_an_invalid_rate_is_refused_as_it_was_written(engine: Client):
    with pytest.raises(
        InvalidInput, match="invalid rate '60/fortnight': 'fortnight' is not a duration"
    ):
        engine.pools.set("api", rate="60/fortnight")
    with pytest.raises(InvalidInput, match="invalid rate 'fast'"):
        engine.pools.set("api", rate="fast")


def test_a_clock_advances_by_a_duration_too():
    clock = VirtualClock()
    start = clock.now()
    clock.advance("2h")
    clock.advance(timedelta(seconds=1))
    clock.advance(5)
    assert clock.now() - start == 7201 * SECOND + 5
    with pytest.raises(InvalidInput, match=r"whole microseconds. Got 1.5. For seconds use move"):
        clock.advance(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_runs", "Did you mean 'max_concurrent_runs'"),
        ("max_activ", "Did you mean 'max_active'"),
        ("colour", "set_tag('colour', limit=N)"),
    ],
)
def test_an_unknown_limit_is_refused(engine: Client, name: str, hint: str):
    before = engine.limits.list()
    with pytest.raises(NotFound, match="there is no limit") as caught:
        engine.limits.set(name, 3)
    assert hint in str(caught.value)
    assert engine.limits.list() == before


def test_a_pool_that_nobody_knows_is_not_paused(engine: Client):
    engine.pools.set("database", limit=2)
    with pytest.raises(NotFound, match=r"no pool 'databse'. Did you mean 'database'"):
        engine.pools.pause("databse")
    assert [pool.name for pool in engine.pools.list()] == ["database"]


def test_a_submission_says_created_attached_or_skipped(engine: Client):
    engine.limits.pause()
    first = engine.submit(doubled, 1, key="k")
    again = engine.submit(doubled, 1, key="k")
    assert (first.submitted, again.submitted, again.id) == ("created", "attached", first.id)
    engine.limits.resume()
    first.result("30s")
    skipped = engine.submit(doubled, 1, key="k", on_duplicate="skip_if_finished")
    assert (skipped.submitted, skipped.id) == ("skipped", first.id)
    assert engine.runs.get(first.id).submitted is None


def test_the_command_line_says_that_it_attached(tmp_path: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    first = locktender("submit", "flows.py:build", "--key", "k", "--json", cwd=tmp_path)
    assert first.data["submitted"] == "created"
    again = locktender("submit", "flows.py:build", "--key", "k", cwd=tmp_path)
    assert again.out.startswith(f"attached to {first.data['id']}")
    told = locktender("submit", "flows.py:build", "--key", "k", "--json", cwd=tmp_path)
    assert (told.data["submitted"], told.data["id"]) == ("attached", first.data["id"])
