"""Retries: how long a task waits before its next try."""

from __future__ import annotations

import zlib

from locktender.base.graph import RetryPolicy


def delay(policy: RetryPolicy, tries: int, task: int, seed: int = 0) -> int:
    """Microseconds to wait before the try after `tries` failed ones. Jitter comes from a hash, not from chance.

    Full delay grows by `backoff` per try up to the maximum; jitter takes off up to half of it, so
    that tasks that failed together do not come back together.
    """
    exponent = min(tries - 1, 64)
    full = min(policy.max_delay_us, int(policy.delay_us * policy.backoff**exponent))
    if not policy.jitter:
        return full
    draw = zlib.crc32(f"{seed}:{task}:{tries}".encode()) / 0xFFFFFFFF
    return full - int(full * 0.5 * draw)
