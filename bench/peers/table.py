"""Rounds to medians, medians to ratios, ratios to a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.workload import FULL, HIGHER_IS_BETTER, LIMIT

Round = Mapping[str, Mapping[str, Any]]
"""Contender's name → what it measured."""
OURS, SQLITE = "ours, server + worker", "ours, embedded SQLite"


def medians(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Of each contender and measure, over the rounds that have it."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in rounds:
        for name, measured in one.items():
            for measure, value in measured.items():
                if isinstance(value, int | float):
                    found.setdefault(name, {}).setdefault(measure, []).append(value)
    return {
        name: {measure: statistics.median(values) for measure, values in measured.items()}
        for name, measured in found.items()
    }


def best(measured: Mapping[str, float], measure: str) -> float | None:
    """A peer's best case: its drain where it has one."""
    return measured.get(f"{measure}_drain", measured.get(f"{measure}_whole", measured.get(measure)))


def ratio(ours: Mapping[str, float], theirs: Mapping[str, float], measure: str) -> float | None:
    """Ours ÷ theirs: of rates more is better, of times and of wall ÷ ideal less is."""
    mine, other = best(ours, measure), best(theirs, measure)
    return mine / other if mine is not None and other else None


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


def goals(found: Mapping[str, Mapping[str, float]]) -> list[tuple[Goal, float]]:
    """The ratios that this project sets itself, those that were measured."""
    ratios = [
        (each, ratio(found[each.ours], found[each.theirs], each.measure))
        for each in GOALS
        if each.ours in found and each.theirs in found
    ]
    return [(each, value) for each, value in ratios if value is not None]


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def markdown(found: Mapping[str, Mapping[str, float]], about: Mapping[str, Any]) -> str:
    contenders = [each for each in CONTENDERS if each.name in found]
    keys = [each.key for each in FULL.limits]
    over = " / ".join(str(each.milliseconds) for each in FULL.limits)
    lines = [
        (
            f"{about['rounds']} rounds, {about['cores']} cores, PostgreSQL {about['postgres']} with fsync, "
            f"Python {about['python']}, {about['date']}. Medians. A rate of a peer: drain (whole)."
        ),
        "",
        (
            "| | no-op steps/s | ours × | single-step runs/s | ours × | idle submit → body p50 "
            f"| limit of {LIMIT}: wall ÷ ideal at {over} ms |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for each in contenders:
        measured = found[each.name]
        limits = " / ".join(number(measured.get(key)) for key in keys)
        idle = measured.get("idle")
        lines.append(
            f"| {_titled(each)} | {_rate(measured, 'steps')} | {_ours(found, each, 'steps')} "
            f"| {_rate(measured, 'runs')} | {_ours(found, each, 'runs')} "
            f"| {number(idle)}{' ms' if idle is not None else ''} | {limits}{_over_limit(measured, keys)} |"
        )
    lines += ["", "| ratio | measured | goal | floor | |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.title} | {value:.3g} × | {each.goal:g} | {each.floor:g} | {each.verdict(value)} |"
        for each, value in goals(found)
    ]
    lines += ["", "Settings:", "", *(f"- {each}" for each in _settings(contenders))]
    return "\n".join(lines) + "\n"


def _titled(each: Contender) -> str:
    if each.kind == "ours":
        return f"**{each.name}**"
    first, comma, rest = each.name.partition(",")
    return f"{first} {each.version()}".strip() + comma + rest


def _rate(measured: Mapping[str, float], measure: str) -> str:
    drain, whole = measured.get(f"{measure}_drain"), measured.get(f"{measure}_whole")
    return number(whole) if drain is None else f"{number(drain)} ({number(whole)})"


def _ours(found: Mapping[str, Mapping[str, float]], each: Contender, measure: str) -> str:
    """Ours on the same store over this contender's best."""
    ours = OURS if each.store == "postgres" else SQLITE
    if each.kind == "ours" or ours not in found:
        return ""
    value = ratio(found[ours], found[each.name], measure)
    return "" if value is None else f"{number(value)} ×"


def _over_limit(measured: Mapping[str, float], keys: Sequence[str]) -> str:
    """A limit that did not hold is said."""
    peak = max((measured.get(f"{key}_peak", 0) for key in keys), default=0)
    return f" (up to {peak:.0f} at once)" if peak > LIMIT else ""


def _settings(contenders: Sequence[Contender]) -> list[str]:
    said: dict[str, list[str]] = {}
    for each in contenders:
        said.setdefault(each.settings, []).append(each.name)
    return [f"{'; '.join(names)}: {settings}" for settings, names in said.items()]


def better(measure: str) -> str:
    return "more is better" if f"{measure}_whole" in HIGHER_IS_BETTER else "less is better"
