"""Overlap: what the bodies themselves say about when they ran.

A limit is proven by the bodies, not by the engine's own rows. Each body writes
a line when it begins and one when it ends:

    with recording("db"):
        ...

Who writes: async bodies, threads, child processes and other engines, all to one
file. A line is one `write` to a descriptor opened with O_APPEND, so lines never
mix and stand in the order in which they were written. The peak is counted by
that order: what is between the two lines of one body is inside of the body, so
bodies that overlap in the file did overlap, whatever any clock says.

A body that is killed writes no second line. It counts up to the mark that
`Overlap.kill` leaves before it kills, else up to the last line of its process:
never longer than it ran.

A process that is stopped (`Overlap.pause`) may outlive its lease without knowing:
from there on its bodies do not count, nor does what it begins within `NOTICE_US` of
being woken; `woken` reports how long they went on. What runs in its child
processes counts: they are not stopped. Where a test took the lease away behind the
process's back no clock tells it: it wakes with `resume(until_noticed=True)`, and counts
again from the mark of `noticed`.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from locktender.base.clock import SECOND, SystemClock
from locktender.base.errors import NotFound
from locktender.base.names import did_you_mean
from locktender.flows.steps import Step

VARIABLE = "LOCKTENDER_TEST_OVERLAP"
"""Names the file of the running test; child processes inherit it."""

NOTICE_US = SECOND
"""How long a process that is woken may take to notice what it has lost."""

_clock = SystemClock()
_numbers = itertools.count(1)


Kind = Literal["begin", "end", "kill", "pause", "resume", "noticed"]


class OverlapRecord(NamedTuple):
    """One line of the file."""

    kind: Kind
    at_us: int
    """The boot-time clock, which all processes of a machine share."""
    pid: int
    """Of `kill`, `pause`, `resume` and `noticed`: the process that this is about."""
    parent: int
    body: str
    name: str
    label: str = ""
    weight: int = 1
    error: str = ""
    """Of `end`: the class of what the body raised."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(OverlapRecord).decode


@dataclass(slots=True)
class Span:
    """One body from its first line to its last."""

    name: str
    label: str
    weight: int
    pid: int
    began_us: int
    ended_us: int | None = None
    """None: not recorded. It still runs, or it was killed."""
    error: str = ""
    """The class of what it raised; `CancelledError` where it was cancelled."""

    @property
    def finished(self) -> bool:
        """It ran to its end and raised nothing."""
        return self.ended_us is not None and not self.error


@contextmanager
def recording(name: str, *, label: str = "", weight: int = 1) -> Generator[None]:
    """Records a body under `name` for the running test; does nothing where no test records.

    `label` separates bodies of one name, `weight` is how much one of them counts
    (as many as the slots it takes).
    """
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    with Overlap(path).body(name, label=label, weight=weight):
        yield


class Overlap:
    """The records of one test. Any process that knows the file may write or read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def body(self, name: str, *, label: str = "", weight: int = 1) -> Generator[None]:
        """As `recording`, to this file, with the same `label` and `weight`."""
        pid, parent = os.getpid(), os.getppid()
        body = f"{pid}-{next(_numbers)}"
        error = ""
        self._write("begin", pid, parent, body, name, label, weight)
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self._write("end", pid, parent, body, name, label, weight, error)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Kills a process, and marks the moment: its bodies and those of its children end here."""
        # Marked before: once it is dead others may start its work again, and that is no overlap.
        self._write("kill", pid, 0, "", "")
        os.kill(pid, number)

    def pause(self, pid: int) -> None:
        """Stops a process, and marks the moment: from here on its own bodies do not count."""
        stop(pid)
        self._write("pause", pid, 0, "", "")

    def resume(self, pid: int, *, until_noticed: bool = False) -> None:
        """Lets bodies go on that `pause` held. `until_noticed`: what it begins counts from `noticed` on."""
        self._write("resume", pid, 0, "", "", _UNTIL_NOTICED if until_noticed else "")
        os.kill(pid, signal.SIGCONT)

    def noticed(self, pid: int) -> None:
        """Marks that a process which was woken knows that its lease was lost: its bodies count again."""
        self._write("noticed", pid, 0, "", "")

    @contextmanager
    def watch(self, step: Step[..., Any], name: str | None = None) -> Generator[None]:
        """Records every body of a step that runs in this process, without touching its code.

        A step with `executor="process"` runs elsewhere: use `recording` in its body.
        """
        definition = step.definition
        original = definition.fn
        definition.fn = self._recorded(
            original, name or definition.short, is_async=definition.is_async
        )
        try:
            yield
        finally:
            definition.fn = original

    def _recorded(self, fn: Callable[..., Any], name: str, *, is_async: bool) -> Callable[..., Any]:
        if is_async:

            @functools.wraps(fn)
            async def recorded_async(*args: Any, **kwargs: Any) -> Any:
                with self.body(name):
                    return await fn(*args, **kwargs)

            return recorded_async

        @functools.wraps(fn)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self.body(name):
                return fn(*args, **kwargs)

        return recorded

    def _write(
        self,
        kind: Kind,
        pid: int,
        parent: int,
        body: str,
        name: str,
        label: str = "",
        weight: int = 1,
        error: str = "",
    ) -> None:
        line = OverlapRecord(
            kind, _clock.monotonic(), pid, parent, body, name, label, weight, error
        )
        # Opened each time: there is nothing to inherit, to share or to close.
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _encode(line) + b"\n")
        finally:
            os.close(fd)

    # -- reading -----------------------------------------------------------------------------------

    def lines(self) -> list[OverlapRecord]:
        """Every line so far, in the order in which they were written."""
        if not self.path.exists():
            return []
        # Somebody may be writing: the last line counts when its end is there.
        whole = self.path.read_bytes().rpartition(b"\n")[0]
        return [_decode(line) for line in whole.split(b"\n") if line]

    def names(self) -> list[str]:
        """The names bodies were recorded under."""
        return sorted({line.name for line in self.lines() if line.kind == "begin"})

    def spans(self, name: str) -> list[Span]:
        """Bodies of one name, in the order in which they began."""
        found: dict[str, Span] = {}
        for line in self.lines():
            if line.kind == "begin" and line.name == name:
                found[line.body] = Span(name, line.label, line.weight, line.pid, line.at_us)
            elif line.kind == "end" and line.body in found:
                found[line.body].ended_us = line.at_us
                found[line.body].error = line.error
        return list(found.values())

    def woken(self, name: str) -> list[tuple[Span, int | None]]:
        """Bodies of a process that was stopped and woken which it had not noticed to be others' by then.

        Each with how many microseconds it went on after that; None: its end was not recorded.
        """
        spans = self.spans(name)
        found: list[tuple[Span, int | None]] = []
        for line in self.lines():
            if line.kind != "resume":
                continue
            for span in spans:
                begun = span.pid == line.pid and span.began_us < line.at_us + NOTICE_US
                if begun and (span.ended_us is None or span.ended_us > line.at_us):
                    lasted = None if span.ended_us is None else span.ended_us - line.at_us
                    found.append((span, lasted))
        return found

    def labels(self, name: str) -> list[str]:
        """The labels of bodies of one name, in the order in which they began."""
        return [span.label for span in self.spans(name)]

    def count(self, name: str) -> int:
        """How many bodies of one name began."""
        return len(self.spans(name))

    def levels(self, name: str) -> list[int]:
        """How many of one name ran (by weight), after each line that changed it."""
        level, levels = 0, [0]
        for step in _steps(self.lines(), name):
            level += step
            levels.append(level)
        return levels

    def peak(self, name: str) -> int:
        """The most of one name that ever ran at once. A name that was never recorded is an error, not 0."""
        levels = self.levels(name)
        if len(levels) == 1:
            hint = did_you_mean(name, self.names()) or "Run the bodies under recording(name)."
            raise NotFound(f"no body was recorded as {name!r}.", field="name", got=name, hint=hint)
        return max(levels)


_UNTIL_NOTICED = "until noticed"
_OWN = ("begin", "end")
"""Lines that a process writes itself."""


def _steps(lines: list[OverlapRecord], name: str) -> Iterator[int]:
    """What each line adds to the number of bodies that run."""
    last = {line.pid: index for index, line in enumerate(lines) if line.kind in (*_OWN, "kill")}
    running: dict[str, OverlapRecord] = {}
    counts_from: dict[int, float] = {}
    for index, line in enumerate(lines):
        if line.kind == "resume":
            waits = line.label == _UNTIL_NOTICED
            counts_from[line.pid] = math.inf if waits else line.at_us + NOTICE_US
        elif line.kind == "noticed":
            counts_from[line.pid] = line.at_us
        elif line.kind == "begin" and line.at_us < counts_from.get(line.pid, 0):
            continue
        elif line.kind == "begin" and line.name == name:
            running[line.body] = line
            yield line.weight
        elif line.kind == "end" and line.body in running:
            yield -running.pop(line.body).weight
        elif line.kind in ("kill", "pause"):
            for body, begun in list(running.items()):
                if line.pid == begun.pid or (line.kind == "kill" and line.pid == begun.parent):
                    del running[body]
                    yield -begun.weight
        dying = line.kind in _OWN and last[line.pid] == index
        if dying and running and not alive(line.pid):
            for body, begun in list(running.items()):
                if begun.pid == line.pid:
                    del running[body]
                    yield -begun.weight


def alive(pid: int) -> bool:
    """Whether a process still runs: a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self").exists() and _status(pid) not in ("", "zombie", "dead")
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _status(pid: int) -> str:
    """Where there is no /proc; "": the process is gone."""
    import psutil  # noqa: PLC0415 — not for every body that is recorded

    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return ""


def stop(pid: int) -> None:
    """SIGSTOP. Returns when none of its threads runs any more: until then one may begin a body or take a lock."""
    os.kill(pid, signal.SIGSTOP)
    while not _stands(pid):
        time.sleep(0.0005)


def _stands(pid: int) -> bool:
    try:
        threads = [thread / "stat" for thread in Path(f"/proc/{pid}/task").iterdir()]
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in threads]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return not Path(f"/proc/{pid}").exists()  # else a thread ended meanwhile
        return _status(pid) in ("", "stopped", "zombie", "dead")
    return set(states) <= {"T", "t", "Z", "X"}
