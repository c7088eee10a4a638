"""Who waits beside a queued run, from counts that do not grow with the queue.

A queue of a million is not counted from its front. A run near the front is counted from there; for one near
the end those behind it are counted, and taken off all that are queued, which the counters know. In between
only a bound is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from locktender.store.protocol import LineGroup, QueueLine

MAX_GROUPS = 1_000
"""Lanes that are told apart: what concerns each is read from its signature, at some microseconds."""


class QueueCounts(NamedTuple):
    """Of `queue_counts`, each up to one more than were asked for."""

    lane: str
    before: int
    flows_before: int
    """Without holds, which nobody waits behind."""
    behind: int
    flows_behind: int
    own: int
    """Before it in its own lane."""
    queued: int
    """All of the queue but holds, by the counters."""

    def ahead(self, most: int) -> tuple[int, bool]:
        """How many stand before it, and whether there may be more."""
        if self.before <= most:
            return self.flows_before, False
        ahead = self.queued - 1 - self.flows_behind
        # Counters that are wrong are the audit's matter: a place that cannot be is not told.
        if self.behind <= most and ahead >= self.flows_before:
            return ahead, False
        return self.flows_before, True


def in_line(rank: int, counts: QueueCounts, most: int, rows: Iterable[Sequence[Any]]) -> QueueLine:
    """Without turns. `rows`: those before it by lane and rank, where they were read."""
    groups = [LineGroup(*row) for row in rows]
    cut = counts.before > most or len(groups) > MAX_GROUPS
    if cut:
        own = min(counts.own, most)
        groups = [LineGroup(counts.lane, rank, own + 1, own)]
    return QueueLine(rank, groups, cut, *counts.ahead(most), counts.queued)


def taking_turns(rank: int, most: int, rows: Iterable[Sequence[Any]]) -> QueueLine:
    """With a fair key. `rows`: all of its priority or higher, by lane and rank, its own lane first."""
    groups = [LineGroup(*row) for row in rows]
    cut = len(groups) > MAX_GROUPS or sum(group.waiting for group in groups) >= most
    return QueueLine(rank, groups[:MAX_GROUPS], cut)
