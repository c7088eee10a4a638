"""The history checker: verifies the promises of the engine from events and graphs alone.

It shares no state and no rules with the kernel and the store.
"""

from locktender.observe.checker.audit import RULES, check, peaks, promises
from locktender.observe.checker.history import Ceiling, History, Peak, Rejection, Violation

__all__ = [
    "RULES",
    "Ceiling",
    "History",
    "Peak",
    "Rejection",
    "Violation",
    "check",
    "peaks",
    "promises",
]
