"""Replacements that wait for the run they replace: who waits for whom once some of them have ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


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


def heirs(ended: Mapping[int, int | None]) -> Iterator[tuple[int, int]]:
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
