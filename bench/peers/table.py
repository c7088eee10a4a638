"""Rounds to medians and ratios, and both to a Markdown table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.workload import FULL, HIGHER_IS_BETTER, LIMIT
from bench.report import Spread

Round = Mapping[str, Mapping[str, Any]]
"""Contender's name → what it measured."""
OURS, SQLITE = "ours, server + worker", "ours, embedded SQLite"
ALL = "all"
"""The key of a failure that left a contender without any measure in that round."""
PEAK = "_peak"


def medians(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Of each contender and measure, over the rounds that have it; of a peak the maximum.

    A limit that was exceeded in one round was exceeded.
    """
    return {
        name: {
            measure: max(values) if measure.endswith(PEAK) else statistics.median(values)
            for measure, values in measured.items()
        }
        for name, measured in _values(rounds).items()
    }


def _values(rounds: Sequence[Round]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for one in rounds:
        for name, measured in one.items():
            for measure, value in measured.items():
                if isinstance(value, int | float):
                    found.setdefault(name, {}).setdefault(measure, []).append(value)
    return found


def failures(rounds: Sequence[Round]) -> dict[str, Counter[tuple[str, str]]]:
    """Of each contender: (measure, why) and in how many rounds."""
    found: dict[str, Counter[tuple[str, str]]] = {}
    for one in rounds:
        for name, measured in one.items():
            for measure, why in measured.get("failed", {}).items():
                said = " ".join(why.split())
                found.setdefault(name, Counter())[measure, said] += 1
    return found


def best(measured: Mapping[str, float], measure: str) -> float | None:
    """A peer's best case: its drain where it has one."""
    return measured.get(f"{measure}_drain", measured.get(f"{measure}_whole", measured.get(measure)))


def ratio(rounds: Sequence[Round], ours: str, theirs: str, measure: str) -> Spread | None:
    """Ours ÷ theirs: of rates more is better, of times and of wall ÷ ideal less is.

    The median of the rounds' ratios, over the rounds that have both.
    """
    found: list[float] = []
    for one in rounds:
        mine, other = best(one.get(ours, {}), measure), best(one.get(theirs, {}), measure)
        if mine is not None and other:
            found.append(mine / other)
    return Spread.of(found) if found else None


class Goal(NamedTuple):
    title: str
    ours: str
    theirs: str
    measure: str
    goal: float
    floor: float

    def verdict(self, value: float) -> str:
        """Less is better where the goal is under the floor."""
        sign = 1 if self.goal > self.floor else -1
        if sign * value >= sign * self.goal:
            return "met"
        return "floor met" if sign * value >= sign * self.floor else "missed"


GOALS = (
    Goal("no-op steps/s, server + worker ÷ absurd", OURS, "absurd", "steps", 15, 11),
    Goal("… ÷ pgqueuer, batch 200", OURS, "pgqueuer, batch 200", "steps", 1.0, 0.75),
    Goal("… ÷ bare asyncpg loop", OURS, "bare asyncpg loop", "steps", 0.36, 0.28),
    Goal("embedded SQLite ÷ bare SQLite loop", SQLITE, "bare SQLite loop", "steps", 0.11, 0.085),
    Goal("single-step runs/s, server + worker ÷ absurd", OURS, "absurd", "runs", 12, 9),
    Goal("idle latency, server + worker ÷ procrastinate (less is better)", OURS, "procrastinate", "idle",
         0.9, 1.1),
)  # fmt: skip


def goals(rounds: Sequence[Round]) -> list[tuple[Goal, Spread | None]]:
    """The ratios that this project sets itself, of who took part; None: no round has both values."""
    took_part = _took_part(rounds)
    return [
        (each, ratio(rounds, each.ours, each.theirs, each.measure))
        for each in GOALS
        if {each.ours, each.theirs} <= took_part
    ]


def _took_part(rounds: Sequence[Round]) -> set[str]:
    return {name for one in rounds for name in one}


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def markdown(rounds: Sequence[Round], about: Mapping[str, Any]) -> str:
    took_part, failed = _took_part(rounds), failures(rounds)
    contenders = [each for each in CONTENDERS if each.name in took_part]
    rows = _Rows(rounds)
    over = " / ".join(str(each.milliseconds) for each in FULL.limits)
    commit = f", commit {about['commit']}" if about.get("commit") else ""
    lines = [
        (
            f"{len(rounds)} rounds, {about['cores']} cores, PostgreSQL {about['postgres']} with fsync, "
            f"Python {about['python']}, {about['date']}{commit}. Medians; a ratio is the median of the "
            "rounds' ratios, with the lowest and the highest. A rate of a peer: drain (whole)."
        ),
        "",
        (
            "| | no-op steps/s | ours × | single-step runs/s | ours × | idle submit → body p50 "
            f"| limit of {LIMIT}: wall ÷ ideal at {over} ms |"
        ),
        "|---|---|---|---|---|---|---|",
        *(rows.row(each) for each in contenders),
        "",
        "| ratio | measured | goal | floor | |",
        "|---|---|---|---|---|",
        *(_goal(each, spread, len(rounds)) for each, spread in goals(rounds)),
    ]
    if failed:
        lines += ["", "Failed:", ""]
        lines += [
            f"- {each.name}, {what}, in {count} of {len(rounds)} rounds: {why}"
            for each in contenders
            for (what, why), count in failed.get(each.name, Counter()).items()
        ]
    lines += ["", "Settings:", "", *(f"- {each}" for each in _settings(contenders))]
    return "\n".join(lines) + "\n"


def _goal(goal: Goal, spread: Spread | None, rounds: int) -> str:
    bounds = f"{goal.goal:g} | {goal.floor:g}"
    if spread is None:
        return f"| {goal.title} | failed: no round has both values | {bounds} | failed |"
    measured = f"{spread.median:.3g} × ({spread.range}){_behind(spread.rounds, rounds)}"
    return f"| {goal.title} | {measured} | {bounds} | {goal.verdict(spread.median)} |"


def _behind(count: int, rounds: int) -> str:
    """How many rounds a median is of, where it is not all of them."""
    return "" if count == rounds else f", {count} of {rounds} rounds"


class _Rows:
    def __init__(self, rounds: Sequence[Round]) -> None:
        self._rounds = rounds
        self._values = _values(rounds)
        self._medians = medians(rounds)
        self._failed = failures(rounds)

    def row(self, each: Contender) -> str:
        why = dict(tuple(self._failed.get(each.name, ())))
        if ALL in why and not self._medians.get(each.name):
            return f"| {_titled(each)} | failed: {_cell(why[ALL])} | | | | | |"
        cells = [
            self._rate(each, "steps"),
            self._ours(each, "steps"),
            self._rate(each, "runs"),
            self._ours(each, "runs"),
            self._one(each, "idle", " ms"),
            " / ".join(self._one(each, limit.key) for limit in FULL.limits)
            + self._over_limit(each),
        ]
        return f"| {_titled(each)} | {' | '.join(cells)} |"

    def _one(self, each: Contender, measure: str, unit: str = "", what: str = "") -> str:
        """The median; "failed" where it failed in every round, – where the contender has no such thing."""
        values = self._values.get(each.name, {}).get(measure, [])
        if values:
            return f"{number(statistics.median(values))}{unit}{_behind(len(values), len(self._rounds))}"
        was_asked = any(
            failed == (what or measure) for failed, _ in self._failed.get(each.name, ())
        )
        return "failed" if was_asked else number(None)

    def _rate(self, each: Contender, measure: str) -> str:
        whole = self._one(each, f"{measure}_whole", what=measure)
        values = self._values.get(each.name, {})
        if f"{measure}_drain" not in values:
            return whole
        drained = number(self._medians[each.name][f"{measure}_drain"])
        both = f"{drained} ({number(self._medians[each.name].get(f'{measure}_whole'))})"
        return both + _behind(len(values[f"{measure}_drain"]), len(self._rounds))

    def _ours(self, each: Contender, measure: str) -> str:
        """Ours on the same store over this contender's best."""
        if each.kind == "ours":
            return ""
        ours = OURS if each.store == "postgres" else SQLITE
        spread = ratio(self._rounds, ours, each.name, measure)
        return "" if spread is None else f"{number(spread.median)} × ({spread.range})"

    def _over_limit(self, each: Contender) -> str:
        """A limit that did not hold is said."""
        measured = self._medians.get(each.name, {})
        peak = max((measured.get(f"{limit.key}{PEAK}", 0) for limit in FULL.limits), default=0)
        return f" (up to {peak:.0f} at once)" if peak > LIMIT else ""


def _cell(text: str) -> str:
    """In a cell of a table: one line, without bars, and not endless."""
    return text.replace("|", "/")[:200]


def _titled(each: Contender) -> str:
    if each.kind == "ours":
        return f"**{each.name}**"
    first, comma, rest = each.name.partition(",")
    return f"{first} {each.version()}".strip() + comma + rest


def _settings(contenders: Sequence[Contender]) -> list[str]:
    said: dict[str, list[str]] = {}
    for each in contenders:
        said.setdefault(each.settings, []).append(each.name)
    return [f"{'; '.join(names)}: {settings}" for settings, names in said.items()]


def better(measure: str) -> str:
    return "more is better" if f"{measure}_whole" in HIGHER_IS_BETTER else "less is better"
