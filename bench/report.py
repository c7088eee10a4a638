"""What a benchmark reports: a figure, what it is compared with, its target, and the last record of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

RECORD = Path(__file__).parent / "record.json"


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    note: str = ""

    def line(self, recorded: float | None = None) -> str:
        mark = {True: "ok  ", False: "MISS", None: "    "}[self.met]
        before = "" if recorded is None else f"  (recorded {recorded:,.3f})"
        target = f"  (target {self.target})" if self.target else ""
        note = f"  {self.note}" if self.note else ""
        return f"{mark} {self.name:<58} {self.value:>12,.3f} {self.unit}{before}{target}{note}"


class Kept(TypedDict):
    value: float
    unit: str
    target: str
    met: bool | None


@dataclass
class Record:
    """The last recorded value of every figure, by part and name, with what was asked of it then."""

    parts: dict[str, dict[str, Kept]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        return cls(json.loads(path.read_text()) if path.exists() else {})

    def of(self, part: str, figure: Figure) -> float | None:
        kept = self.parts.get(part, {}).get(figure.name)
        return kept["value"] if kept else None

    def put(self, part: str, figures: Sequence[Figure]) -> None:
        """In place of what was recorded of this part; the others keep theirs."""
        self.parts[part] = {
            each.name: Kept(
                value=float(f"{each.value:.5g}"), unit=each.unit, target=each.target, met=each.met
            )
            for each in figures
            if math.isfinite(each.value)
        }

    def write(self, path: Path = RECORD) -> None:
        path.write_text(json.dumps(self.parts, indent=1, ensure_ascii=False) + "\n")

    def markdown(self) -> str:
        met = {True: "met", False: "missed", None: ""}
        lines = ["| figure | measured | target | |", "|---|---|---|---|"]
        for part, figures in self.parts.items():
            for n, (name, kept) in enumerate(figures.items()):
                title = f"**{part}**: {name}" if n == 0 else name
                value = f"{kept['value']:,.3g}" if kept["value"] < 1000 else f"{kept['value']:,.0f}"
                lines.append(
                    f"| {title} | {value} {kept['unit']} | {kept['target']} | {met[kept['met']]} |"
                )
        return "\n".join(lines) + "\n"


def put_between_markers(page: Path, name: str, text: str) -> None:
    """`text` in place of what stands between the markers `name: begin` and `name: end` of the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{text}{end}{after}")
