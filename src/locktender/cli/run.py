"""`run` and `submit`: a flow from a file, run here and followed to its end, or left to an engine elsewhere.

Beside the engine's threads, this one draws and counts Ctrl-C, another waits for
the run to end. The first interrupt cancels the run and waits for that; the
second ends the process.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from locktender.base import codec
from locktender.base.clock import SECOND, SystemClock
from locktender.base.config import Settings
from locktender.base.durations import spoken
from locktender.base.errors import LocktenderError, RunFailed
from locktender.base.names import UNLIMITED
from locktender.cli.context import Context, command, start_logging
from locktender.cli.errors import BAD, OK, show
from locktender.cli.interrupts import Interrupts
from locktender.cli.load_flow import AnyFlow
from locktender.cli.more_workers import MaxWorkers
from locktender.cli.run_view import RunView, Screen, Silent, Watcher, screen_for
from locktender.client.client import Client
from locktender.client.more_workers import more_workers
from locktender.client.run import Run
from locktender.client.submit import Submission

FASTEST_SECONDS = 0.1
SHARE = 10
"""Looking takes at most one part in so many of the time: a huge run is looked at less often."""
LEAVE_US = 5 * SECOND
"""How long other runs' tasks that this engine took may go on once the run is over."""


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
                self._tell_overruled(client, declared)
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
                Silent() if self._quiet else screen_for(self._shell.notes, plain=self._plain)
            )
            asked = False
            try:
                while True:
                    before = self._clock.monotonic()
                    view = watcher.look(run.id)
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
        elif not interrupts.count:  # who interrupts knows why it was cancelled
            show(failure, self._shell)
        if not self._quiet:
            self._shell.note(summary(view))
        if failure is None:
            return OK
        return interrupts.exit_code if interrupts.count else BAD

    def _tell_overruled(self, client: Client, declared: list[str]) -> None:
        """Says where a live setting of a pool is in force instead of --pool, which is only a default."""
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
    }
    parts = [f"{done} done", *(f"{number} {word}" for word, number in others.items() if number)]
    colour = "green" if view.state == "succeeded" else "red"
    return (
        f"[bold {colour}]{view.state}[/] in {spoken(view.took_us or view.elapsed_us)}: {', '.join(parts)}"
        f" [dim]· run {view.id}[/]"
    )


PANEL = "Run flows"

Flow = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:FLOW", help="Or package.module:FLOW. One flow there? Its name is optional."
    ),
]
Args = Annotated[
    str | None,
    typer.Option("--args", metavar="JSON", help="Arguments: an array, or an object by name."),
]
Arg = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="NAME=VALUE", help="One argument, JSON or text. Repeatable."),
]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="KEY=VALUE", help="A tag of the run. Repeatable."),
]
Priority = Annotated[
    str | None, typer.Option("--priority", metavar="N", help="Higher goes first; default 0.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="TEXT", help="At most one active run has it; others attach."),
]
OnDuplicate = Annotated[
    str | None,
    typer.Option(
        "--on-duplicate",
        metavar="WHAT",
        help="With --key: attach (the default), reject, replace or skip_if_finished.",
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="The run ends timed_out then, e.g. 10m."),
]
QueueTimeout = Annotated[
    str | None,
    typer.Option("--queue-timeout", metavar="TIME", help="How long a task may wait at its gates."),
]
DispatchDeadline = Annotated[
    str | None,
    typer.Option("--dispatch-deadline", metavar="TIME", help="How long one may wait for a worker."),
]
Pool = Annotated[
    list[str] | None,
    typer.Option("--pool", metavar="NAME=N", help="A pool's default limit. Repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. grace=5s. Repeatable."),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain", help="Lines instead of a moving picture.", show_default=False, metavar=""
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Only the result, and errors.", show_default=False, metavar=""
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "run", panel=PANEL)(run)
    command(app, "submit", panel=PANEL)(submit)


def run(
    shell: Context,
    flow: Flow,
    args: Args = None,
    arg: Arg = None,
    tag: Tag = None,
    priority: Priority = None,
    key: Key = None,
    on_duplicate: OnDuplicate = None,
    deadline: Deadline = None,
    queue_timeout: QueueTimeout = None,
    dispatch_deadline: DispatchDeadline = None,
    pool: Pool = None,
    set_: Set = None,
    max_workers: MaxWorkers = None,
    plain: Plain = False,
    quiet: Quiet = False,
) -> int:
    """Run a flow here, watch it, and print its result as JSON.

    Ctrl-C cancels the run cleanly; a second one ends everything at once.
    """
    from locktender.cli import arguments, load_flow, more_workers

    start_logging(shell)
    chosen = load_flow.load(flow)
    submission = read_submission(
        chosen, args, arg, tag, priority, key, on_duplicate, deadline, queue_timeout,
        dispatch_deadline,
    )  # fmt: skip
    overrides: dict[str, Any] = arguments.settings(set_ or ())
    if pool:
        overrides["pools"] = arguments.pools(pool)
    overrides |= more_workers.given(max_workers, None)
    settings = shell.settings(**{"exit_when_stuck": True, **overrides})
    following = Following(shell, settings, plain=plain, quiet=quiet or shell.json)
    return following.run(chosen, submission, declared=list(overrides.get("pools", ())))


_SUBMITTED = {
    "created": "submitted {id} ({flow})",
    "attached": "attached to {id} ({flow}): this active run has the same key; nothing was submitted",
    "skipped": "skipped: {id} ({flow}) with the same key has succeeded; nothing was submitted",
}


def submit(
    shell: Context,
    flow: Flow,
    args: Args = None,
    arg: Arg = None,
    tag: Tag = None,
    priority: Priority = None,
    key: Key = None,
    on_duplicate: OnDuplicate = None,
    deadline: Deadline = None,
    queue_timeout: QueueTimeout = None,
    dispatch_deadline: DispatchDeadline = None,
) -> None:
    """Hand a run to an engine that runs elsewhere, and return at once.

    It waits in the store until an engine that knows its steps is there.
    """
    from locktender.cli import load_flow

    chosen = load_flow.load(flow)
    submission = read_submission(
        chosen, args, arg, tag, priority, key, on_duplicate, deadline, queue_timeout,
        dispatch_deadline,
    )  # fmt: skip
    with shell.connect(create=True) as client:
        made = client.submit_many(chosen, [submission])[0]
        info = made.info()
        alive = any(worker.alive and not worker.draining for worker in client.workers.list())
    how = made.submitted or "created"
    shell.done(
        _SUBMITTED[how].format(id=made.id, flow=info.flow), {**asdict(info), "submitted": how}
    )
    if not alive and how == "created":
        where = flow.rpartition(":")[0] or flow
        shell.note(
            f"No worker is on this store yet: locktender worker {where},"
            f" or, with an engine in the same process, locktender dev {where}"
        )


def read_submission(
    flow: Any,
    args: str | None,
    named: list[str] | None,
    tag: list[str] | None,
    priority: str | None,
    key: str | None,
    on_duplicate: Any,
    deadline: str | None,
    queue_timeout: str | None,
    dispatch_deadline: str | None,
) -> Any:
    """The options of `run` and `submit` as one submission."""
    from locktender.cli.arguments import duration, read_call, tags, whole
    from locktender.client.submit import Submission, check_duplicate

    check_duplicate(on_duplicate, key)
    call = read_call(flow.definition, args, named or ())
    return Submission(
        call.args,
        call.kwargs,
        tags=tags(tag or ()),
        priority=whole(priority, "priority"),
        key=key,
        on_duplicate=on_duplicate or "attach",
        deadline=duration(deadline),
        queue_timeout=duration(queue_timeout),
        dispatch_deadline=duration(dispatch_deadline),
    )
