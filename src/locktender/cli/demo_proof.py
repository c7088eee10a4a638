"""The demo's claims, each measured twice: from the bodies' records and from the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from locktender.base.config import Settings
from locktender.base.events import Event
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.cli import demo_flow, demo_records
from locktender.cli.auditing import load_history
from locktender.cli.demo_records import Body
from locktender.cli.reading import Reading
from locktender.cli.tables import table
from locktender.observe.checker import Peak, Violation, check, peaks, promises


@dataclass(frozen=True, slots=True)
class Claim:
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
    claims: list[Claim]
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


def prove(settings: Settings, bodies: list[Body], killed_at: int) -> Proof:
    with Reading(settings) as reading:
        history = reading.call(load_history(reading.store))
    found = peaks(history)
    claims = [
        Claim(
            "window of fetch",
            demo_flow.WINDOW,
            demo_records.peak_of_window(bodies, "fetch", killed_at),
            _highest(found, "window:"),
        ),
        Claim(
            "pool db",
            settings.pools["db"].limit,
            demo_records.peak_of_pool(bodies, "save", killed_at),
            _highest(found, "pool:db"),
        ),
        Claim(
            "runs per tenant",
            settings.tags[0].limit,
            demo_records.peak_per_tenant(bodies, killed_at),
            _highest(found, "tag:tenant"),
        ),
        Claim(
            "runs queued or running",
            settings.max_active,
            None,
            peak_active(history.events),
        ),
    ]
    return Proof(
        claims,
        check(history),
        sum(body.attempt > 1 for body in bodies),
        len(promises()),
        len(history.events),
    )


def _highest(found: list[Peak], prefix: str) -> int:
    return max((peak.peak for peak in found if peak.name.startswith(prefix)), default=0)


def peak_active(events: Any) -> int:
    """The most runs that were ever queued or running."""
    active: set[int] = set()
    highest = 0
    event: Event
    for event in events:
        if event.subject != "run":
            continue
        if event.after == RunState.QUEUED:
            active.add(event.run)
        elif event.after in TERMINAL_RUNS:
            active.discard(event.run)
        highest = max(highest, len(active))
    return highest


def table_of(proof: Proof) -> Table:
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
