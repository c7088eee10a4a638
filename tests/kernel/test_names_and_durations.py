"""Names, tags, limits, durations and rates: what every entrance accepts and refuses."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base import names
from locktender.base.durations import MAX_MICROSECONDS, microseconds, spoken
from locktender.base.errors import InvalidInput
from locktender.base.limits import (
    Limits,
    PoolRule,
    Rate,
    TagRule,
    fair_rule,
    parse_rate,
    pool_name,
    pool_rule,
    tag_rule,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 500_000),
        ("90s", 90_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        ("1w", 604_800_000_000),
        ("7us", 7),
        ("1.5s", 1_500_000),
        (1.5, 1_500_000),
        (3, 3_000_000),
        (timedelta(minutes=1), 60_000_000),
    ],
)
def test_durations(written: object, expected: int):
    assert microseconds(written) == expected


@pytest.mark.parametrize(
    "written",
    ["", "soon", "5", "5 parsecs", "-5s", "1e5s", "5s!", -1, 0, True, None, [], float("nan"),
     float("inf"), float("-inf"), 1e308, 10**400, "9" * 400 + "s", "200000d"],
)  # fmt: skip
def test_what_is_no_duration(written: object):
    with pytest.raises(InvalidInput) as caught:
        microseconds(written, "grace")

    assert caught.value.field == "grace"


def test_zero_only_where_it_is_allowed():
    assert microseconds(0, minimum=0) == 0
    with pytest.raises(InvalidInput, match="zero or more"):
        microseconds(-1, minimum=0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (40_000, "40ms"),
        (999_499, "999ms"),
        (999_600, "1s"),
        (59_980_000, "1m00s"),
        (1_500_000, "1.5s"),
        (125_000_000, "2m05s"),
        (14_400_000_000, "4h00m"),
        (90_000_000_000, "1d01h"),
        (-1_000_000, "-1s"),
    ],
)
def test_spoken(value: int, words: str):
    assert spoken(value) == words


@given(st.integers(min_value=1, max_value=MAX_MICROSECONDS // 1_000_000))
def test_seconds_as_number_and_as_text_agree(seconds: int):
    assert microseconds(seconds) == microseconds(f"{seconds}s") == seconds * 1_000_000


@pytest.mark.parametrize(
    "bad",
    ["", " padded", "padded ", "a\nb", "a\0b", "\x1b[31m", "\x7f", "\x9b", "\ud800", "a/b", "a\\b",
     "..", ".", "x" * 201, None, 5, b"bytes", " ", "\u00a0", "a\u202eb", "a\u2028b", "a\u2029b",
     "a\u200bb", "\ufeffa", "a\u2066b", "a\u00adb", "a\ue000b", "a\uffffb", "a\U000e0001b"],
)  # fmt: skip
def test_bad_names(bad: object):
    with pytest.raises(InvalidInput) as caught:
        names.name(bad, "pool")
    assert caught.value.hint


@pytest.mark.parametrize("bad", ["", " ", "a ", "a\0b", "a\u202eb", "x" * 201, 7])
def test_bad_texts(bad: object):
    with pytest.raises(InvalidInput) as caught:
        names.text(bad, "key")
    assert caught.value.hint


def test_a_text_may_look_like_a_path():
    assert names.text("s3://bucket/day=1", "key") == "s3://bucket/day=1"


@pytest.mark.parametrize("good", ["db", "Käse", "ncbi.api", "a b", "…", "x" * 200, "🚰"])
def test_good_names(good: str):
    assert names.name(good, "pool") == good


def test_tags_are_text_to_text():
    assert names.tags({"a": "x", "n": 3, "b": True}) == {"a": "x", "n": "3", "b": "true"}
    assert names.tags(None) == {}
    assert len(names.tags({f"k{n}": n for n in range(64)})) == 64


@pytest.mark.parametrize(
    "bad",
    [{f"k{n}": n for n in range(65)}, {"a=b": "c"}, {"a*": "c"}, {"a": "*"}, {"a": "*x"}, {"a": ""},
     {"a": None}, {"a": "\ud800"}, {"\0": "x"}, {1: "x"}, ["a"], "a=b"],
)  # fmt: skip
def test_bad_tags(bad: object):
    with pytest.raises(InvalidInput) as caught:
        names.tags(bad)
    assert caught.value.hint


@pytest.mark.parametrize("bad", [0, -2, "three", True, 1.5, None, 2**53 + 1, 2**70])
def test_bad_limits(bad: object):
    with pytest.raises(InvalidInput) as caught:
        names.limit(bad, "limit")
    assert caught.value.hint
    with pytest.raises(InvalidInput):
        pool_rule(limit_=bad)
    with pytest.raises(InvalidInput):
        tag_rule("tenant", limit_=bad)


def test_a_limit_beyond_all_numbers_says_how_far_they_go():
    with pytest.raises(InvalidInput, match="9,007,199,254,740,992 or less") as caught:
        names.limit(2**70, "limit")
    assert "-1 for unlimited" in str(caught.value)


def test_zero_points_to_pause():
    with pytest.raises(InvalidInput, match="pause"):
        names.limit(0, "max_concurrent_runs")


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "2", None, 2**53 + 1, 10**30])
def test_bad_slots(bad: object):
    with pytest.raises(InvalidInput) as caught:
        names.count(bad, "slots")
    assert caught.value.hint


def test_priorities_are_bounded():
    assert names.priority(-1_000_000) == -1_000_000
    for bad in (1_000_001, -1_000_001, "high", True, 0.5):
        with pytest.raises(InvalidInput) as caught:
            names.priority(bad)
        assert "-1,000,000" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("100/1m", Rate(100, 60_000_000)),
        ("100/m", Rate(100, 60_000_000)),
        (" 5 / 10s ", Rate(5, 10_000_000)),
        (Rate(1, 2), Rate(1, 2)),
    ],
)
def test_rates(written: object, rate: Rate):
    assert parse_rate(written) == rate


@pytest.mark.parametrize(
    "bad", ["100", "/1m", "0/1m", "-1/m", "1/0s", "1/never", 100, None, "9" * 5000 + "/s"]
)
def test_bad_rates(bad: object):
    with pytest.raises(InvalidInput):
        parse_rate(bad)


def test_burst_needs_a_rate():
    assert pool_rule(rate="10/s", burst=3).rate == Rate(10, 1_000_000, 3)
    with pytest.raises(InvalidInput, match="burst needs a rate"):
        pool_rule(burst=3)
    with pytest.raises(InvalidInput):
        pool_rule(rate="10/s", burst=0)


@pytest.mark.parametrize("bad", ["", "a/b", "a[", "a]", "a[]", "a[b][c]", "a{b}", "\0", None])
def test_bad_pool_names(bad: object):
    with pytest.raises(InvalidInput):
        pool_name(bad)


def test_conflicting_tag_rules():
    with pytest.raises(InvalidInput, match="cannot also be per_value"):
        tag_rule("tenant", "acme", per_value=True)


def test_tag_rules_count_only_what_concerns_them():
    tags = {"tenant": "acme", "team": "x"}

    assert TagRule("tenant").counter(tags) == "tenant"
    assert TagRule("tenant", "acme").counter(tags) == "tenant=acme"
    assert TagRule("tenant", "other").counter(tags) is None
    assert TagRule("tenant", per_value=True).counter(tags) == "tenant=*acme"
    assert TagRule("region").counter(tags) is None


def test_no_two_tag_rules_share_a_counter():
    # A value with a star could meet the counter of a rule per value; it is refused.
    with pytest.raises(InvalidInput):
        tag_rule("tenant", "*acme")


def test_a_keyed_pool_falls_back_to_its_star():
    limits = Limits(pools={"api[*]": PoolRule(limit=2), "api[acme]": PoolRule(limit=9)})

    assert limits.pool("api[acme]") == PoolRule(limit=9)
    assert limits.pool("api[other]") == PoolRule(limit=2)
    assert limits.pool("api") is None


def test_fair_weights():
    assert fair_rule("tenant", {"acme": 3}).weight("acme") == 3
    assert fair_rule("tenant").weight("anyone") == 1
    for bad in (0, -1, 1_000_001, "2", True):
        with pytest.raises(InvalidInput) as caught:
            fair_rule("tenant", {"acme": bad})
        assert caught.value.hint
    for no_mapping in (["a"], "a", 7):
        with pytest.raises(InvalidInput, match="weights must be a mapping") as caught:
            fair_rule("tenant", no_mapping)
        assert caught.value.hint


def test_did_you_mean():
    assert names.did_you_mean("heartbeet", ["heartbeat", "poll"]) == "Did you mean 'heartbeat'?"
    assert names.did_you_mean("zzz", ["b", "a"]) == "Known: a, b."
    assert names.did_you_mean("zzz", []) is None
