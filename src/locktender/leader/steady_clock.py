"""Whether the store's time may end leases: it must not have jumped.

Leases are instants of the store's time. If somebody sets that clock forward, every
lease in it seems to have passed at once, though everybody is alive. The process's
own boot-time clock does not jump, so the leader compares how far both have come.
After a jump nobody is declared lost until every worker has had the time of a lease
to renew. A clock set back only makes leases longer.
"""

from __future__ import annotations

import logging

from locktender.base.clock import SECOND

log: logging.Logger = logging.getLogger(__name__)
JUMP_US = 2 * SECOND


class SteadyClock:
    def __init__(self, lease_us: int) -> None:
        self._lease_us = lease_us
        self._seen: tuple[int, int] | None = None
        self._wait_until = 0

    def saw(self, store_us: int, before_us: int, boot_us: int) -> None:
        """The store's clock was read between these two instants of our own.

        Only a jump that is certain counts: whoever stood still between question and answer
        must not take its own delay for one.
        """
        if self._seen is not None:
            ahead = (store_us - self._seen[0]) - (boot_us - self._seen[1])
            if ahead > JUMP_US:
                log.warning(
                    "the store's clock jumped ahead by %.1f s: nobody is declared lost for %.0f s",
                    ahead / SECOND,
                    self._lease_us / SECOND,
                )
                self._wait_until = boot_us + self._lease_us
        self._seen = store_us, before_us

    def trusted(self, boot_us: int) -> bool:
        return boot_us >= self._wait_until
