"""About how long a wait lasts, from how long things usually take."""

from __future__ import annotations

from math import ceil


def wait_for(
    elapsed: list[int], usual: int | None, ahead: int, gate: tuple[int, int], need: int = 1
) -> int | None:
    """About how long until `need` are free for one with `ahead` before it.

    `gate` is how many are used, and the limit. Whoever holds is as old as `elapsed` says and lasts as
    long as `usual`; each place that comes free is taken by the next in line for as long again.
    """
    if usual is None or not elapsed:
        return None
    left = sorted(max(usual - each, usual // 10) for each in elapsed)
    used, limit = gate
    # Above a lowered limit the first places that come free are for nobody.
    places = left[max(0, len(left) - limit) :] if limit > 0 else left
    slots = (ahead + 1) * need - max(0, limit - used)
    each = max(1, used // len(elapsed))
    turns, place = divmod(max(1, ceil(slots / each)) - 1, len(places))
    return places[place] + turns * usual
