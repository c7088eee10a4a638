"""The lane a queued run stands in, named by what can hold it back."""

from __future__ import annotations

from collections.abc import Mapping

from locktender.base.limits import Limits
from locktender.kernel import lanes


def lane_name(
    limits: Limits,
    *,
    kind: str,
    tags: Mapping[str, str],
    key: str | None,
    waits_for: int | None = None,
) -> str:
    """Runs of one lane wait for the same things, so that only its head is looked at.

    One that waits for the run it replaces waits alone. A hold passes the run
    gate and the tags' limits: behind a blocked flow it would wait for nothing.
    """
    waiting_key = None if waits_for is None else key
    if kind == "hold":
        return lanes.HOLD + lanes.signature(Limits(), {}, waiting_key)
    return lanes.signature(limits, tags, waiting_key)
