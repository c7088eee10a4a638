"""The loop behind `dev`: draw, look for changes, take them up; until an interrupt.

The engine runs on a loop of its own, in a thread beside this one, so that a slow
import here never makes it late. What is read for the picture comes over a third
connection, for the same reason.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from rich.markup import escape

from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import LocktenderError
from locktender.cli.dev_screen import DevScreen, look
from locktender.cli.failures import UserCode
from locktender.cli.interrupts import Interrupts
from locktender.cli.more_workers import Wanted, started
from locktender.cli.reading import Reading
from locktender.cli.reloading import Source
from locktender.cli.shell import Shell
from locktender.cli.targets import Target
from locktender.client.bridge import Bridge
from locktender.client.core import Core
from locktender.client.more_workers import MoreWorkers

FASTEST_SECONDS = 0.25
SHARE = 10
GRACE_US = 5 * SECOND


class Host:
    """An engine on a loop of its own."""

    def __init__(self, settings: Settings, more: MoreWorkers | None = None) -> None:
        self._settings = settings
        self._more = more
        self._bridge = Bridge()
        try:
            self._core = self._bridge.call(self._open())
        except BaseException:
            self._bridge.stop()
            raise

    async def _open(self) -> Core:
        overflow = None if self._more is None else self._more.overflow
        return await Core.open(self._settings, engine=True, overflow=overflow)

    def announce(self) -> None:
        """The steps of this process have changed."""
        self._bridge.call(self._announce())

    async def _announce(self) -> None:
        engine = self._core.engine
        if engine is not None and engine.coordinator is not None:
            # Elsewhere the next beat tells; who leads offers tasks to itself at once.
            engine.coordinator.describe_local()
        await self._renew()

    async def _renew(self) -> None:
        if self._more is not None:
            await self._more.renew()

    def restart(self) -> None:
        """A new engine, once what runs has finished within the grace; the rest goes back to the queue."""
        self._bridge.call(self._core.close(min(GRACE_US, self._settings.grace_us)))
        self._core = self._bridge.call(self._open())
        self._bridge.call(self._renew())

    @property
    def lost(self) -> bool:
        engine = self._core.engine
        return engine is not None and engine.lost

    def close(self) -> None:
        try:
            self._bridge.call(self._close())
        finally:
            self._bridge.stop()

    async def _close(self) -> None:
        await self._core.close(min(GRACE_US, self._settings.grace_us), self._more)


class DevLoop:
    def __init__(
        self,
        shell: Shell,
        settings: Settings,
        target: Target,
        *,
        plain: bool,
        who: Wanted,
    ) -> None:
        """`who` starts more workers, if anybody."""
        self._who = who
        self._shell = shell
        self._settings = settings
        self._target = target
        self._plain = plain
        self._clock = SystemClock()

    def run(self) -> int:
        source = Source(self._target)
        with Interrupts() as interrupts:
            grace_us = min(GRACE_US, self._settings.grace_us)
            more = started(self._who, self._settings, grace_us=grace_us, same_code=True)
            host = Host(self._settings, more)
            names = ", ".join(source.flows) or "no flow yet"
            title = f"[bold]locktender dev[/] {escape(self._target.where)} ({escape(names)}) [dim]Ctrl-C stops[/]"
            screen = DevScreen(self._shell.out, title, plain=self._plain)
            try:
                with Reading(self._settings) as reading:
                    self._go_on(source, host, reading, screen, interrupts)
            finally:
                screen.close()
                self._stop(host, interrupts)
        return interrupts.exit_code

    def _go_on(
        self,
        source: Source,
        host: Host,
        reading: Reading,
        screen: DevScreen,
        interrupts: Interrupts,
    ) -> None:
        while not interrupts.count:
            before = self._clock.monotonic()
            if source.changed():
                self._take_up(source, host, screen)
            if host.lost:
                host.restart()
                screen.say("[yellow]the worker's lease was lost; it has joined again[/]")
            try:
                screen.show(look(reading))
            except LocktenderError as error:
                screen.say(f"[red]{escape(error.message)}[/]")
            cost = (self._clock.monotonic() - before) / SECOND
            interrupts.wait(max(FASTEST_SECONDS, cost * SHARE))

    def _take_up(self, source: Source, host: Host, screen: DevScreen) -> None:
        try:
            source.reload()
        except UserCode as error:
            for line in error.trace.rstrip().splitlines():
                screen.say(f"[dim]{escape(line)}[/]")
            screen.say(f"[red]{escape(error.message)}[/]; the old code keeps running")
            return
        except LocktenderError as error:
            screen.say(f"[red]{escape(error.message)}[/]; the old code keeps running")
            return
        if source.uses_processes:
            host.restart()
        else:
            host.announce()
        screen.say(f"[green]reloaded[/] ({escape(', '.join(source.flows))})")

    def _stop(self, host: Host, interrupts: Interrupts) -> None:
        """Let what runs finish within the grace; another interrupt does not wait for it."""
        stopping = threading.Thread(target=_quietly, args=(host.close,), daemon=True)
        asked = interrupts.count
        if asked:
            self._shell.note("stopping … what runs may finish; Ctrl-C again ends it at once")
        stopping.start()
        while stopping.is_alive():
            if interrupts.count > max(asked, 1):
                os._exit(interrupts.exit_code)
            stopping.join(0.05)


def _quietly(close: Any) -> None:
    try:
        close()
    except LocktenderError as error:
        # The store is gone or busy: leases end by themselves.
        print(f"locktender: {error.message}")
