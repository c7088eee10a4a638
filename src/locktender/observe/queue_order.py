"""The queue as it will be served: priority, then fair turn, then age."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from locktender.base.limits import Limits
from locktender.base.model import RunRow
from locktender.kernel.lanes import rank
from locktender.kernel.turns import Turns
from locktender.observe.standing import turns_taken
from locktender.store.protocol import Heads, QueueEntry, Store

MOST_HEADS = 4_096
"""Rows that are read to find whose turn comes first. Where more lanes wait than that, the oldest of them count."""


async def queue_in_order(store: Store, limit: int) -> list[QueueEntry]:
    """The first `limit` queued runs in the order in which they start if nobody else comes."""
    limits, _ = await store.limits()
    if limits.fair is None:
        return await store.queue(limit)
    lanes = (await store.load()).lanes
    heads = await store.heads(Heads(lanes, min(limit, MOST_HEADS), max(limit, MOST_HEADS)))
    turns, _ = await turns_taken(store, limits.fair)
    rows = in_turn([row for row in heads if row.kind == "flow"], limits, turns)[:limit]
    return [QueueEntry(row, place) for place, row in enumerate(rows, 1)]


def in_turn(rows: list[RunRow], limits: Limits, turns: Turns) -> list[RunRow]:
    """`rows` in the order of their turns, which are taken here."""
    lines: dict[str, list[tuple[int, int, int, RunRow]]] = {}
    for row in rows:
        value = "" if limits.fair is None else row.tags.get(limits.fair.key, "")
        first, second = rank(limits, row.priority, row.queued_at)
        lines.setdefault(value, []).append((first, second, row.seq, row))
    for line in lines.values():
        line.sort(key=lambda each: each[:3], reverse=True)
    front = [(_key(line, value, turns), value) for value, line in lines.items()]
    heapify(front)
    found: list[RunRow] = []
    while front:
        key, value = front[0]
        line = lines[value]
        actual = _key(line, value, turns)
        if actual > key:
            heapreplace(front, (actual, value))  # turns have moved on since
            continue
        found.append(line.pop()[3])
        turns.took(value)
        if line:
            heapreplace(front, (_key(line, value, turns), value))
        else:
            heappop(front)
    return found


def _key(
    line: list[tuple[int, int, int, RunRow]], value: str, turns: Turns
) -> tuple[int, int, int, int]:
    first, second, seq, _ = line[-1]
    return first, turns.of(value), second, seq
