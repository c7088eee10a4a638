"""Lanes of the queue: which runs wait in the same lane, and in which order."""

from __future__ import annotations

import pytest

from locktender.base.limits import Fair, Limits, TagRule
from locktender.kernel.lanes import rank, signature

PER_TENANT = TagRule("tenant", per_value=True, limit=1)
ACME = TagRule("tenant", "acme", limit=3)
ANY_TENANT = TagRule("tenant", limit=9)


@pytest.mark.parametrize(
    ("rules", "tags", "counters"),
    [
        ((), {"tenant": "acme"}, set()),
        ((PER_TENANT,), {}, set()),
        ((PER_TENANT,), {"tenant": "acme"}, {"tenant=*acme"}),
        ((PER_TENANT,), {"tenant": "globex"}, {"tenant=*globex"}),
        ((ACME,), {"tenant": "globex"}, set()),
        ((ACME,), {"tenant": "acme", "team": "x"}, {"tenant=acme"}),
        (
            (PER_TENANT, ACME, ANY_TENANT),
            {"tenant": "acme"},
            {"tenant", "tenant=acme", "tenant=*acme"},
        ),
    ],
)
def test_e2_a_signature_names_every_rule_that_concerns_the_run(
    rules: tuple[TagRule, ...], tags: dict[str, str], counters: set[str]
):
    text = signature(Limits(tags=rules), tags)
    assert set(text.split("\x1f")) - {""} == {f"t:{counter}" for counter in counters}


def test_a_tag_named_like_a_fair_value_has_its_own_lane():
    limits = Limits(tags=(TagRule("f:acme", limit=1),), fair=Fair("tenant"))
    assert signature(limits, {"tenant": "acme"}) != signature(limits, {"f:acme": "x"})
    assert signature(Limits(), {}, "a") != signature(
        Limits(tags=(TagRule("k:a", limit=1),)), {"k:a": "x"}
    )


def test_the_order_of_rules_and_tags_does_not_matter():
    tags = {"tenant": "acme", "team": "x"}
    team = TagRule("team", limit=1)
    assert signature(Limits(tags=(ACME, team)), tags) == signature(
        Limits(tags=(team, ACME)), dict(reversed(tags.items()))
    )


def test_a_fair_key_parts_its_values_and_untagged_runs():
    limits = Limits(fair=Fair("tenant"))
    lanes = {signature(limits, tags) for tags in ({"tenant": "a"}, {"tenant": "b"}, {})}
    assert len(lanes) == 3


def test_a_run_that_waits_for_another_stands_alone():
    assert signature(Limits(), {}, "build-42") != signature(Limits(), {})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((5, 200), (0, 100)),  # priority before age
        ((0, 100), (0, 200)),  # then age
        ((0, 100), (-5, 1)),
    ],
)
def test_priority_then_age(first: tuple[int, int], second: tuple[int, int]):
    assert rank(Limits(), *first) < rank(Limits(), *second)


def test_age_boost_lets_age_buy_priority():
    limits = Limits(age_boost_us=100)
    assert rank(limits, 1, 1_000) < rank(limits, 0, 901)
    assert rank(limits, 1, 1_000) == rank(limits, 0, 900)
    assert rank(limits, 1, 1_000) > rank(limits, 0, 899)
