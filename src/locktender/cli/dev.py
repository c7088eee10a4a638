"""What `dev` runs: an engine for one file, which reloads the file when it is saved and shows what runs.

The engine has a loop in another thread, so that a slow import here does not
delay it. The view reads through a connection of its own for the same reason.

Reloading is all or nothing: the file and the siblings it imports are run anew,
and only if all of that works do the new definitions take the place of the old
ones. Attempts that run go on with the code they started with.
"""

from __future__ import annotations

import asyncio
import importlib
import linecache
import os
import socket
import sys
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.errors import InvalidInput, LocktenderError
from locktender.base.states import TERMINAL_RUNS, RunState
from locktender.cli.context import Context
from locktender.cli.errors import UserCode
from locktender.cli.http_options import check_tokens
from locktender.cli.load_flow import Target, flows_of, load_source
from locktender.cli.more_workers import Wanted, started
from locktender.cli.output import escape
from locktender.cli.server import PORT
from locktender.cli.shutdown import Interrupts
from locktender.cli.tables import ago, lasted, now, shorten, state, table
from locktender.client.bridge import Bridge, StoreReader
from locktender.client.core import Core
from locktender.client.more_workers import MoreWorkers
from locktender.client.pools_async import AsyncPools
from locktender.client.runs_async import AsyncRuns
from locktender.client.views import PoolInfo, RunInfo
from locktender.flows.registry import registry
from locktender.server.options import HttpOptions, http_options
from locktender.server.web import bind, serving, url_of

_OURS = str(Path(__file__).parent.parent.resolve())
Stamp = tuple[int, int]


class ReloadedFile:
    """A file (or module) under watch."""

    def __init__(self, target: Target) -> None:
        # A file changed twice within a second would be taken from its cached form.
        sys.dont_write_bytecode = True
        self._target = target
        before = set(sys.modules)
        self.module: ModuleType = load_source(target)
        self._folder = Path(self.module.__file__ or ".").resolve().parent
        self._names = self._own(before)
        self._stamps = self._read_stamps()

    @property
    def flows(self) -> list[str]:
        """By the names they are submitted by."""
        return sorted(flow.name for flow in flows_of(self.module).values())

    @property
    def uses_processes(self) -> bool:
        """Child processes keep the modules they have imported: new code needs new children."""
        return any(
            step.executor == "process" and step.module in self._names
            for step in registry.steps.values()
        )

    def changed(self) -> bool:
        """Whether a file has changed since this was last asked."""
        stamps = self._read_stamps()
        found, self._stamps = stamps != self._stamps, stamps
        return found

    def reload(self) -> None:
        """Runs the files anew. Raises what is wrong with them; then everything is as before."""
        modules = {name: sys.modules.pop(name) for name in self._names if name in sys.modules}
        steps, flows = dict(registry.steps), dict(registry.flows)
        for known in (registry.steps, registry.flows):
            for name in [name for name, each in known.items() if each.module in self._names]:
                del known[name]
        linecache.checkcache()
        importlib.invalidate_caches()
        before = set(sys.modules)
        try:
            module = load_source(self._target)
        except BaseException:
            for name in self._own(before):
                sys.modules.pop(name, None)
            sys.modules.update(modules)
            registry.steps.clear()
            registry.steps.update(steps)
            registry.flows.clear()
            registry.flows.update(flows)
            raise
        self.module = module
        self._names = self._own(before)
        self._stamps = self._read_stamps()

    def _own(self, before: set[str]) -> set[str]:
        """Modules that came with the file and live beside it."""
        return {
            name for name, module in list(sys.modules.items())
            if name not in before and self._is_own(module)
        } | {self.module.__name__}  # fmt: skip

    def _is_own(self, module: ModuleType) -> bool:
        file: str | None = getattr(module, "__file__", None)
        if file is None:
            return False
        path = Path(file).resolve()
        return (
            path.is_relative_to(self._folder)
            and not path.is_relative_to(_OURS)
            and "site-packages" not in path.parts
        )

    def _read_stamps(self) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}
        for name in self._names:
            file: str | None = getattr(sys.modules.get(name), "__file__", None)
            if file is not None:
                try:
                    stat = Path(file).stat()
                except OSError:  # an editor is about to put the new file in place
                    continue
                stamps[file] = (stat.st_mtime_ns, stat.st_size)
        return stamps


MAX_RUNS = 10
MAX_POOLS = 6
MAX_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Scene:
    at: datetime
    runs: list[RunInfo]
    pools: list[PoolInfo]
    queued: int
    executing: int


async def read_scene(reading: StoreReader) -> Scene:
    core = reading.core
    counts = await core.store.counts()
    return Scene(
        at=now(),
        runs=await AsyncRuns(core).list(limit=MAX_RUNS),
        pools=await AsyncPools(core).list(),
        queued=counts.queued,
        executing=counts.executing,
    )


def _changed_at(run: RunInfo) -> tuple[datetime, int]:
    """When it came to its present state: changes found at once are shown in that order."""
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
        """Something happened that is not a run: a reload, an error."""
        if self._live is None:
            self._console.print(text, soft_wrap=True)
        else:
            self._messages = [*self._messages, text][-MAX_MESSAGES:]

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
                for pool in scene.pools[:MAX_POOLS]
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


FASTEST_SECONDS = 0.25
SHARE = 10
GRACE_US = 5 * SECOND


class DevEngine:
    """An engine on a loop of its own."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        more: MoreWorkers | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        """It answers by HTTP on `listener`, also after a restart."""
        self._settings = settings
        self._listener = listener
        self._more = more
        self._options = options or HttpOptions()
        self._serving = AsyncExitStack()
        self._bridge = Bridge()
        try:
            self._core = self._bridge.call(self._open())
        except BaseException:
            self._bridge.stop()
            raise

    async def _open(self) -> Core:
        overflow = None if self._more is None else self._more.overflow
        core = await Core.open(self._settings, engine=True, overflow=overflow)
        answers = serving(core, self._listener, demand=True, api=True, options=self._options)
        await self._serving.enter_async_context(answers)
        return core

    def announce(self) -> None:
        """The steps of this process have changed."""
        self._bridge.call(self._announce())

    async def _announce(self) -> None:
        engine = self._core.engine
        if engine is not None and engine.leader is not None:
            # In another process the next renewal publishes them; a leader gives its own worker tasks at once.
            engine.leader.worker_changed()
        await self._renew()

    async def _renew(self) -> None:
        if self._more is not None:
            await self._more.renew()

    def restart(self) -> None:
        """A new engine, once what runs has finished within the grace; the rest goes back to the queue."""
        self._bridge.call(self._serving.aclose())
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
        await self._serving.aclose()
        await self._core.close(min(GRACE_US, self._settings.grace_us), self._more)


class DevLoop:
    def __init__(
        self,
        shell: Context,
        settings: Settings,
        target: Target,
        *,
        plain: bool,
        wanted: Wanted,
        port: int | None = None,
        auth: str | None = None,
    ) -> None:
        """`wanted`: what starts more workers; `port`: None is the usual one, or another if that is taken."""
        self._port = port
        self._options = http_options(auth=auth, loopback=True)
        self._wanted = wanted
        self._shell = shell
        self._settings = settings
        self._target = target
        self._plain = plain
        self._clock = SystemClock()

    def run(self) -> int:
        source = ReloadedFile(self._target)
        with Interrupts() as interrupts:
            grace_us = min(GRACE_US, self._settings.grace_us)
            more = started(self._wanted, self._settings, grace_us=grace_us, same_code=True)
            listener = self._bound()
            if self._options.auth == "tokens":
                asyncio.run(check_tokens(self._shell, self._settings))
            host = DevEngine(self._settings, listener, more, self._options)
            names = ", ".join(source.flows) or "no flow yet"
            title = f"[bold]locktender dev[/] {escape(self._target.where)} ({escape(names)}) [dim]Ctrl-C stops[/]"
            screen = DevScreen(self._shell.out.console, title, plain=self._plain)
            screen.say(f"[dim]UI: {url_of(listener)}  API: {url_of(listener)}/api/docs[/]")
            try:
                with StoreReader(self._settings) as reading:
                    self._loop(source, host, reading, screen, interrupts)
            finally:
                screen.close()
                self._stop(host, interrupts)
                listener.close()
        return interrupts.exit_code

    def _bound(self) -> socket.socket:
        if self._port is not None:
            return bind("127.0.0.1", self._port)
        try:
            return bind("127.0.0.1", PORT)
        except InvalidInput:  # another one runs here
            return bind("127.0.0.1", 0)

    def _loop(
        self,
        source: ReloadedFile,
        host: DevEngine,
        reading: StoreReader,
        screen: DevScreen,
        interrupts: Interrupts,
    ) -> None:
        while not interrupts.count:
            before = self._clock.monotonic()
            if source.changed():
                self._reload(source, host, screen)
            if host.lost:
                host.restart()
                screen.say("[yellow]the worker's lease was lost; it has joined again[/]")
            try:
                screen.show(reading.call(read_scene(reading)))
            except LocktenderError as error:
                screen.say(f"[red]{escape(error.message)}[/]")
            cost = (self._clock.monotonic() - before) / SECOND
            interrupts.wait(max(FASTEST_SECONDS, cost * SHARE))

    def _reload(self, source: ReloadedFile, host: DevEngine, screen: DevScreen) -> None:
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

    def _stop(self, host: DevEngine, interrupts: Interrupts) -> None:
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
