"""Overlap measured from the records that bodies wrote themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec


class Body(NamedTuple):
    """One attempt as its own body saw it."""

    step: str
    run: str
    tenant: str
    task: int
    pid: int
    attempt: int
    start: int
    end: int | None
    """None: it was killed, or it still runs."""


class _Start(msgspec.Struct):
    step: str
    run: str
    tenant: str
    task: int
    pid: int
    attempt: int
    start: int


class _End(msgspec.Struct):
    end: int


Span = tuple[int, int]


def read(folder: Path) -> list[Body]:
    found: list[Body] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_bytes().splitlines()
        if not lines:
            continue  # opened, and nothing written yet
        start = msgspec.json.decode(lines[0], type=_Start)
        end = msgspec.json.decode(lines[1], type=_End).end if len(lines) > 1 else None
        found.append(Body(**msgspec.structs.asdict(start), end=end))
    return found


def peak(spans: Iterable[Span]) -> int:
    """The most spans that ever overlapped; one that ends as another begins does not overlap it."""
    edges = sorted(edge for start, end in spans for edge in ((start, 1), (max(start + 1, end), -1)))
    highest = now = 0
    for _, change in edges:
        now += change
        highest = max(highest, now)
    return highest


def spans(bodies: Iterable[Body], killed_at: int) -> list[Span]:
    """A killed body ended when its process did."""
    return [(body.start, killed_at if body.end is None else body.end) for body in bodies]


def peak_of_window(bodies: Iterable[Body], step: str, killed_at: int) -> int:
    """The most items of one run's mapped step at once."""
    by_run: dict[str, list[Body]] = defaultdict(list)
    for body in bodies:
        if body.step == step:
            by_run[body.run].append(body)
    return max((peak(spans(several, killed_at)) for several in by_run.values()), default=0)


def peak_of_pool(bodies: Iterable[Body], step: str, killed_at: int) -> int:
    return peak(spans([body for body in bodies if body.step == step], killed_at))


def peak_per_tenant(bodies: Iterable[Body], killed_at: int) -> int:
    """The most runs of one tenant at once: a run lasts from its first body to its last."""
    runs: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for body in bodies:
        runs[body.tenant, body.run] += spans([body], killed_at)
    by_tenant: dict[str, list[Span]] = defaultdict(list)
    for (tenant, _), several in runs.items():
        by_tenant[tenant].append((min(several)[0], max(end for _, end in several)))
    return max((peak(several) for several in by_tenant.values()), default=0)
