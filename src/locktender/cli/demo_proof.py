"""The demo's claims, each measured twice: overlap from the bodies' own records, and peaks from the history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from locktender.base.config import Settings
from locktender.cli import demo_flow
from locktender.cli.tables import TextTable, table
from locktender.client.bridge import StoreReader
from locktender.observe.checker import Peak, Violation, promises
from locktender.observe.checkpoint import audit


class DemoBody(NamedTuple):
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


def read(folder: Path) -> list[DemoBody]:
    found: list[DemoBody] = []
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_bytes().splitlines()
        if not lines:
            continue  # opened, and nothing written yet
        start = msgspec.json.decode(lines[0], type=_Start)
        end = msgspec.json.decode(lines[1], type=_End).end if len(lines) > 1 else None
        found.append(DemoBody(**msgspec.structs.asdict(start), end=end))
    return found


def peak(spans: Iterable[Span]) -> int:
    """The most spans that ever overlapped; one that ends as another begins does not overlap it."""
    edges = sorted(edge for start, end in spans for edge in ((start, 1), (max(start + 1, end), -1)))
    highest = now = 0
    for _, change in edges:
        now += change
        highest = max(highest, now)
    return highest


def spans(bodies: Iterable[DemoBody], killed_at: int) -> list[Span]:
    """A killed body ended when its process did."""
    return [(body.start, killed_at if body.end is None else body.end) for body in bodies]


def peak_of_window(bodies: Iterable[DemoBody], step: str, killed_at: int) -> int:
    """The most items of one run's mapped step at once."""
    by_run: dict[str, list[DemoBody]] = defaultdict(list)
    for body in bodies:
        if body.step == step:
            by_run[body.run].append(body)
    return max((peak(spans(several, killed_at)) for several in by_run.values()), default=0)


def peak_of_pool(bodies: Iterable[DemoBody], step: str, killed_at: int) -> int:
    return peak(spans([body for body in bodies if body.step == step], killed_at))


def peak_per_tenant(bodies: Iterable[DemoBody], killed_at: int) -> int:
    """The most runs of one tenant at once: a run lasts from its first body to its last."""
    runs: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for body in bodies:
        runs[body.tenant, body.run] += spans([body], killed_at)
    by_tenant: dict[str, list[Span]] = defaultdict(list)
    for (tenant, _), several in runs.items():
        by_tenant[tenant].append((min(several)[0], max(end for _, end in several)))
    return max((peak(several) for several in by_tenant.values()), default=0)


@dataclass(frozen=True, slots=True)
class DemoClaim:
    name: str
    limit: int
    bodies: int | None
    """None: bodies cannot know it."""
    history: int

    @property
    def held(self) -> bool:
        """Reached and never exceeded: a limit nothing ever reached proves nothing."""
        measured = [self.history] if self.bodies is None else [self.history, self.bodies]
        return max(measured) <= self.limit and min(measured) > 0


@dataclass(frozen=True, slots=True)
class Proof:
    claims: list[DemoClaim]
    violations: list[Violation]
    twice: int
    """Bodies that were started a second time."""
    promises: int
    events: int

    @property
    def held(self) -> bool:
        return not self.violations and all(claim.held for claim in self.claims)

    def as_dict(self) -> dict[str, Any]:
        return {
            "limits": [
                {
                    "name": claim.name,
                    "limit": claim.limit,
                    "peak_bodies": claim.bodies,
                    "peak_history": claim.history,
                    "never_exceeded": claim.held,
                }
                for claim in self.claims
            ],
            "violations": self.violations,
            "recovered": self.twice,
            "promises": self.promises,
            "events": self.events,
        }


def prove(settings: Settings, bodies: list[DemoBody], killed_at: int) -> Proof:
    with StoreReader(settings) as reading:
        done = reading.call(audit(reading.store))
    found = done.peaks
    claims = [
        DemoClaim(
            "window of fetch",
            demo_flow.WINDOW,
            peak_of_window(bodies, "fetch", killed_at),
            _highest(found, "window:"),
        ),
        DemoClaim(
            "pool db",
            settings.pools["db"].limit,
            peak_of_pool(bodies, "save", killed_at),
            _highest(found, "pool:db"),
        ),
        DemoClaim(
            "runs per tenant",
            settings.tags[0].limit,
            peak_per_tenant(bodies, killed_at),
            _highest(found, "tag:tenant"),
        ),
        DemoClaim(
            "runs queued or running",
            settings.max_active,
            None,
            done.most_active,
        ),
    ]
    return Proof(
        claims,
        done.violations,
        sum(body.attempt > 1 for body in bodies),
        len(promises()),
        done.events,
    )


def _highest(found: list[Peak], prefix: str) -> int:
    return max((peak.peak for peak in found if peak.name.startswith(prefix)), default=0)


def table_of(proof: Proof) -> TextTable:
    return table(
        "limit", ">allowed", ">peak measured", ">in history", "never exceeded",
        rows=[
            [
                claim.name,
                str(claim.limit),
                "-" if claim.bodies is None else str(claim.bodies),
                str(claim.history),
                "[green]yes[/]" if claim.held else "[bold red]NO[/]",
            ]
            for claim in proof.claims
        ],
    )  # fmt: skip
