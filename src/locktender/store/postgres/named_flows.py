"""The verbs of runs submitted by name: what workers announce of their flows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from locktender.base.announced import AnnouncedFlow
from locktender.store.decode import announced_flows, encode
from locktender.store.postgres.composed_sql import columns
from locktender.store.postgres.session import PostgresSession

T = TypeVar("T")


class PostgresNaming:
    """The part of a store that knows flows by name."""

    async def announce(self, flows: Sequence[AnnouncedFlow]) -> None:
        await self._write(lambda tx: _announce(tx, flows))

    async def flows(self, names: Sequence[str] | None = None) -> list[AnnouncedFlow]:
        return await self._look(lambda tx: _flows(tx, names))

    async def forget_flow(self, name: str) -> bool:
        return await self._write(lambda tx: _forget(tx, name))

    async def _write(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def _look(self, verb: Callable[[PostgresSession], Awaitable[T]]) -> T:
        raise NotImplementedError


async def _announce(tx: PostgresSession, flows: Sequence[AnnouncedFlow]) -> None:
    if flows:
        rows = sorted((flow.name, encode(flow)) for flow in flows)
        await tx.run("flow_announce", *columns(rows, 2))


async def _flows(tx: PostgresSession, names: Sequence[str] | None) -> list[AnnouncedFlow]:
    rows = await (tx.all("flow_list") if names is None else tx.all("flow_get", list(names)))
    return announced_flows(rows)


async def _forget(tx: PostgresSession, name: str) -> bool:
    return bool(await tx.all("flow_forget", name))
