"""`runs`: what was submitted, how it goes, and how it ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locktender.cli.bulk import DryRun, FlowName, Some, Status, Tag, Yes, choose, proceeds
from locktender.cli.context import Context, command, group
from locktender.cli.tables import shown

if TYPE_CHECKING:
    from datetime import datetime

    from locktender.client.client import Client
    from locktender.client.run import Run
    from locktender.client.views import LogInfo, RunInfo, TaskInfo

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, or the part of it that a list shows.")
]
Limit = Annotated[str, typer.Option("--limit", "-n", metavar="N", help="How many at most.")]


def register(app: typer.Typer) -> None:
    noun = group(app, "runs", "Runs: list, show, logs, cancel, retry, pause, resume.")
    command(noun, "list")(list_)
    command(noun, "show")(show)
    command(noun, "logs")(logs)
    command(noun, "cancel")(cancel)
    command(noun, "retry")(retry)
    command(noun, "pause")(pause)
    command(noun, "resume")(resume)


def list_(
    shell: Context,
    status: Status = None,
    tag: Tag = None,
    flow: FlowName = None,
    limit: Limit = "20",
) -> None:
    """The newest runs."""
    from locktender.cli import arguments
    from locktender.cli.tables import ago, lasted, now, shorten, state, table, tags

    with shell.connect() as client:
        found = client.runs.list(
            status or None, arguments.tags(tag or ()), flow, arguments.whole(limit, "limit") or 0
        )
        paused = {each.name for each in client.limits.list() if each.kind in ("flow", "run")}
    if shell.json:
        shell.data(found)
        return
    if not found:
        filtered = status or tag or flow
        shell.say(
            "[dim]No run matches.[/]"
            if filtered
            else "[dim]No runs yet.[/] Start one: locktender run FILE.py:flow"
        )
        return
    since, short = now(), shorten(run.id for run in found)
    rows = [
        [
            short[run.id],
            shown(run.flow),
            state(run.state) + (" (paused)" if _paused(run, paused) else ""),
            ago(run.queued_at, since),
            lasted(run.started_at, run.ended_at, since),
            tags(run.tags),
        ]
        for run in found
    ]
    shell.out.print(table("run", "flow…", "state", "submitted", "took", "tags…", rows=rows))


def _paused(run: RunInfo, paused: set[str]) -> bool:
    from locktender.base.states import TERMINAL_RUNS

    named = {f"flow {run.flow}", f"run {run.id}"}
    return run.state not in TERMINAL_RUNS and not named.isdisjoint(paused)


def show(
    shell: Context,
    run: RunName,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="The tasks, too.", show_default=False, metavar="")
    ] = False,
    limit: Annotated[
        str, typer.Option("--limit", "-n", metavar="N", help="How many tasks at most.")
    ] = "1000",
) -> None:
    """One run: its steps, what it waits for, its result or its error."""
    from locktender.cli import arguments
    from locktender.cli.run_view import Watcher, view_through
    from locktender.store.open import is_server

    settings = shell.settings()
    with shell.connect() if is_server(settings.url) else Watcher(settings) as opened:
        found = opened.runs.find(run)
        why = found.why() if shell.json else None
        view = (
            opened.read(found.id, why) if isinstance(opened, Watcher) else view_through(found, why)
        )
        info = found.info()
        several = found.tasks() if tasks or shell.json else []
        result = _result(found, info)
        trace = _trace(found, info)
    if shell.json:
        shell.data(
            {"run": info, "steps": view.steps, "tasks": several, "why": why, "result": result}
        )
        return
    from locktender.cli.run_picture import Picture
    from locktender.cli.tables import ago, now, tags

    since = now()
    shell.out.print(Picture(view, 10_000))
    queued = "queued again" if info.generation else "submitted"
    facts = [f"flow {shown(info.flow)}", f"{queued} {ago(info.queued_at, since)}"]
    facts += [f"priority {info.priority}"] if info.priority else []
    facts += [f"key {shown(info.key)}"] if info.key else []
    facts += [f"tags {tags(info.tags)}"] if info.tags else []
    facts += [f"retried {info.generation} ×"] if info.generation else []
    shell.say(f"[dim]{' · '.join(facts)}[/]")
    shell.say(f"[dim]id {info.id}[/]")
    _show_end(shell, info, result, trace)
    if several:
        most = arguments.whole(limit, "limit") or 0
        _show_tasks(shell, several[:most])
        if len(several) > most:
            shell.note(f"These are the first {most:,} of {len(several):,} tasks: --limit N")


def _result(run: Any, info: RunInfo) -> Any:
    import msgspec

    from locktender.base import codec

    return msgspec.Raw(codec.encode(run.result(), "result")) if info.state == "succeeded" else None


def _trace(run: Any, info: RunInfo) -> str | None:
    """The worker's traceback: a run keeps its error short, and the task that failed has all of it."""
    from locktender.base.errors import RunFailed

    if info.error is None or info.error.node is None:
        return None
    try:
        run.result()
    except RunFailed as error:
        return error.traceback
    return None


def _show_end(shell: Context, info: RunInfo, result: Any, trace: str | None) -> None:
    from locktender.cli.errors import theirs

    if info.error is not None:
        at = f" at step {shown(info.error.node)}" if info.error.node else ""
        shell.say(f"[bold red]error[/]{at}: {shown(info.error.text())}")
        if lines := theirs(trace):
            shell.out.print(shown(lines.rstrip()), style="dim", soft_wrap=True)
        shell.say(f"[dim]Try again, finished steps kept: locktender runs retry {info.id[:12]}[/]")
    elif result is not None:
        text = bytes(result).decode()
        cut = f"{text[:500]} … ({len(text):,} characters; --json has all)"
        shell.say(f"[bold]result[/] {shown(text if len(text) <= 500 else cut)}")


def _show_tasks(shell: Context, tasks: list[TaskInfo]) -> None:
    from locktender.cli.tables import lasted, now, state, table

    since = now()
    rows = [
        [
            str(task.id),
            shown(task.name if task.index is None else f"{task.name}[{task.index}]"),
            state("cached" if task.cached else task.state),
            str(task.attempt),
            "-"
            if task.state in ("requested", "scheduled")
            else lasted(task.started_at, task.ended_at, since),
            shown(_details_of(task, since)),
        ]
        for task in tasks
    ]
    shell.out.print(
        table(
            ">task", "step…", "state", ">tries", "took", "progress / waits for / error…", rows=rows
        )
    )


def _details_of(task: TaskInfo, now: datetime) -> str:
    from locktender.cli.tables import stop_note

    # First that it does not stop: progress may be long, and is cut.
    notes = [stop_note(task.unstopped, now)] if task.unstopped is not None else []
    notes += [str(task.progress)] if task.progress is not None else []
    if notes:
        return "; ".join(notes)
    return task.wait_reason or (task.error.message if task.error else "")


def logs(
    shell: Context,
    run: RunName,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Only of this task.")
    ] = None,
    limit: Limit = "10000",
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on with what is logged, until the run has ended."),
    ] = False,
) -> None:
    """The newest lines that the bodies of a run logged, about a second after they did.

    Of each attempt the last 1,000 lines or 64 kB are kept.

    locktender runs logs 06gy8rm99095 --follow

    locktender runs logs 06gy8rm99095 --task 1048576 --json
    """
    from contextlib import closing

    from locktender.cli import arguments
    from locktender.cli.answers import as_json
    from locktender.client.run_logs import MAX_LIMIT

    with shell.connect() as client:
        found = client.runs.find(run)
        only = arguments.whole(task, "task")
        _check_task(found, only)
        if follow:
            with closing(found.follow_logs(only)) as following:
                for line in following:
                    if shell.json:
                        sys.stdout.write(as_json(line).decode() + "\n")
                        sys.stdout.flush()
                    else:
                        _show_line(shell, line)
            return
        most = arguments.whole(limit, "limit") or 0
        # One more than is shown tells whether there are more.
        lines = found.logs(only, limit=most + 1 if 0 < most < MAX_LIMIT else most)
    cut = len(lines) >= MAX_LIMIT if most == MAX_LIMIT else len(lines) > most
    lines = lines[-most:]
    if cut:
        shell.note(f"[dim]{_cut_note(most, MAX_LIMIT)}[/]")
    if shell.json:
        shell.data(lines)
        return
    if not lines:
        shell.say("[dim]Nothing was logged so far.[/]")
    for line in lines:
        _show_line(shell, line)


def _check_task(run: Run[Any], task: int | None) -> None:
    """Refuses a number that no task of the run can have; it would look like a task that logged nothing."""
    from locktender.base.errors import NotFound
    from locktender.base.ids import run_of

    if task is None or run_of(task) == run.info().number:
        return
    hint = f"To list its tasks: locktender runs show {run.id} --tasks"
    raise NotFound(f"run {run.id} has no task {task}.", field="task", got=task, hint=hint)


def _cut_note(most: int, limit: int) -> str:
    if most < limit:
        return f"Only the last {most:,} lines are shown. More: --limit {limit}."
    return f"Only the last {most:,} lines are shown. Those of one task: --task TASK."


def _show_line(shell: Context, line: LogInfo) -> None:
    where = line.name if line.index is None else f"{line.name}[{line.index}]"
    tries = f" #{line.attempt}" if line.attempt > 1 else ""
    shell.out.print(
        f"[dim]{line.at:%H:%M:%S}.{line.at.microsecond // 1000:03d}[/] {shown(line.level):<8}"
        f"[bold]{shown(where)}{tries}[/] {shown(line.message)}",
        soft_wrap=True,
    )


Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Kept in the history, shown by why.")
]
ACTIVE = ("waiting", "queued", "running", "cancelling", "held")
RETRIED_STATES = ("failed", "cancelled", "timed_out")


def cancel(
    shell: Context,
    run: Some = None,
    status: Status = None,
    tag: Tag = None,
    flow: FlowName = None,
    reason: Reason = "",
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for clean-up steps.", metavar="")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Ask for runs to end cancelled: by id, or all active ones that match a filter.

    locktender runs cancel 06gy8rm99095

    locktender runs cancel --flow import --state queued --tag tenant=acme --yes
    """
    with shell.connect() as client:
        chosen = choose(client, "cancel", run, status, tag, flow)
        if proceeds(shell, client, chosen, "cancel", ACTIVE, dry_run=dry_run, yes=yes):
            asked = client.runs.cancel(chosen.runs, **chosen.filters(), reason=reason, force=force)
            shell.done(f"cancel {asked}", asked)


def retry(
    shell: Context,
    run: Some = None,
    status: Status = None,
    tag: Tag = None,
    flow: FlowName = None,
    from_step: Annotated[
        str | None,
        typer.Option("--from", metavar="STEP", help="Run this step and all behind it again, too."),
    ] = None,
    with_args: Annotated[
        str | None,
        typer.Option("--with-args", metavar="JSON", help="A new run with these arguments changed."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Queue ended runs again; steps that finished are not run again.

    locktender runs retry 06gy8rm99095 --from publish

    locktender runs retry --state failed --tag tenant=acme
    """
    with shell.connect() as client:
        if from_step is None and with_args is None:
            chosen = choose(client, "retry", run, status, tag, flow)
            if not proceeds(
                shell, client, chosen, "retry", RETRIED_STATES, dry_run=dry_run, yes=yes
            ):
                return
            again = client.runs.retry(chosen.runs, **chosen.filters())
        else:
            again = _retry_changed(client, run, from_step, with_args)
        alive = any(worker.alive for worker in client.workers.list())
    ids = [each.id for each in again]
    count = f"{len(ids):,} run{'s' if len(ids) != 1 else ''}"
    said = f"queued again: {count}" if ids else "nothing to retry"
    if with_args is not None:
        said = "\n".join(f"submitted {each}" for each in ids)
    shell.done(said, {"ids": ids})
    if ids and not alive:
        shell.note("No engine runs on this store now: locktender dev FILE.py")


def _retry_changed(
    client: Client, run: list[str] | None, from_step: str | None, with_args: str | None
) -> list[Run[Any]]:
    import msgspec

    from locktender.base.errors import InvalidInput

    if not run:
        raise InvalidInput(
            "say which run.", field="run", hint="--from and --with-args take ids of runs."
        )
    args: dict[str, Any] | None = None
    if with_args is not None:
        try:
            args = msgspec.json.decode(with_args, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"--with-args is not a JSON object: {error}.",
                field="with_args",
                got=with_args,
                hint="""e.g. --with-args '{"day": "2026-11-01"}'""",
            ) from error
    return [client.runs.find(each).retry(from_step=from_step, args=args) for each in run]


def pause(
    shell: Context,
    run: Some = None,
    status: Status = None,
    tag: Tag = None,
    flow: FlowName = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Start nothing more of these runs; what runs goes on. They hold no place meanwhile.

    locktender runs pause 06gy8rm99095 --reason "waits for the new key"

    locktender runs pause --tag tenant=acme --state queued
    """
    with shell.connect() as client:
        chosen = choose(client, "pause", run, status, tag, flow)
        if proceeds(shell, client, chosen, "pause", ACTIVE, dry_run=dry_run, yes=yes):
            ids = client.runs.pause(chosen.runs, reason, **chosen.filters())
            shell.done(f"paused: {_several(ids)}", {"paused": ids})


def resume(
    shell: Context,
    run: Some = None,
    status: Status = None,
    tag: Tag = None,
    flow: FlowName = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let paused runs go on.

    locktender runs resume 06gy8rm99095

    locktender runs resume --tag tenant=acme
    """
    with shell.connect() as client:
        chosen = choose(client, "resume", run, status, tag, flow)
        if proceeds(shell, client, chosen, "resume", ACTIVE, dry_run=dry_run, yes=yes):
            ids = client.runs.resume(chosen.runs, **chosen.filters())
            shell.done(f"resumed: {_several(ids)}", {"resumed": ids})


def _several(ids: list[str]) -> str:
    if not ids:
        return "no run"
    return ", ".join(ids) if len(ids) <= 3 else f"{len(ids):,} runs"
