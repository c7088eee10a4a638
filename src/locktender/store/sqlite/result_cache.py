"""Cached results: the leader looks them up, stores and clears them; anyone may list them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.changes import CachedResult
from locktender.base.commits import Commit
from locktender.store.decode import cached_results
from locktender.store.sqlite.session import SqliteSession, listed

T = TypeVar("T")


class SqliteResultCache:
    """A part of `SqliteStore`."""

    def _read(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    def _query(self, verb: Callable[[SqliteSession], T]) -> Awaitable[T]:
        raise NotImplementedError

    async def find_cached(self, keys: Sequence[str]) -> list[CachedResult]:
        rows = await self._read(lambda tx: tx.all("cached_find", listed(keys)))
        return cached_results(rows)

    async def cached_results(
        self, step: str | None = None, flow: str | None = None, limit: int = 1_000
    ) -> list[CachedResult]:
        rows = await self._query(lambda tx: tx.all("cached_list", step, flow, tx.now(), limit))
        return cached_results(rows)

    async def cached_result(self, key: str) -> list[CachedResult]:
        rows = await self._query(lambda tx: tx.all("cached_get", key, tx.now()))
        return cached_results(rows)


def write_cache(tx: SqliteSession, commit: Commit) -> None:
    """Of a leader's commit."""
    for step, flow in commit.cache_cleared:
        tx.run("cached_clear", step, flow)
    if commit.cache_stored:
        tx.each("cached_add", commit.cache_stored)
