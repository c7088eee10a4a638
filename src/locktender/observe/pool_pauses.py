"""Who paused a pool, and when: from the changes of limits, newest first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from locktender.base.durations import spoken
from locktender.base.model import LimitChange
from locktender.kernel.reasons import Reason
from locktender.observe.answer import Why
from locktender.store.protocol import Store

MAX_CHANGES: Final = 1_000
"""Of limits, that are looked through. Who paused a pool before those is not told."""
_PAUSED: Final = "paused:"
"""How the gate of a paused pool begins."""


class PoolPause(NamedTuple):
    who: str
    at: int


class _Rule(msgspec.Struct):
    paused: bool = False


_read = msgspec.json.Decoder(_Rule).decode


async def pool_pauses(store: Store, pools: Collection[str]) -> dict[str, PoolPause]:
    """Of these pools, those whose last pause is known."""
    if not pools:
        return {}
    found: dict[str, PoolPause] = {}
    for change in await store.limit_history(MAX_CHANGES):
        if change.kind == "pool" and change.name not in found and _pauses(change):
            found[change.name] = PoolPause(change.who, change.at)
    # A key without a rule of its own is paused by that of all keys.
    ruled = {pool: pool if pool in found else f"{pool.partition('[')[0]}[*]" for pool in pools}
    return {pool: found[rule] for pool, rule in ruled.items() if rule in found}


def _pauses(change: LimitChange) -> bool:
    return _paused(change.after) and not _paused(change.before)


def _paused(rule: bytes | None) -> bool:
    return rule is not None and _read(rule).paused


async def with_pauses(store: Store, why: Why) -> Why:
    """The answer, with who paused the pools that it names as paused."""
    reasons = [*why.reasons, *(each for step in why.waiting for each in step.reasons)]
    pools = {each.gate[len(_PAUSED) :] for each in reasons if each.gate.startswith(_PAUSED)}
    pauses = await pool_pauses(store, pools)
    if not pauses:
        return why

    def with_authors(several: tuple[Reason, ...]) -> tuple[Reason, ...]:
        return tuple(_with_pause_author(each, pauses, why.now) for each in several)

    waiting = (
        msgspec.structs.replace(each, reasons=with_authors(each.reasons)) for each in why.waiting
    )
    return msgspec.structs.replace(why, reasons=with_authors(why.reasons), waiting=tuple(waiting))


def _with_pause_author(reason: Reason, pauses: dict[str, PoolPause], now: int) -> Reason:
    pause = pauses.get(reason.gate.removeprefix(_PAUSED))
    if pause is None or not reason.gate.startswith(_PAUSED):
        return reason
    text = f"{reason.text} by {pause.who} ({spoken(max(0, now - pause.at))} ago)"
    return msgspec.structs.replace(reason, text=text)
