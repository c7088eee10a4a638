"""The verbs of runs submitted by name: what workers announce of their flows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from locktender.base.announced import AnnouncedFlow
from locktender.store.decode import announced_flows, encode
from locktender.store.sqlite.session import SqliteSession, listed

T = TypeVar("T")


class SqliteNaming:
    """The part of a store that knows flows by name."""

    async def announce(self, flows: Sequence[AnnouncedFlow]) -> None:
        await self._write(lambda tx: _announce(tx, flows))

    async def flows(self, names: Sequence[str] | None = None) -> list[AnnouncedFlow]:
        return await self._look(lambda tx: _flows(tx, names))

    async def forget_flow(self, name: str) -> bool:
        return await self._write(lambda tx: bool(tx.run("flow_forget", name)))

    async def _write(self, verb: Callable[[SqliteSession], T]) -> T:
        raise NotImplementedError

    async def _look(self, verb: Callable[[SqliteSession], T]) -> T:
        raise NotImplementedError


def _announce(tx: SqliteSession, flows: Sequence[AnnouncedFlow]) -> None:
    now = tx.now()
    if flows:
        tx.each("flow_announce", [(flow.name, now, encode(flow)) for flow in flows])


def _flows(tx: SqliteSession, names: Sequence[str] | None) -> list[AnnouncedFlow]:
    rows = tx.all("flow_list") if names is None else tx.all("flow_get", listed(names))
    return announced_flows(rows)
