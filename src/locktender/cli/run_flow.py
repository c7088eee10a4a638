"""One flow run in an engine of this process, shown until it ends.

Beside the engine's threads, this one draws and counts Ctrl-C, another waits for
the run to end. The first interrupt cancels the run and waits for that; the
second ends the process.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

from locktender.base import codec
from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.durations import spoken
from locktender.base.errors import LocktenderError, RunFailed
from locktender.base.names import UNLIMITED
from locktender.cli.context import Context
from locktender.cli.errors import BAD, OK, show
from locktender.cli.load_flow import AnyFlow
from locktender.cli.output import escape
from locktender.cli.run_picture import Screen, Silent, screen_for
from locktender.cli.run_view import RunView, Watcher
from locktender.cli.shutdown import Interrupts
from locktender.client.client import Client
from locktender.client.more_workers import more_workers
from locktender.client.run import Run
from locktender.client.submission import Submission

FASTEST_SECONDS = 0.1
SHARE = 10
"""Reading takes at most one part in so many of the time: a huge run is read less often."""
LEAVE_US = 5 * SECOND
"""How long tasks of other runs may go on once the run is over."""


class Following:
    def __init__(self, shell: Context, settings: Settings, *, plain: bool, quiet: bool) -> None:
        self._shell = shell
        self._settings = settings
        self._plain = plain
        self._quiet = quiet
        self._clock = SystemClock()

    def run(self, flow: AnyFlow, submission: Submission, declared: list[str]) -> int:
        with Interrupts() as interrupts:
            client = Client(self._settings, engine=True, more=more_workers(self._settings, None))
            try:
                self._note_overruled(client, declared)
                run = client.submit_many(flow, [submission])[0]
                view = self._follow(run, interrupts)
                return self._end(run, view, interrupts)
            finally:
                client.close(min(LEAVE_US, self._settings.grace_us) / SECOND)

    def _follow(self, run: Run[Any], interrupts: Interrupts) -> RunView:
        """Until the run has ended."""
        waiter = threading.Thread(target=self._wait, args=(run, interrupts), daemon=True)
        waiter.start()
        with Watcher(self._settings) as watcher:
            screen: Screen = (
                Silent()
                if self._quiet
                else screen_for(self._shell.notes.console, plain=self._plain)
            )
            asked = False
            try:
                while True:
                    before = self._clock.monotonic()
                    view = watcher.read(run.id)
                    screen.show(view)
                    if view.ended:
                        return view
                    if interrupts.count > 1:
                        screen.close()
                        self._shell.note(
                            "killed; the run ends cancelled when an engine starts here"
                        )
                        os._exit(interrupts.exit_code)
                    if interrupts.count and not asked:
                        asked = True
                        screen.say("cancelling … Ctrl-C again ends everything at once")
                        run.cancel("interrupted")
                        continue
                    cost = (self._clock.monotonic() - before) / SECOND
                    interrupts.wait(max(FASTEST_SECONDS, cost * SHARE))
            finally:
                screen.close()

    def _wait(self, run: Run[Any], interrupts: Interrupts) -> None:
        with suppress(LocktenderError):  # the client was closed first
            run.wait()
        interrupts.wake()

    def _end(self, run: Run[Any], view: RunView, interrupts: Interrupts) -> int:
        value: Any = None
        failure: RunFailed | None = None
        try:
            value = run.result()
        except RunFailed as error:
            failure = error
        if self._shell.json:
            error = None if failure is None else failure.as_dict()
            raw = codec.encode(value, "result")
            sys.stdout.write(_answer(run.id, view, raw, error) + "\n")
        elif failure is None:
            sys.stdout.write(codec.encode(value, "result").decode() + "\n")
        elif not interrupts.count:  # after an interrupt the reason is known
            show(failure, self._shell)
        if not self._quiet:
            self._shell.note(summary(view))
        if failure is None:
            return OK
        return interrupts.exit_code if interrupts.count else BAD

    def _note_overruled(self, client: Client, declared: list[str]) -> None:
        """Notes where a live setting of a pool is in force instead of --pool, which is only a default."""
        for name in declared:
            pool = client.pools.get(name)
            wanted = self._settings.pools[name].limit
            in_force = UNLIMITED if pool.limit is None else pool.limit
            if in_force == wanted:
                continue
            shown, limit = escape(name), pool.limit_text
            if pool.source == "live":
                self._shell.note(
                    f"[yellow]note:[/] pool {shown} has a live limit of {limit}, which"
                    f" stands above --pool; locktender pools reset {shown} takes it away"
                )
            else:
                self._shell.note(
                    f"[yellow]note:[/] pool {shown} has a limit of {limit}, not what --pool asks for:"
                    f" another engine's configuration is in force"
                )


def _answer(run_id: str, view: RunView, result: bytes, error: dict[str, Any] | None) -> str:
    fields = {
        "id": codec.encode(run_id, "id"),
        "flow": codec.encode(view.flow, "flow"),
        "state": codec.encode(str(view.state), "state"),
        "seconds": codec.encode(view.elapsed_us / SECOND, "seconds"),
        "tasks": codec.encode(view.done, "tasks"),
        "result": result,
        "error": codec.encode(error, "error"),
    }
    return codec.join_object(fields).decode()


def summary(view: RunView) -> str:
    """`succeeded in 1.2s: 12 tasks · run 06gx…`"""
    done = sum(step.done for step in view.steps)
    others = {
        "failed": sum(step.failed for step in view.steps),
        "cancelled": sum(step.cancelled for step in view.steps),
        "skipped": sum(step.skipped for step in view.steps),
        "not called for an error": sum(step.passed for step in view.steps),
    }
    parts = [f"{done} done", *(f"{number} {word}" for word, number in others.items() if number)]
    colour = "green" if view.state == "succeeded" else "red"
    return (
        f"[bold {colour}]{view.state}[/] in {spoken(view.took_us or view.elapsed_us)}: {', '.join(parts)}"
        f" [dim]· run {view.id}[/]"
    )
