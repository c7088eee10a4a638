# ruff: noqa: S101
"""Tokens of the HTTP API: added, found with their sessions, expired by the store's clock, revoked."""

from __future__ import annotations

import asyncio

from locktender.base.clock import SECOND
from locktender.base.tokens import TokenRights, hash_of
from locktender.store.protocol import FORGET_KEYS_US, FORGET_SESSIONS_US, AddToken
from locktender.testing.conformance.world import StoreScene

RIGHTS = TokenRights(("read", "submit"), {"tenant": "acme"}, "ann")


def _token(token: str, name: str, **more: object) -> AddToken:
    return AddToken(token, name, hash_of(token), RIGHTS, **more)  # pyright: ignore[reportArgumentType]


class TestTokens:
    async def test_a_token_is_found_by_its_id_in_every_process(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        assert await store.tokens() == []
        assert await store.add_token(_token("t1", "ci"))
        assert await other.add_token(_token("t1", "ci")), "its answer was lost: it is repeated"
        [found] = await other.tokens(["t1", "none"])
        assert (found.name, found.rights, found.state) == ("ci", RIGHTS, "valid")
        assert (found.hash, found.parent, found.used_at) == (hash_of("t1"), None, None)
        assert found.created_at == found.read_at == await store.now()
        assert await store.tokens() == [found]
        assert await store.tokens([]) == []

    async def test_a_name_belongs_to_one_token_until_it_is_revoked(self, world: StoreScene) -> None:
        store = await world.open()
        assert await store.add_token(_token("t1", "ci"))
        assert not await store.add_token(_token("t2", "ci"))
        assert await store.revoke_token("t1", "bob")
        assert not await store.revoke_token("t1", "bob")
        assert not await store.revoke_token("none", "bob")
        assert await store.add_token(_token("t2", "ci"))
        world.clock.advance(SECOND)
        assert sorted((each.id, each.state, each.revoked_by) for each in await store.tokens()) == [
            ("t1", "revoked", "bob"),
            ("t2", "valid", None),
        ]

    async def test_a_token_expires_by_the_stores_clock(self, world: StoreScene) -> None:
        store = await world.open()
        await store.add_token(_token("t1", "ci", expires_us=10 * SECOND))
        world.clock.advance(10 * SECOND - 1)
        assert [each.state for each in await store.tokens(["t1"])] == ["valid"]
        world.clock.advance(1)
        assert [each.state for each in await store.tokens(["t1"])] == ["expired"]
        await store.use_tokens(["t1", "none"])
        assert [each.used_at for each in await store.tokens()] == [await store.now()]

    async def test_a_session_is_found_with_its_token_and_forgotten_later(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await store.add_token(_token("t1", "ci"))
        for session in ("s1", "s2"):
            assert await store.add_token(_token(session, "ci", parent="t1", expires_us=SECOND)), (
                "sessions share the name"
            )
        assert {each.id for each in await store.tokens(["s1"])} == {"s1", "t1"}
        assert [each.id for each in await store.tokens()] == ["t1"]
        assert await store.revoke_token("s2", "bob")
        world.clock.advance(SECOND + FORGET_SESSIONS_US + 1)
        await store.add_token(_token("s3", "ci", parent="t1", expires_us=SECOND))
        assert {each.id for each in await store.tokens(["s1", "s2", "s3"])} == {"s3", "t1"}

    async def test_tokens_made_with_a_token_are_revoked_with_it(self, world: StoreScene) -> None:
        store = await world.open()
        for token, maker in (("t1", None), ("t2", "t1"), ("t3", "t2"), ("t4", "t3"), ("t5", None)):
            assert await store.add_token(_token(token, f"name of {token}", made_with=maker))
        assert await store.revoke_token("t3", "ann")
        assert await store.revoke_token("t1", "bob")
        found = {each.id: (each.state, each.revoked_by) for each in await store.tokens()}
        assert found == {
            "t1": ("revoked", "bob"),
            "t2": ("revoked", "bob"),
            "t3": ("revoked", "ann"),
            "t4": ("revoked", "ann"),
            "t5": ("valid", None),
        }
        assert not await store.add_token(_token("t6", "late", made_with="t2"))
        assert not await store.add_token(_token("t7", "of nothing", made_with="none"))
        assert [each.made_with for each in await store.tokens(["t3"])] == ["t2"]

    async def test_a_token_made_with_a_token_expires_with_it_at_the_latest(
        self, world: StoreScene
    ) -> None:
        store = await world.open()
        await store.add_token(_token("t1", "ci", expires_us=10 * SECOND))
        await store.add_token(_token("t2", "never", made_with="t1"))
        await store.add_token(_token("t3", "later", made_with="t1", expires_us=20 * SECOND))
        await store.add_token(_token("t4", "sooner", made_with="t1", expires_us=5 * SECOND))
        begun = await store.now()
        until = {each.id: each.expires_at for each in await store.tokens()}
        assert until == {
            "t1": begun + 10 * SECOND,
            "t2": begun + 10 * SECOND,
            "t3": begun + 10 * SECOND,
            "t4": begun + 5 * SECOND,
        }
        world.clock.advance(10 * SECOND)
        assert not await store.add_token(_token("t5", "too late", made_with="t1"))

    async def test_a_token_made_while_its_maker_is_revoked_has_no_rights(
        self, world: StoreScene
    ) -> None:
        store, *others = [await world.open() for _ in range(4)]
        await store.add_token(_token("t0", "first"))
        await store.add_token(_token("t1", "maker", made_with="t0"))
        made = [
            others[number % 3].add_token(_token(f"m{number}", f"made {number}", made_with="t1"))
            for number in range(30)
        ]
        answers = await asyncio.gather(*made[:15], store.revoke_token("t0", "bob"), *made[15:])
        assert answers[15]
        found = {each.state for each in await store.tokens()}
        assert found == {"revoked"}


class TestClaimedKeys:
    async def test_the_first_body_of_a_key_counts_in_every_process(self, world: StoreScene) -> None:
        store, other = await world.open(), await world.open()
        assert await store.claim_keys({"a": b"1", "b": b"2"}) == {"a": b"1", "b": b"2"}
        assert await other.claim_keys({"a": b"9", "c": b"3"}) == {"a": b"1", "c": b"3"}
        assert await store.claim_keys({"c": b"4"}) == {"c": b"3"}
        world.clock.advance(FORGET_KEYS_US + 1)
        assert await store.claim_keys({"a": b"9"}) == {"a": b"9"}

    async def test_of_many_at_the_same_instant_one_is_the_first(self, world: StoreScene) -> None:
        stores = [await world.open() for _ in range(4)]
        bodies = [bytes([number]) for number in range(20)]
        claims = (stores[number % 4].claim_keys({"k": body}) for number, body in enumerate(bodies))
        [counts] = {found["k"] for found in await asyncio.gather(*claims)}
        assert counts in bodies
