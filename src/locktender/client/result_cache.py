"""Namespace `client.cache`: results of steps that are kept for calls with the same arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from locktender.base import codec, names
from locktender.base.changes import CachedResult
from locktender.base.errors import InvalidInput, NotFound
from locktender.base.model import Request
from locktender.base.names import did_you_mean
from locktender.base.tracebacks import public
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.views import instant
from locktender.store import blob_values

MAX_LISTED = 100_000
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class CachedInfo:
    """A result that is kept."""

    key: str
    """A hash of the step and its arguments."""
    step: str
    flow: str
    """Of the run that made it."""
    scope: str
    """Who may take it: runs of the same "flow", or "everywhere"."""
    task: int
    """That made it."""
    made_at: datetime
    expires_at: datetime
    size: int
    """Bytes of its JSON."""
    value: Any = None
    """Only where one is asked for by its key."""


CachedInfos = list[CachedInfo]


@public
class AsyncCache:
    """Namespace `client.cache`: lists, shows and forgets cached results of steps."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(
        self, *, step: str | None = None, flow: str | None = None, limit: int = 1_000
    ) -> CachedInfos:
        """Cached results, the newest first, without their values.

        step   only results of this step: `module:function`, or the function's name
        flow   only results that runs of this flow made
        limit  how many at most; default 1,000
        """
        self._core.guard.check()
        most = names.count(limit, "limit", maximum=MAX_LISTED)
        step, flow = await self._named(step, flow)
        return [_info(each) for each in await self._core.store.cached_results(step, flow, most)]

    async def get(self, key: str) -> CachedInfo:
        """One cached result with its value, by its key or the beginning of it."""
        self._core.guard.check()
        text = checked_key(key)
        found = await self._core.store.cached_result(text)
        if len(found) > 1:
            raise InvalidInput(
                f"several keys begin with {text}.", field="key", got=key, hint="Give more of it."
            )
        if not found:
            raise NotFound(
                f"no result is cached under {text}.",
                field="key",
                got=key,
                hint="It may be past its time: locktender cache list shows what is kept.",
            )
        raw = await blob_values.fetch(self._core.store, found[0].output)
        return _info(found[0], codec.decode(raw))

    async def clear(self, *, step: str | None = None, flow: str | None = None) -> int:
        """Forgets cached results: runs that are submitted after this call take none of them.

        step  only results of this step: `module:function`, or the function's name; default all
        flow  only results that runs of this flow made; default all

        Returns how many there were. The leader carries it out; without one, the next leader does.
        """
        self._core.guard.check()
        step, flow = await self._named(step, flow)
        store = self._core.store
        found = await store.cached_results(step, flow, MAX_LISTED)
        await store.ask([Request("cache_clear", step or "", who=self._core.who, flow=flow or "")])
        self._core.changed()
        return len(found)

    async def _named(self, step: str | None, flow: str | None) -> tuple[str | None, str | None]:
        """Names as they are stored, of what was given in short."""
        given = {"step": step, "flow": flow}
        checked = {key: names.text(name, key) for key, name in given.items() if name is not None}
        if not checked:
            return None, None
        kept = await self._core.store.cached_results(limit=MAX_LISTED)
        whole: dict[str, str] = {}
        for key, name in checked.items():
            whole[key] = _whole(name, {getattr(each, key) for each in kept}, key)
        return whole.get("step"), whole.get("flow")


def checked_key(key: str) -> str:
    """A key or the beginning of one."""
    text = names.text(key, "key").strip().lower()
    if not text or not _HEX.issuperset(text):
        raise InvalidInput(
            "a key has only the digits 0-9 and a-f.",
            field="key",
            got=key,
            hint="locktender cache list shows them.",
        )
    return text


def _whole(name: str, known: Iterable[str], field: str) -> str:
    names_known = sorted(set(known))
    ends = [each for each in names_known if each.rpartition(":")[2] == name]
    if name in names_known or len(ends) == 1:
        return name if name in names_known else ends[0]
    if len(ends) > 1:
        raise InvalidInput(
            f"several {field}s are named {name!r}: {', '.join(ends)}.",
            field=field,
            got=name,
            hint="Give the whole name.",
        )
    raise NotFound(
        f"no result of {field} {name!r} is cached.",
        field=field,
        got=name,
        hint=did_you_mean(name, names_known) or "locktender cache list shows what is kept.",
    )


def _info(row: CachedResult, value: Any = None) -> CachedInfo:
    return CachedInfo(
        row.key,
        row.step,
        row.flow,
        row.scope,
        row.task,
        instant(row.made_at),
        instant(row.expires_at),
        row.size,
        value,
    )


@public
class SyncCache:
    """Namespace `client.cache`: lists, shows and forgets cached results of steps."""

    def __init__(self, bridge: Bridge, cache: AsyncCache) -> None:
        self._bridge = bridge
        self._cache = cache

    def list(
        self, *, step: str | None = None, flow: str | None = None, limit: int = 1_000
    ) -> CachedInfos:
        """Cached results, the newest first, without their values.

        step   only results of this step: `module:function`, or the function's name
        flow   only results that runs of this flow made
        limit  how many at most; default 1,000
        """
        return self._bridge.call(self._cache.list(step=step, flow=flow, limit=limit))

    def get(self, key: str) -> CachedInfo:
        """One cached result with its value, by its key or the beginning of it."""
        return self._bridge.call(self._cache.get(key))

    def clear(self, *, step: str | None = None, flow: str | None = None) -> int:
        """Forgets cached results: runs that are submitted after this call take none of them.

        step  only results of this step: `module:function`, or the function's name; default all
        flow  only results that runs of this flow made; default all

        Returns how many there were. The leader carries it out; without one, the next leader does.
        """
        return self._bridge.call(self._cache.clear(step=step, flow=flow))
