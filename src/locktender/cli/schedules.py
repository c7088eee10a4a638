"""`schedules`: runs of a flow at set times, their next ticks, and what became of the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from locktender.base.errors import InvalidInput
from locktender.cli.context import Context, command, group
from locktender.cli.output import escape
from locktender.cli.tables import table

if TYPE_CHECKING:
    from locktender.client.client import Client
    from locktender.client.schedules import ScheduleInfo

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
NONE = "[dim]No schedules yet.[/] Set one: locktender schedules set nightly FLOW --cron '0 3 * * *'"


def register(app: typer.Typer) -> None:
    noun = group(app, "schedules", "Runs of a flow at set times.")
    command(noun, "list")(list_)
    command(noun, "show")(show)
    command(noun, "set")(set_)
    command(noun, "pause")(pause)
    command(noun, "resume")(resume)
    command(noun, "reset")(reset)
    command(noun, "run-now")(run_now)
    command(noun, "delete")(delete)
    command(noun, "history")(history)


def list_(shell: Context) -> None:
    """All schedules, each with its next tick and what became of the last one."""
    with shell.connect() as client:
        found = client.schedules.list()
    if shell.json:
        shell.data(found)
    elif not found:
        shell.say(NONE)
    else:
        rows = [
            [escape(each.name), escape(each.flow), escape(_when(each)), *_ticks(each)]
            for each in found
        ]
        shell.out.print(table("schedule…", "flow…", "when", "next", "last…", rows=rows))


def _when(info: ScheduleInfo) -> str:
    from locktender.base.clock import SECOND
    from locktender.base.durations import spoken

    if info.cron is not None:
        return f"{info.cron} {info.tz}"
    if info.every is not None:
        return f"every {spoken(round(info.every * SECOND))}"
    return f"at {info.at:%Y-%m-%d %H:%M}" if info.at is not None else ""


def _ticks(info: ScheduleInfo) -> list[str]:
    coming = "paused" if info.paused else f"{info.next[0]:%Y-%m-%d %H:%M:%S}" if info.next else "-"
    last = "-"
    if info.last:
        tick = info.last[0]
        last = f"{tick.outcome}: {tick.run or tick.reason}"
    return [coming, escape(last)]


def show(shell: Context, name: Name) -> None:
    """One schedule: its next five ticks, its last runs, and missed ticks with the reason."""
    with shell.connect() as client:
        info = client.schedules.get(name)
    if shell.json:
        shell.data(info)
        return
    shell.say(f"[bold]{escape(info.name)}[/] · flow {escape(info.flow)} · {escape(_when(info))}")
    shell.say(escape(info.why))
    most = info.max_active or ("none" if info.overlap == "allow" else 1)
    shell.say(
        f"overlap {info.overlap} · catch_up {info.catch_up} · max_active {most}"
        f" · {'declared by code' if info.source == 'declared' else 'set by an operator'}"
    )
    if said := _given(info):
        shell.say(escape(said))
    for tick in info.next:
        shell.say(f"  next    {tick:%Y-%m-%d %H:%M:%S %Z}")
    for each in info.last:
        shell.say(
            f"  {each.outcome:8}{each.tick:%Y-%m-%d %H:%M:%S %Z}  {escape(each.run or each.reason)}"
        )


def _given(info: ScheduleInfo) -> str:
    """What its runs get, and how much later than its tick each may come."""
    from locktender.base.clock import SECOND
    from locktender.base.durations import spoken
    from locktender.cli.tables import tags

    parts = [f"args {msgspec.json.encode(info.args).decode()}"] if info.args else []
    parts += [f"tags {tags(info.tags)}"] if info.tags else []
    parts += [f"jitter {spoken(round(info.jitter * SECOND))}"] if info.jitter else []
    return " · ".join(parts)


def set_(
    shell: Context,
    name: Name,
    flow: Annotated[
        str, typer.Argument(metavar="FLOW", help="An announced name, or FILE.py:flow.")
    ],
    args: Annotated[str | None, typer.Option("--args", help="Arguments by name, as JSON.")] = None,
    cron: Annotated[str | None, typer.Option("--cron", help="'0 3 * * 1-5', in --tz.")] = None,
    every: Annotated[str | None, typer.Option("--every", help="15m")] = None,
    at: Annotated[str | None, typer.Option("--at", help="2027-01-31T09:00, once.")] = None,
    tz: Annotated[str, typer.Option("--tz", help="Europe/Berlin")] = "UTC",
    jitter: Annotated[str | None, typer.Option("--jitter", help="30s")] = None,
    overlap: Annotated[
        str, typer.Option("--overlap", help="skip, queue, replace or allow.")
    ] = "skip",
    catch_up: Annotated[str, typer.Option("--catch-up", help="none, last or all.")] = "none",
    max_active: Annotated[
        str | None, typer.Option("--max-active", help="Active runs of it.")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Set it without starting it.")] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="A tag of its runs. Repeatable."),
    ] = None,
) -> None:
    """Set a schedule, or replace it."""
    from locktender.cli.arguments import read_named_call, tags, whole

    _check_when({"--cron": cron, "--every": every, "--at": at})
    chosen: Any = flow
    if ".py" in flow:
        from locktender.cli import load_flow

        chosen = load_flow.load(flow)
    call = read_named_call(args, ())
    given: Any = call.args[0] if call.args else call.kwargs
    if not isinstance(given, dict):  # a list, say
        raise InvalidInput(
            "the arguments of a schedule are named: --args takes a JSON object.",
            field="args",
            got=args,
            hint="""For example: --args '{"n": 1}'""",
        )
    named = cast("dict[str, Any]", given)
    with shell.connect(create=True) as client:
        info = client.schedules.set(
            name, chosen, named, cron=cron, every=every, at=at, tz=tz, jitter=jitter,
            overlap=overlap, catch_up=catch_up,  # pyright: ignore[reportArgumentType]
            max_active=whole(max_active, "max-active"), paused=paused, tags=tags(tag or ()),
        )  # fmt: skip
    shell.done(f"schedule {escape(name)}: {escape(info.why)}", info)


def _check_when(options: dict[str, str | None]) -> None:
    given = [option for option, value in options.items() if value is not None]
    if len(given) == 1:
        return
    few = "one of --cron, --every, --at"
    raise InvalidInput(
        f"give only {few}; {' and '.join(given)} are given." if given else f"say when: give {few}.",
        field="cron",
        hint=f"Leave out {' and '.join(given[1:])}."
        if given
        else "e.g. --cron '0 3 * * 1-5', --every 15m, or --at 2027-01-31T09:00.",
    )


def pause(shell: Context, name: Name) -> None:
    """Make no runs of it until it is resumed.

    locktender schedules pause nightly
    """
    with shell.connect() as client:
        client.schedules.pause(name)
        _show_in_force(shell, client, name)


def resume(shell: Context, name: Name) -> None:
    """Go on from now; ticks that passed are not caught up with.

    locktender schedules resume nightly
    """
    with shell.connect() as client:
        client.schedules.resume(name)
        _show_in_force(shell, client, name)


def reset(shell: Context, name: Name) -> None:
    """Take an operator's setting away: what the code declares is in force, or nothing.

    locktender schedules reset nightly
    """
    with shell.connect() as client:
        before = client.schedules.get(name)
        client.schedules.reset(name)
        unchanged = before.source == "declared"
        _show_in_force(shell, client, name, "as the code declares it" if unchanged else "reset")


def delete(shell: Context, name: Name) -> None:
    """Remove a schedule; its runs go on. One that code declares comes back with the next worker.

    locktender schedules delete nightly
    """
    with shell.connect() as client:
        client.schedules.delete(name)
        _show_in_force(shell, client, name)
        declared = any(each.what == "declared" for each in client.schedules.history(name))
    if declared:
        shell.note(
            "Code declared it: it comes back with the next worker. schedules pause keeps it off."
        )


def _show_in_force(shell: Context, client: Client, name: str, verb: str = "") -> None:
    """What is in force behind a change: the schedule as it is now, or that there is none."""
    from locktender.base.errors import NotFound

    try:
        info = client.schedules.get(name)
    except NotFound:
        reason = "; no code declares it" if verb else ""
        text = f"schedule {escape(name)} is removed{reason}. Its runs go on."
        shell.done(text, {"schedule": name, "removed": True})
        return
    said = f" ({verb})" if verb else ""
    shell.done(f"schedule {escape(name)}{said}: {escape(info.why)}", info)


def run_now(shell: Context, name: Name) -> None:
    """Submit a run of it now, beside its ticks."""
    with shell.connect() as client:
        run = client.schedules.run_now(name)
    shell.done(f"submitted {run.id}", {"id": run.id})


def history(shell: Context, name: Name) -> None:
    """Who changed it, the latest first."""
    with shell.connect() as client:
        found = client.schedules.history(name)
    if shell.json:
        shell.data(found)
        return
    for each in found:
        why = f"  {escape(each.reason)}" if each.reason else ""
        shell.say(f"{each.at:%Y-%m-%d %H:%M:%S}  {escape(each.who)}  {each.what}{why}")
