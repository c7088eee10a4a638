"""The two questions: was every promise kept, and how close to its limit did each thing come."""

from __future__ import annotations

import inspect
from typing import Final

from locktender.observe.checker.admission import ActiveCeiling, HonestRejections
from locktender.observe.checker.attempts import Attempts
from locktender.observe.checker.bypass import Bypass
from locktender.observe.checker.ceilings import CeilingRule, PoolCeiling, RunCeiling
from locktender.observe.checker.deadlines import Deadlines
from locktender.observe.checker.dependencies import Dependencies
from locktender.observe.checker.edges import LegalEdge
from locktender.observe.checker.fencing import Fencing
from locktender.observe.checker.holding import AllOrNone, Conservation
from locktender.observe.checker.keys import Keys
from locktender.observe.checker.leadership import Leadership
from locktender.observe.checker.loss import NoLoss
from locktender.observe.checker.parallel import RunParallelism, Window
from locktender.observe.checker.permits import Permits
from locktender.observe.checker.rates import Rates
from locktender.observe.checker.reasons import TrueReason
from locktender.observe.checker.replay import replay
from locktender.observe.checker.report import History, Peak, Violation
from locktender.observe.checker.rule import Rule
from locktender.observe.checker.sequential import Sequential
from locktender.observe.checker.starts import MaxStarts
from locktender.observe.checker.terminal import Terminal

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
