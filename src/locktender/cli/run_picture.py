"""A run as it is shown: a picture that moves on a terminal, or lines.

rich is loaded where the picture moves, or has to be cut to fit: see `output`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from locktender.base.durations import spoken
from locktender.base.names import without_controls
from locktender.cli.output import escape
from locktender.cli.run_view import RunView, StepView
from locktender.cli.tables import SHORTEST, columns_shown, length, state

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PLAIN_FIRST_US = 500_000
PLAIN_EVERY_US = 1_000_000
NARROWEST_NAME, WIDEST_NAME = 10, 20
NARROWEST_COUNT = 7
STEP_BAR, RUN_BAR = 10, 46
"""Characters of a bar."""


class Screen(Protocol):
    def show(self, view: RunView) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def screen_for(console: Console, *, plain: bool) -> Screen:
    """Live on a terminal, unless `plain`."""
    if plain or not console.is_terminal or console.is_dumb_terminal or "NO_COLOR" in os.environ:
        return Plain(console)
    return Moving(console)


class Silent:
    """Nothing until the end."""

    def show(self, view: RunView) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class Moving:
    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()
        self._said = ""

    def show(self, view: RunView) -> None:
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [Picture(view, self._console.height - 4)]
        if self._said:
            parts.append(Text(self._said, style="bold yellow"))
        self._live.update(Group(*parts), refresh=True)

    def say(self, text: str) -> None:
        self._said = text

    def close(self) -> None:
        self._live.stop()


class Plain:
    """At most one line per step and second, and only if it says something new."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_us = PLAIN_FIRST_US
        self._shown: dict[str, str] = {}

    def show(self, view: RunView) -> None:
        if view.elapsed_us < self._next_us or view.ended:
            return
        self._next_us = view.elapsed_us + PLAIN_EVERY_US
        for note in view.notes:
            self._print_change(view, "", f"{view.state}: {note}")
        if view.notes:
            return
        for step in view.steps:
            if step.running or step.waiting or step.offered:
                self._print_change(view, step.name, f"{step.name} {counts(step)}")

    def _print_change(self, view: RunView, subject: str, text: str) -> None:
        if self._shown.get(subject) != text:
            self._shown[subject] = text
            self.say(f"{spoken(view.elapsed_us):>6}  {view.done}/{view.total}  {text}")

    def say(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)

    def close(self) -> None: ...


def counts(step: StepView) -> str:
    """`3/6, 2 running, 1 waiting (pool db: 2 of 2 in use)`"""
    parts = [f"{step.done}/{'?' if step.total is None else step.total}"]
    for number, word in (
        (step.cached, "cached"),
        (step.failed, "failed"),
        (step.cancelled, "cancelled"),
        (step.skipped, "skipped"),
        (step.passed, "not called for an error"),
        (step.running, "running"),
        (step.offered, "offered"),
        (step.waiting, "waiting"),
    ):
        if number:
            parts.append(f"{number} {word}")
    text = ", ".join(parts)
    if step.running and step.not_stopped:
        text += f"; {step.not_stopped}"
    return (
        f"{text} ({'; '.join(step.notes)})" if step.waiting + step.offered and step.notes else text
    )


class Picture:
    """All of a run, cut to `height` lines: what moves is kept, what is over goes first."""

    def __init__(self, view: RunView, height: int) -> None:
        self._view = view
        self._steps = _most_lively(view.steps, max(3, height - 4))

    def lines(self) -> Iterator[str] | None:
        """With markup; None: one of them does not fit."""
        lines = [*self._head(), *self._rest()]
        fits = all(length(line) <= columns_shown() for line in lines)
        return iter(lines) if fits else None

    def __rich__(self) -> RenderableType:
        """Reasons are wrapped, all else is cut."""
        from rich.console import Group
        from rich.text import Text

        parts = [Text.from_markup(line, emoji=False) for line in self._head()]
        for line in self._rest():
            text = Text.from_markup(line, emoji=False, overflow="ellipsis")
            text.no_wrap = True
            parts.append(text)
        return Group(*parts)

    def _head(self) -> Iterator[str]:
        view = self._view
        short = escape(view.flow.rpartition(":")[2])
        about = f"[dim]{view.id[:SHORTEST]}[/] {state(view.state)} [dim]{_time(view)}[/]"
        yield f"[bold]{short}[/] {about}"
        for note in view.notes:
            yield f"[yellow]  {escape(note)}[/]"

    def _rest(self) -> Iterator[str]:
        view = self._view
        names = [_cut(without_controls(step.name)) for step in self._steps]
        wide = max([NARROWEST_NAME, *map(length, names)])
        ended = [f"{step.ended}/{_total(step)}" for step in self._steps]
        right = max([NARROWEST_COUNT, *map(len, ended)])
        for step, name, count in zip(self._steps, names, ended, strict=True):
            colour = "red" if step.failed else "green" if step.over else "cyan"
            bar = _bar(step.ended, step.total or 1, STEP_BAR, colour)
            blank = " " * (wide - length(name))
            yield f"  {name}{blank} {bar} {count:>{right}} {_moving(step)}".rstrip()
            if step.waiting or step.offered:
                for note in step.notes[:2]:
                    yield f"{' ' * (wide + STEP_BAR + right + 5)}[dim]└ {escape(note)}[/]"
        if len(self._steps) < len(view.steps):
            yield f"[dim]  and {len(view.steps) - len(self._steps)} more steps[/]"
        total = max(1, view.total)
        bar = _bar(view.done, total, RUN_BAR, "green" if view.done >= total else "cyan")
        yield f"{bar} [bold]{view.done}/{view.total}[/] {100 * view.done // total} %"


def _total(step: StepView) -> str:
    return "?" if step.total is None else str(step.total)


def _cut(name: str) -> str:
    """A step's name with its markup escaped, as long as fits before its bar."""
    while length(escape(name)) > WIDEST_NAME:
        name = f"{name.removesuffix('…')[:-1]}…"
    return escape(name)


def _bar(done: int, total: int, width: int, colour: str) -> str:
    halves = min(2 * width, 2 * width * done // total)
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    return f"[{colour}]{full}[/][dim]{'╌' * (width - len(full))}[/]"


def _time(view: RunView) -> str:
    """How long it took, as lists say it; of one that waits to start, for how long."""
    if view.took_us is not None:
        return spoken(view.took_us)
    return "-" if view.ended else spoken(view.elapsed_us)


def _moving(step: StepView) -> str:
    parts: list[str] = []
    if step.cached:
        parts.append(f"[green]{step.cached} cached[/]")
    if step.failed:
        parts.append(f"[red]{step.failed} failed[/]")
    if step.cancelled:
        parts.append(f"[magenta]{step.cancelled} cancelled[/]")
    if step.skipped:
        parts.append(f"[dim]{step.skipped} skipped[/]")
    if step.passed:
        parts.append(f"[yellow]{step.passed} not called for an error[/]")
    if step.running:
        note = f"; [red]{escape(step.not_stopped)}[/]" if step.not_stopped else ""
        parts.append(f"[cyan]{step.running} running[/]{note}")
    if step.offered:
        parts.append(f"[yellow]{step.offered} offered[/]")
    if step.waiting:
        parts.append(f"[yellow]{step.waiting} waiting[/]")
    elif step.notes and not step.running and not step.offered and not step.over:
        parts.append(f"[dim]{escape(step.notes[0])}[/]")
    return ", ".join(parts)


def _most_lively(steps: tuple[StepView, ...], most: int) -> list[StepView]:
    """At most `most` lines of steps, in the flow's order."""
    if len(steps) <= most // 2:
        return list(steps)
    ranked = sorted(
        range(len(steps)),
        key=lambda at: (
            not steps[at].running,
            not steps[at].waiting + steps[at].offered,
            steps[at].over,
        ),
    )
    kept: set[int] = set()
    lines = 0
    for at in ranked:
        lines += 1 + (min(2, len(steps[at].notes)) if steps[at].waiting + steps[at].offered else 0)
        if lines > most:
            break
        kept.add(at)
    return [steps[at] for at in sorted(kept)]
