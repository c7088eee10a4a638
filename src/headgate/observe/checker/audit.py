"""The two questions: was every promise kept, and how close to its limit did each thing come."""

from __future__ import annotations

import inspect
from typing import Final

from headgate.observe.checker.admission import ActiveCeiling, HonestRejections
from headgate.observe.checker.attempts import Attempts
from headgate.observe.checker.bypass import Bypass
from headgate.observe.checker.ceilings import CeilingRule, PoolCeiling, RunCeiling
from headgate.observe.checker.deadlines import Deadlines
from headgate.observe.checker.dependencies import Dependencies
from headgate.observe.checker.edges import LegalEdge
from headgate.observe.checker.fencing import Fencing
from headgate.observe.checker.holding import AllOrNone, Conservation
from headgate.observe.checker.keys import Keys
from headgate.observe.checker.leadership import Leadership
from headgate.observe.checker.loss import NoLoss
from headgate.observe.checker.parallel import RunParallelism, Window
from headgate.observe.checker.permits import Permits
from headgate.observe.checker.rates import Rates
from headgate.observe.checker.reasons import TrueReason
from headgate.observe.checker.replay import replay
from headgate.observe.checker.report import History, Peak, Violation
from headgate.observe.checker.rule import Rule
from headgate.observe.checker.sequential import Sequential
from headgate.observe.checker.starts import MaxStarts
from headgate.observe.checker.terminal import Terminal

_CEILINGS: Final[tuple[type[CeilingRule], ...]] = (
    RunCeiling,
    PoolCeiling,
    RunParallelism,
    Window,
)

RULES: Final[tuple[type[Rule], ...]] = (
    LegalEdge,
    *_CEILINGS,
    Permits,
    ActiveCeiling,
    Rates,
    AllOrNone,
    Conservation,
    Fencing,
    Leadership,
    Terminal,
    Dependencies,
    Sequential,
    Keys,
    Attempts,
    Deadlines,
    HonestRejections,
    NoLoss,
    Bypass,
    TrueReason,
    MaxStarts,
)
"""Every promise. Several classes may serve one id."""


def check(history: History) -> list[Violation]:
    """What of the engine's promises this history breaks, by seq. Empty: all of them held."""
    return replay(history, RULES).violations


def peaks(history: History) -> list[Peak]:
    """The peak of every limit: the run gate and tags, pools, parallelism, windows."""
    done = replay(history, _CEILINGS)
    return [peak for rule in done.rules if isinstance(rule, CeilingRule) for peak in rule.peaks()]


def promises() -> dict[str, list[str]]:
    """What each rule's id stands for, in words."""
    found: dict[str, list[str]] = {}
    for rule in RULES:
        found.setdefault(rule.id, []).append(inspect.cleandoc(rule.__doc__ or ""))
    return found
