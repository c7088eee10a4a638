"""Pools: slots of a shared resource that a task holds until its attempt has ended."""

from __future__ import annotations

from typing import ClassVar

from locktender.base.limits import PoolRule
from locktender.kernel.gates.protocol import SlotGate


class PoolGate(SlotGate):
    """At most `limit` slots in use at once, over all runs.

    Whether a task fits is decided by `Gate.blocks` (protocol.py); `AdmissionQueue._counts_agree` is a
    quick test of the same numbers.
    """

    __slots__ = ("lease_us",)

    KIND: ClassVar[str] = "pool"

    def __init__(self, name: str, rule: PoolRule) -> None:
        super().__init__(name, rule)
        self.lease_us: int | None = None
        """How long the slots of a dead worker stay taken after the worker's own lease."""
        self.apply(rule, 0)

    @classmethod
    def wanted(cls, rule: PoolRule) -> bool:  # noqa: ARG003
        return True

    def apply(self, rule: PoolRule, now: int) -> bool:  # noqa: ARG002
        self.set(rule.limit, paused=rule.paused)
        self.lease_us = rule.lease_us
        return False

    def idle(self, now: int) -> bool:  # noqa: ARG002
        return self.used == 0
