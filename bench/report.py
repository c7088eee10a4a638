"""What a benchmark reports: a figure, what it is compared with in the same run, and the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    note: str = ""

    def line(self) -> str:
        mark = {True: "ok  ", False: "MISS", None: "    "}[self.met]
        target = f"  (target {self.target})" if self.target else ""
        note = f"  {self.note}" if self.note else ""
        return f"{mark} {self.name:<58} {self.value:>12,.3f} {self.unit}{target}{note}"
