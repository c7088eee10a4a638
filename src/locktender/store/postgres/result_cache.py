"""Cached results: the leader looks them up, stores and clears them; anyone may list them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from locktender.base.changes import CachedResult
from locktender.store.decode import cached_results
from locktender.store.postgres.composed_sql import columns
from locktender.store.postgres.session import PostgresSession, Row

if TYPE_CHECKING:
    from locktender.base.commits import Commit

T = TypeVar("T")


class PostgresResultCache:
    """A part of `PostgresStore`."""

    def _read(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> Awaitable[T]:
        raise NotImplementedError

    async def find_cached(self, keys: Sequence[str]) -> list[CachedResult]:
        rows = await self._read(lambda tx: tx.all("cached_find", list(keys)))
        return cached_results(rows)

    async def cached_results(
        self, step: str | None = None, flow: str | None = None, limit: int = 1_000
    ) -> list[CachedResult]:
        async def verb(tx: PostgresSession) -> list[Row]:
            [now] = await tx.row("now")
            return await tx.all("cached_list", step, flow, now, limit)

        return cached_results(await self._query(verb))

    async def cached_result(self, key: str) -> list[CachedResult]:
        async def verb(tx: PostgresSession) -> list[Row]:
            [now] = await tx.row("now")
            return await tx.all("cached_get", key, now)

        return cached_results(await self._query(verb))


def cache_parts(commit: Commit) -> list[tuple[str, list[Any]]]:
    """Of a leader's commit. Results are never cleared and stored in one commit."""
    found: list[tuple[str, list[Any]]] = []
    if commit.cache_cleared:
        found.append(("cached_clear", columns(commit.cache_cleared, 2)))
    if commit.cache_stored:
        found.append(("cached_add", columns(sorted(commit.cache_stored), 9)))
    return found
