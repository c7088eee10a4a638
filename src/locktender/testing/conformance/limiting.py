# ruff: noqa: S101
"""Limits: declared and live apart, composed into one value, with a history."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from locktender.base.errors import InvalidInput, LimitChanged
from locktender.base.limits import Fair, Limits, PoolRule, Rate, TagRule
from locktender.base.model import LimitRow
from locktender.store.protocol import SetLimit, Store
from locktender.testing.conformance.world import (
    SceneLeader,
    StoreScene,
    new_run,
    set_rule,
    set_tag,
    submit,
    submitted,
)


async def balanced(store: Store) -> dict[str, int]:
    """Active runs by counter; the counters must equal the rows."""
    counts = await store.counts()
    by_counter = {name: counts.admitted[name] - counts.closed[name] for name in counts.admitted}
    assert {name: n for name, n in by_counter.items() if n} == {
        name: n for name, n in counts.active.items() if n
    }
    return by_counter


class TestLimiting:
    async def test_without_rules_the_defaults_hold(self, world: StoreScene) -> None:
        store = await world.open()
        assert await store.limits() == (Limits(), [])

    async def test_a_change_of_an_older_version_is_refused(self, world: StoreScene) -> None:
        store = await world.open()

        async def stored() -> str:
            return {(row.kind, row.name): row for row in (await store.limits())[1]}[
                "pool", "db"
            ].version

        with pytest.raises(LimitChanged):
            await set_rule(store, "pool", "db", PoolRule(1), version="*")
        await set_rule(store, "pool", "db", PoolRule(1))
        first = await stored()
        await set_rule(store, "pool", "db", PoolRule(2), version=first)
        with pytest.raises(LimitChanged, match="pool db was changed"):
            await set_rule(store, "pool", "db", PoolRule(3), version=first)
        assert (await store.limits())[0].pools == {"db": PoolRule(2)}
        races = [
            set_rule(store, "pool", "db", PoolRule(n), version=await stored()) for n in (5, 6, 7)
        ]
        done = await asyncio.gather(*races, return_exceptions=True)
        assert sorted(type(each).__name__ for each in done) == [
            "LimitChanged", "LimitChanged", "NoneType",
        ]  # fmt: skip
        await set_rule(store, "pool", "db", PoolRule(9), version="*")

    async def test_rules_of_every_kind(self, world: StoreScene) -> None:
        store = await world.open()
        rate = Rate(100, 60_000_000, 5)
        await set_rule(store, "runs", "", {"limit": 3, "paused": True})
        await set_rule(store, "active", "", {"limit": 20})
        await set_tag(store, TagRule("team", per_value=True, limit=2))
        await set_rule(store, "pool", "db", PoolRule(4))
        await set_rule(store, "pool", "api[*]", PoolRule(2, lease_us=5, rate=rate, paused=True))
        await set_rule(store, "fair", "tenant", Fair("tenant", {"acme": 3}))
        await set_rule(store, "engine", "age_boost_us", {"value": 60_000_000})
        await set_rule(store, "engine", "placement", {"value": "pack"})
        await set_rule(store, "engine", "strict_pools", {"value": True})
        limits, rows = await store.limits()
        assert limits == Limits(
            max_concurrent_runs=3,
            runs_paused=True,
            max_active=20,
            tags=(TagRule("team", per_value=True, limit=2),),
            pools={
                "db": PoolRule(4),
                "api[*]": PoolRule(2, lease_us=5, rate=rate, paused=True),
            },
            fair=Fair("tenant", {"acme": 3}),
            age_boost_us=60_000_000,
            placement="pack",
            strict_pools=True,
        )
        assert len(rows) == 9
        assert (await store.load()).limits == limits

    async def test_live_stands_above_declared_and_survives_it(self, world: StoreScene) -> None:
        store = await world.open()
        await set_rule(store, "pool", "db", {"limit": 4}, declared=True, who="code")
        await set_rule(store, "pool", "db", {"limit": 9})
        await set_rule(store, "pool", "db", {"limit": 5}, declared=True, who="code")
        limits, [row] = await store.limits()
        assert limits.pools["db"].limit == 9
        assert row == LimitRow("pool", "db", b'{"limit":5}', b'{"limit":9}')
        await set_rule(store, "pool", "db", None)
        assert (await store.limits())[0].pools["db"].limit == 5
        await set_rule(store, "pool", "db", None, declared=True)
        assert await store.limits() == (Limits(), [])

    async def test_history_says_who_changed_what(self, world: StoreScene) -> None:
        store = await world.open()
        await set_rule(store, "pool", "db", {"limit": 4}, declared=True, who="code")
        world.clock.advance(5)
        await set_rule(store, "pool", "db", {"limit": 9}, who="ann", reason="sale")
        # Declaring the same again, or setting the same again, is no change.
        await set_rule(store, "pool", "db", {"limit": 4}, declared=True, who="code")
        await set_rule(store, "pool", "db", {"limit": 9}, who="bob")
        await set_rule(store, "pool", "db", None, who="bob")
        reset, raised, declared = await store.limit_history(10)
        assert (declared.who, declared.before, declared.after) == ("code", None, b'{"limit":4}')
        assert (raised.who, raised.reason, raised.at) == ("ann", "sale", world.clock.now())
        assert (raised.before, raised.after) == (b'{"limit":4}', b'{"limit":9}')
        assert (reset.who, reset.before, reset.after) == ("bob", b'{"limit":9}', b'{"limit":4}')
        assert await store.limit_history(1) == [reset]

    @pytest.mark.parametrize(
        ("kind", "name", "rule"),
        [
            ("pool", "db", b"{"),
            ("pool", "db", b'{"limit":0}'),
            ("pool", "db", b'{"limit":"many"}'),
            ("pool", "a[b", b'{"limit":1}'),
            ("pool", "db", b'{"limit":1,"lease_us":0}'),
            ("tag", "team", b'{"key":"other"}'),
            ("tag", "team=*", b'{"key":"team","value":"a","per_value":true}'),
            ("runs", "", b'{"limit":0}'),
            ("runs", "x", b'{"limit":1}'),
            ("active", "", b'{"limit":-2}'),
            ("fair", "tenant", b'{"key":"tenant","weights":{"a":0}}'),
            ("engine", "placement", b'{"value":"anywhere"}'),
            ("engine", "max_bypass", b'{"value":true}'),
            ("engine", "no_such_knob", b'{"value":1}'),
            ("nonsense", "", b"{}"),
        ],
    )
    async def test_a_rule_that_is_not_valid_stores_nothing(
        self, world: StoreScene, kind: str, name: str, rule: bytes
    ) -> None:
        store = await world.open()
        good = SetLimit("pool", "good", b'{"limit":1}', "ops")
        with pytest.raises(InvalidInput):
            await store.set_limit([good, SetLimit(kind, name, rule, "ops")])
        assert await store.limits() == (Limits(), [])
        assert await store.limit_history(10) == []

    async def test_patches_of_several_operators_all_count(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        await set_rule(store, "pool", "db", {"limit": 3})
        await asyncio.gather(
            store.set_limit([SetLimit("pool", "db", None, "ann", patch=b'{"paused":true}')]),
            other.set_limit([SetLimit("pool", "db", None, "bob", patch=b'{"limit":5}')]),
        )
        limits, _ = await store.limits()
        assert limits.pools["db"] == PoolRule(5, paused=True)
        assert len(await store.limit_history(10)) == 3
        # What it says already is no change.
        await store.set_limit([SetLimit("pool", "db", None, "cat", patch=b'{"limit":5}')])
        assert len(await store.limit_history(10)) == 3

    async def test_a_patch_changes_the_rule_in_force_and_null_takes_away(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        rate = {"count": 5, "per_us": 1_000_000, "burst": 2}
        declared = {"limit": 3, "lease_us": 7, "rate": rate}
        await set_rule(store, "pool", "db", declared, declared=True, who="code")

        async def patch(text: bytes) -> PoolRule:
            await store.set_limit([SetLimit("pool", "db", None, "ann", patch=text)])
            return (await store.limits())[0].pools["db"]

        assert await patch(b'{"limit":4}') == PoolRule(4, 7, Rate(5, 1_000_000, 2))
        assert await patch(b'{"rate":{"burst":9}}') == PoolRule(4, 7, Rate(5, 1_000_000, 9))
        assert await patch(b'{"rate":null,"lease_us":null}') == PoolRule(4)
        [row] = (await store.limits())[1]
        assert row.live == b'{"limit":4}'
        assert row.declared == msgspec.json.encode(declared)

    async def test_a_patch_of_a_rule_nobody_set_begins_with_what_it_brings(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await set_rule(store, "pool", "api[*]", {"limit": 2, "paused": True})
        base = b'{"limit":2}'
        for name, rule in (("api[a]", None), ("api[b]", base)):
            await store.set_limit([SetLimit("pool", name, rule, "ann", patch=b'{"lease_us":9}')])
        # Only where there is no rule of its own.
        await store.set_limit([SetLimit("pool", "api[a]", base, "ann", patch=b'{"lease_us":8}')])
        await store.set_limit([SetLimit("runs", "", None, "ann", patch=b'{"paused":true}')])
        limits, _ = await store.limits()
        assert limits.pools["api[a]"] == PoolRule(lease_us=8)
        assert limits.pools["api[b]"] == PoolRule(2, lease_us=9)
        assert (limits.max_concurrent_runs, limits.runs_paused) == (10, True)

    @pytest.mark.parametrize(
        ("kind", "name", "patch"),
        [
            ("pool", "db", b"{"),
            ("pool", "db", b"[]"),
            ("pool", "db", b"null"),
            ("pool", "db", b'{"limit":0}'),
            ("pool", "db", b'{"limits":5}'),
            ("pool", "db", b'{"rate":{"burst":3}}'),
            ("pool", "a[b", b'{"limit":1}'),
            ("tag", "team", b'{"limit":1}'),
            ("runs", "", b'{"limit":0}'),
            ("nonsense", "", b"{}"),
        ],
    )
    async def test_a_patch_that_is_not_valid_stores_nothing(
        self, world: StoreScene, kind: str, name: str, patch: bytes
    ) -> None:
        store = await world.open()
        good = SetLimit("pool", "good", None, "ops", patch=b'{"limit":1}')
        with pytest.raises(InvalidInput):
            await store.set_limit([good, SetLimit(kind, name, None, "ops", patch=patch)])
        assert await store.limits() == (Limits(), [])
        assert await store.limit_history(10) == []

    async def test_counters_of_a_rule_set_later_start_from_the_rows(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        leader = await SceneLeader.stand(store)
        teams = [{"team": "a"}, {"team": "a"}, {"team": "b"}, {}]
        runs = await submit(store, *(new_run(tags=tags) for tags in teams))
        await submitted(store, kind="hold", tags={"team": "a"})
        await leader.start(runs[0].seq)
        await set_tag(store, TagRule("team", per_value=True, max_active=2))
        await set_tag(store, TagRule("team", max_active=4))
        assert await balanced(store) == {"": 4, "team": 3, "team=*a": 2, "team=*b": 1}
        assert (await submitted(store, tags={"team": "a"})).ceiling == "team=a"
        await leader.end(runs[0].seq)
        assert (await submitted(store, tags={"team": "a"})).outcome == "created"
        assert await balanced(store) == {"": 4, "team": 3, "team=*a": 2, "team=*b": 1}
        # When a rule goes, so do its counters.
        await set_rule(store, "tag", "team=*", None)
        assert await balanced(store) == {"": 4, "team": 3}

    async def test_a_lowered_ceiling_holds_at_once(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        await submit(store, *(new_run() for _ in range(3)))
        await set_rule(other, "active", "", {"limit": 3})
        assert (await submitted(store)).outcome == "rejected"
        await set_rule(other, "active", "", {"limit": -1})
        assert (await submitted(store)).outcome == "created"
