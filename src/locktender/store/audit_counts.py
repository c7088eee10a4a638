"""The audit's view of the counters: what they say, beside what the rows say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from locktender.base.limits import Limits
from locktender.store.admission import TOTAL, capped, counters
from locktender.store.decode import decode_tags
from locktender.store.protocol import Counts


def tally(
    limits: Limits,
    rows: Sequence[tuple[str, int, int]],
    active_tags: Iterable[tuple[str, int]],
    held: Mapping[str, int],
    queued: int,
    executing: int,
) -> Counts:
    """`rows` are (name, admitted, closed); `active_tags` how many active runs carry which tags."""
    rules = capped(limits)
    active: Counter[str] = Counter(dict.fromkeys([TOTAL, *(name for name, *_ in rows)], 0))
    for tags, count in active_tags:
        active[TOTAL] += count
        for name in counters(rules, decode_tags(tags)):
            active[name] += count
    return Counts(
        admitted={name: admitted for name, admitted, _ in rows},
        closed={name: closed for name, _, closed in rows},
        active=dict(active),
        held=dict(held),
        queued=queued,
        executing=executing,
    )
