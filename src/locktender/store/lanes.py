"""Where a queued run waits: its lane, and the run that it replaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from locktender.base.limits import Limits
from locktender.kernel import lanes


def lane_name(
    limits: Limits,
    *,
    kind: str,
    tags: Mapping[str, str],
    key: str | None,
    waits_for: int | None = None,
    flow: str = "",
    run: int = 0,
    keeps: Collection[str] = (),
) -> str:
    """Runs of one lane wait for the same things, so that only its head is looked at.

    One that waits for the run it replaces waits alone. A hold passes the run
    gate and the tags' limits: behind a blocked flow it would wait for nothing.
    Paused runs wait together, apart from all others. `run`: its number, if it has one.
    `keeps`: limits of tags at which it has kept its place.
    """
    waiting_key = None if waits_for is None else key
    if kind == "hold":
        return lanes.HOLD + lanes.signature(Limits(), {}, waiting_key)
    if limits.is_paused(flow, run):
        return lanes.PAUSED
    return lanes.signature(limits, tags, waiting_key, keeps)


def let_go(
    ended: Mapping[int, int | None], awaited: Iterable[int]
) -> Iterator[tuple[int | None, int]]:
    """(what is still waited for, the ended run that was awaited), for each of `awaited`.

    `ended` says what each ended run itself still waited for: one that was
    cancelled in the queue leaves its own wait to its successor. Oldest first,
    so that a chain that ends at once is let go to its last link.
    """
    for run in sorted(awaited):
        yield _still_awaited(ended, run), run


def key_successors(ended: Mapping[int, int | None]) -> Iterator[tuple[int, int]]:
    """(the run that gets the key back, the ended run that had it).

    A replacement that ends in the queue leaves the run it was to replace
    behind: that one is active still, and so the key must not be free.
    """
    for run in sorted(ended):
        still = _still_awaited(ended, run)
        if still is not None:
            yield still, run


def _still_awaited(ended: Mapping[int, int | None], run: int) -> int | None:
    still = ended[run]
    while still is not None and still in ended:
        still = ended[still]
    return still
