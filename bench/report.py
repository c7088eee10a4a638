"""What a benchmark reports: a figure, what it is compared with, its target, and the last record of it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

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


@dataclass
class Record:
    """The last recorded value of every figure, by part and name."""

    parts: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = RECORD) -> Record:
        found: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}
        return cls(found)

    def of(self, part: str, figure: Figure) -> float | None:
        return self.parts.get(part, {}).get(figure.name)

    def put(self, part: str, figure: Figure) -> None:
        """A part that did not run keeps what was recorded of it."""
        if math.isfinite(figure.value):
            self.parts.setdefault(part, {})[figure.name] = float(f"{figure.value:.5g}")

    def write(self, path: Path = RECORD) -> None:
        path.write_text(json.dumps(self.parts, indent=1, ensure_ascii=False) + "\n")
