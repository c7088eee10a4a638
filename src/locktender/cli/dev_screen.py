"""What `locktender dev` shows: runs, pools and the queue, moving on a terminal, as lines elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.cli.reading import Reading
from locktender.cli.tables import ago, lasted, now, shorten, state, table
from locktender.client.pools_async import AsyncPools
from locktender.client.runs_async import AsyncRuns
from locktender.client.views import PoolInfo, RunInfo

MOST_RUNS = 10
MOST_POOLS = 6
MOST_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Scene:
    at: datetime
    runs: list[RunInfo]
    pools: list[PoolInfo]
    queued: int
    executing: int


def look(reading: Reading) -> Scene:
    return reading.call(_look(reading))


async def _look(reading: Reading) -> Scene:
    core = reading.core
    counts = await core.store.counts()
    return Scene(
        at=now(),
        runs=await AsyncRuns(core).list(limit=MOST_RUNS),
        pools=await AsyncPools(core).list(),
        queued=counts.queued,
        executing=counts.executing,
    )


def _changed_at(run: RunInfo) -> tuple[datetime, int]:
    """When it came to its present state: what one look finds changed is told in that order."""
    if run.state == RunState.QUEUED:
        return run.queued_at, run.number
    return run.ended_at or run.started_at or run.queued_at, run.number


class DevScreen:
    def __init__(self, console: Console, title: str, *, plain: bool) -> None:
        self._console = console
        self._title = title
        self._messages: list[str] = []
        self._seen: dict[str, str] = {}
        self._live: Live | None = None
        still = plain or not console.is_terminal or "NO_COLOR" in os.environ
        if still:
            console.print(title)
        else:
            self._live = Live(console=console, auto_refresh=False, screen=False)
            self._live.start()

    def say(self, text: str) -> None:
        """Something happened that is no run: a reload, an error."""
        if self._live is None:
            self._console.print(text, soft_wrap=True)
        else:
            self._messages = [*self._messages, text][-MOST_MESSAGES:]

    def show(self, scene: Scene) -> None:
        if self._live is not None:
            self._live.update(self._picture(scene), refresh=True)
            return
        for run in sorted(scene.runs, key=_changed_at):
            if self._seen.get(run.id) != run.state:
                self._seen[run.id] = run.state
                took = ""
                if run.state in TERMINAL_RUNS:
                    took = f" in {lasted(run.started_at, run.ended_at, scene.at)}"
                error = f": {escape(run.error.message)}" if run.error else ""
                self._console.print(
                    f"{run.id[:12]}  {escape(run.flow)}  {state(run.state)}{took}{error}",
                    soft_wrap=True,
                )

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _picture(self, scene: Scene) -> RenderableType:
        head = (
            f"{self._title}   [bold]{scene.executing}[/] executing, [bold]{scene.queued}[/] queued"
        )
        parts: list[RenderableType] = [Text.from_markup(head)]
        parts.append(self._runs(scene))
        if scene.pools:
            shown = [
                f"{escape(pool.name)} {pool.used}/{'∞' if pool.limit is None else pool.limit}"
                + (f" [yellow](+{pool.waiting} waiting)[/]" if pool.waiting else "")
                + (" [magenta]paused[/]" if pool.paused else "")
                for pool in scene.pools[:MOST_POOLS]
            ]
            parts.append(Text.from_markup("[dim]pools[/]  " + "   ".join(shown)))
        parts += [Text.from_markup(message) for message in self._messages]
        return Group(*parts)

    def _runs(self, scene: Scene) -> RenderableType:
        if not scene.runs:
            return Text("No runs yet. In another terminal: locktender submit FILE.py:flow", "dim")
        short = shorten(run.id for run in scene.runs)
        rows = [
            [
                short[run.id],
                escape(run.flow),
                state(run.state),
                ago(run.queued_at, scene.at),
                lasted(run.started_at, run.ended_at, scene.at),
                escape(run.error.message if run.error else ""),
            ]
            for run in scene.runs
        ]
        return table("run", "flow…", "state", "submitted", "took", "error…", rows=rows)
