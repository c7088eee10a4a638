"""The history checker: a pure program over a history that verifies the promises of the engine.

It trusts nothing but the events and the graphs: what the kernel and the store
hold in memory or in rows it derives again, by rules of its own.
"""

from locktender.observe.checker.audit import RULES, check, peaks, promises
from locktender.observe.checker.report import Ceiling, History, Peak, Rejection, Violation

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
