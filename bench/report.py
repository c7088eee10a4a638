"""What a benchmark reports: a figure, what it is compared with, its target, and the last record of it."""

from __future__ import annotations

import datetime as dt
import json
import math
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "record.json"
AS_SHIPPED = "as shipped"
Verdict = Literal["met", "floor met", "missed", "failed", ""]
MARKS: dict[Verdict, str] = {
    "met": "ok",
    "floor met": "FLOOR",
    "missed": "MISS",
    "failed": "FAIL",
    "": "",
}


@dataclass(frozen=True)
class Figure:
    """A value that is not finite was not measured: the figure failed, and `note` says why."""

    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    note: str = ""
    spread: str = ""
    """Of its rounds: the lowest, the highest and how many."""
    floor_met: bool = False
    """Its target names a floor, and the value meets that."""

    @classmethod
    def at_least(
        cls,
        name: str,
        value: float,
        unit: str,
        goal: float,
        floor: float,
        note: str = "",
        spread: str = "",
    ) -> Figure:
        target = f"≥ {goal:,g}, floor {floor:,g}"
        return cls(name, value, unit, target, value >= goal, note, spread, value >= floor)

    @classmethod
    def at_most(
        cls,
        name: str,
        value: float,
        unit: str,
        goal: float,
        floor: float,
        note: str = "",
        spread: str = "",
    ) -> Figure:
        target = f"≤ {goal:,g}, floor {floor:,g}"
        return cls(name, value, unit, target, value <= goal, note, spread, value <= floor)

    @property
    def verdict(self) -> Verdict:
        if not math.isfinite(self.value):
            return "failed"
        if self.met is None:
            return ""
        if self.met:
            return "met"
        return "floor met" if self.floor_met else "missed"

    def line(self, recorded: float | None = None) -> str:
        before = "" if recorded is None else f"  (recorded {recorded:,.3f})"
        target = f"  (target {self.target})" if self.target else ""
        note = "".join(f"  {each}" for each in (self.spread, self.note) if each)
        return (
            f"{MARKS[self.verdict]:<5} {self.name:<58} {self.value:>12,.3f} {self.unit}"
            f"{before}{target}{note}"
        )


def short(value: float) -> str:
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


class Spread(NamedTuple):
    """Of one figure's rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    @property
    def range(self) -> str:
        return f"{short(self.low)}–{short(self.high)}"

    @property
    def note(self) -> str:
        return f"{self.range} in {self.rounds} {'round' if self.rounds == 1 else 'rounds'}"


def ratios(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Of pairs measured in turns: the median of the rounds' ratios, not the ratio of medians."""
    return Spread.of([ours / theirs for ours, theirs in pairs])


class Kept(TypedDict):
    value: float | None
    """None: it failed."""
    unit: str
    target: str
    verdict: Verdict
    note: str
    spread: str


class Part(TypedDict):
    date: str
    commit: str
    settings: str
    figures: dict[str, Kept]


@dataclass
class Record:
    """The last recorded value of every figure, by part and name, with what was asked of it then."""

    parts: dict[str, Part] = field(default_factory=dict[str, Part])

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        return cls(json.loads(path.read_text()) if path.exists() else {})

    def of(self, part: str, figure: Figure) -> float | None:
        kept = self.parts[part]["figures"].get(figure.name) if part in self.parts else None
        return kept["value"] if kept else None

    def put(self, part: str, figures: Sequence[Figure], settings: str = AS_SHIPPED) -> None:
        """In place of what was recorded of this part; the others keep theirs."""
        kept = {each.name: _kept(each) for each in figures}
        self.parts[part] = Part(date=today(), commit=commit(), settings=settings, figures=kept)

    def write(self, path: Path = RECORD) -> None:
        write_whole(path, json.dumps(self.parts, indent=1, ensure_ascii=False) + "\n")

    def markdown(self) -> str:
        lines = ["| figure | measured | target | |", "|---|---|---|---|"]
        for name, part in self.parts.items():
            about = (part["date"], part["commit"] and f"commit {part['commit']}", part["settings"])
            lines.append(f"| **{name}**: {', '.join(each for each in about if each)} | | | |")
            for title, kept in part["figures"].items():
                lines.append(
                    f"| {title} | {_measured(kept)} | {kept['target']} | {kept['verdict']} |"
                )
        return "\n".join(lines) + "\n"


def _kept(figure: Figure) -> Kept:
    failed = figure.verdict == "failed"
    return Kept(
        value=None if failed else float(f"{figure.value:.5g}"),
        unit=figure.unit,
        target=figure.target,
        verdict=figure.verdict,
        note=figure.note,
        spread=figure.spread,
    )


def _measured(kept: Kept) -> str:
    value = kept["value"]
    if value is None:
        return f"failed: {kept['note'] or 'no value'}"
    return f"{short(value)} {kept['unit']}" + (f" ({kept['spread']})" if kept["spread"] else "")


def today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def commit() -> str:
    """The short hash of what is measured, '' where git is absent; it says if src/ was changed since."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head} with changes" if changed else head


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def write_whole(path: Path, text: str) -> None:
    """The old file or the new one, also where the process ends in between."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


def put_between_markers(page: Path, name: str, text: str) -> None:
    """`text` in place of what stands between the markers `name: begin` and `name: end` of the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    write_whole(page, f"{before}{begin}\n{text}{end}{after}")
