"""Parts of the answer to `why`: the steps of a run that wait, were offered or do not stop."""

from __future__ import annotations

import msgspec

from locktender.base.text import offered_to, stop_text
from locktender.kernel.deadlines import Until
from locktender.kernel.reasons import GateOpening, Reason


class WaitingStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tasks of one step of a run that wait for the same gates."""

    step: str
    count: int
    reasons: tuple[Reason, ...]
    until: tuple[Until, ...] = ()
    """When the first of them fails if nothing lets it go."""
    lets_start: tuple[GateOpening, ...] = ()
    """What has to happen for the first of them to start."""


class UnstoppedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tasks of one step of a run that were asked to stop and still run."""

    count: int
    reason: str
    since: int
    """Of the one that was asked first."""

    def text(self, now: int, of: int) -> str:
        """`of`: how many of the step run in all."""
        count = "" if self.count == of else f"{self.count} of them "
        return count + stop_text(self.reason, self.since, now)


class OfferedStep(msgspec.Struct, frozen=True):
    """Tasks of one step of a run that no worker has accepted yet."""

    count: int
    worker: str
    """It and what follows: of the one that was offered most often."""
    at: int
    offers: int

    def text(self, now: int) -> str:
        which = "" if self.count == 1 else "one of them "
        return which + offered_to(self.worker, self.at, self.offers, now)
