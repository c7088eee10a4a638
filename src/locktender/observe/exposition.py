"""The text format of Prometheus: one metric with its description and its samples.

https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family:
    """One metric. Names and labels are ours; values of labels may be any text."""

    __slots__ = ("_samples", "description", "kind", "name")

    def __init__(
        self, kind: Literal["counter", "gauge", "histogram"], name: str, text: str
    ) -> None:
        """`name` of a counter is without `_total`."""
        self.kind: str = kind
        self.name: str = f"{name}_total" if kind == "counter" else name
        self.description: str = text
        self._samples: list[tuple[str, dict[str, str], float]] = []

    def add(self, value: float, **labels: str) -> None:
        self._samples.append(("", labels, value))

    def add_buckets(self, buckets: Iterable[tuple[str, int]], total: float, **labels: str) -> None:
        """`buckets`: (upper bound, values up to it), the last bound is `+Inf`; `total`: the sum of all values."""
        count = 0
        for bound, count in buckets:
            self._samples.append(("_bucket", {**labels, "le": bound}, count))
        self._samples.append(("_count", labels, count))
        self._samples.append(("_sum", labels, total))

    def text(self) -> str:
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        described = self.description.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {self.name} {described}\n# TYPE {self.name} {self.kind}\n"
        for suffix, labels, value in self._samples:
            shown = ",".join(f'{name}="{_escaped(each)}"' for name, each in labels.items())
            yield f"{self.name}{suffix}{f'{{{shown}}}' if shown else ''} {float(value)!r}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
