"""`run`, `submit`, `dev` and `demo`: flows from a file, run here, or left to an engine elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from locktender.cli.context import Context, command, start_logging
from locktender.cli.http_options import AuthOption
from locktender.cli.more_workers import Label, MaxWorkers, OwnProvisioner

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
Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="TIME", help="It waits so long before it is queued, e.g. 2h."),
]
StartAt = Annotated[
    str | None,
    typer.Option(
        "--start-at", metavar="MOMENT", help="It waits until then, e.g. 2031-05-01T09:00+02:00."
    ),
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
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="WHICH", help="Of a key's waiting runs: newest or oldest."),
]
MaxQueued = Annotated[
    str | None, typer.Option("--max-queued", metavar="N", help="With --keep: how many may wait.")
]
Debounce = Annotated[
    str | None,
    typer.Option(
        "--debounce", metavar="TIME", help="Wait so long; a later run of the key takes over."
    ),
]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle", metavar="RATE", help="So many of the key are let go in a time: 10/min."
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "run", panel=PANEL)(run)
    command(app, "submit", panel=PANEL)(submit)
    command(app, "dev", panel=PANEL)(dev)
    command(app, "demo", panel=PANEL)(demo)


def run(
    shell: Context,
    flow: Flow,
    args: Args = None,
    arg: Arg = None,
    tag: Tag = None,
    priority: Priority = None,
    key: Key = None,
    on_duplicate: OnDuplicate = None,
    keep: Keep = None,
    max_queued: MaxQueued = None,
    debounce: Debounce = None,
    throttle: Throttle = None,
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
    from locktender.base import open_files
    from locktender.cli import arguments, load_flow, more_workers

    start_logging(shell)
    open_files.allow(open_files.FOR_BODIES)
    chosen = load_flow.load(flow)
    submission = read_submission(
        chosen, args, arg, tag, priority, key, on_duplicate, deadline, queue_timeout,
        dispatch_deadline, keep=keep, max_queued=max_queued,
        debounce=debounce, throttle=throttle,
    )  # fmt: skip
    overrides: dict[str, Any] = arguments.settings(set_ or ())
    if pool:
        overrides["pools"] = arguments.pools(pool)
    overrides |= more_workers.given(max_workers, None)
    from locktender.cli.run_flow import Following

    settings = shell.settings(**{"exit_when_stuck": True, **overrides})
    following = Following(shell, settings, plain=plain, quiet=quiet or shell.json)
    return following.run(chosen, submission, declared=list(overrides.get("pools", ())))


_SUBMITTED = {
    "created": "submitted {id} ({flow})",
    "attached": "attached to {id} ({flow}): this active run has the same key; nothing was submitted",
    "skipped": "skipped: {id} ({flow}) has the same key; nothing was submitted",
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
    keep: Keep = None,
    max_queued: MaxQueued = None,
    debounce: Debounce = None,
    throttle: Throttle = None,
    deadline: Deadline = None,
    queue_timeout: QueueTimeout = None,
    dispatch_deadline: DispatchDeadline = None,
    delay: Delay = None,
    start_at: StartAt = None,
) -> None:
    """Hand a run to an engine that runs elsewhere, and return at once.

    It waits in the store until an engine that knows its steps is there. Without the code here, give the name of
    a flow that a worker has announced: a worker that knows it traces it.
    """
    from locktender.base.errors import NotFound
    from locktender.cli import load_flow

    chosen: Any = flow
    missing: NotFound | None = None
    try:
        chosen = load_flow.load(flow)
    except NotFound as error:
        if load_flow.parse(flow).where.endswith(".py"):
            raise
        missing = error
    submission = read_submission(
        None if missing else chosen, args, arg, tag, priority, key, on_duplicate, deadline,
        queue_timeout, dispatch_deadline, delay, start_at, keep=keep, max_queued=max_queued,
        debounce=debounce, throttle=throttle,
    )  # fmt: skip
    with shell.connect(create=missing is None) as client:
        try:
            made = client.submit_many(chosen, [submission])[0]
        except NotFound as error:
            # Neither code nor a name: what is said of the name knows what was meant, if anything does.
            raise (
                error if missing is None or "Did you mean" in (error.hint or "") else missing
            ) from None
        info = made.info()
        alive = [worker for worker in client.workers.list() if worker.alive]
    how = made.submitted or "created"
    shell.done(
        _SUBMITTED[how].format(id=made.id, flow=info.flow),
        {**msgspec.structs.asdict(info), "submitted": how},
    )
    if not alive and how == "created":
        where = flow.rpartition(":")[0] or flow
        shell.note(
            f"No worker is on this store yet: locktender worker {where},"
            f" or, with an engine in the same process, locktender dev {where}"
        )
    elif how == "created" and all(worker.draining for worker in alive):
        shell.note(f"Every worker on this store is draining: locktender why {made.id}")


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
    delay: str | None = None,
    start_at: str | None = None,
    *,
    keep: Any = None,
    max_queued: str | None = None,
    debounce: str | None = None,
    throttle: str | None = None,
) -> Any:
    """The options of `run` and `submit` as one submission. Without a flow its code is elsewhere."""
    from locktender.cli.arguments import duration, moment, read_call, read_named_call, tags, whole
    from locktender.client.submission import Submission
    from locktender.client.submit import check_duplicate

    check_duplicate(on_duplicate, key)
    call = (
        read_named_call(args, named or ())
        if flow is None
        else read_call(flow.definition, args, named or ())
    )
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
        delay=duration(delay),
        start_at=moment(start_at, "start_at"),
        keep=keep,
        max_queued=whole(max_queued, "max_queued"),
        debounce=duration(debounce),
        throttle=throttle,
    )


def dev(
    shell: Context,
    file: Annotated[str, typer.Argument(metavar="FILE.py", help="Or package.module.")],
    pool: Pool = None,
    set_: Set = None,
    max_workers: MaxWorkers = None,
    label: Label = None,
    provisioner: OwnProvisioner = None,
    plain: Plain = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65_535,
            show_default=False,
            help="Of the HTTP API, on this machine alone: 8470, or a free one if that is taken.",
        ),
    ] = None,
    auth: AuthOption = None,
) -> int:
    """Run an engine for a file and reload it when it changes; Ctrl-C stops.

    Runs come from elsewhere: locktender submit FILE.py:flow, or the HTTP API.

    With --max-workers it starts more workers when its own cannot take what waits;
    they end when they have been idle for a while, and with this process.
    """
    from locktender.base import open_files
    from locktender.cli import arguments, load_flow, more_workers

    start_logging(shell)
    open_files.allow(open_files.FOR_BODIES)
    target = load_flow.parse(file)
    if target.flow and target.is_file:
        target = target._replace(flow="")
    overrides: dict[str, Any] = arguments.settings(set_ or ())
    if pool:
        overrides["pools"] = arguments.pools(pool)
    overrides |= more_workers.given(max_workers, label)
    from locktender.cli.dev import DevLoop

    settings = shell.settings(**{"exit_when_stuck": True, **overrides})
    wanted = more_workers.wanted_by_dev(target, provisioner, settings)
    return DevLoop(shell, settings, target, plain=plain, wanted=wanted, port=port, auth=auth).run()


def demo(
    shell: Context,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the store, to look into it after.", show_default=False, metavar=""
        ),
    ] = False,
) -> int:
    """See it work: limits, a killed worker and its recovery, in under 20 seconds."""
    import shutil
    import tempfile

    from locktender.cli.demo import Demo

    folder = Path(tempfile.mkdtemp(prefix="locktender-demo-"))
    try:
        return Demo(shell, folder, keep=keep).run()
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
