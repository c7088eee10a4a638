"""`limits`: how many runs at once, in total, per tag, and whose turn it is."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from locktender.cli.blame import cost
from locktender.cli.context import Context, Expected, command, group
from locktender.cli.output import escape

if TYPE_CHECKING:
    from locktender.base.errors import InvalidInput
    from locktender.client.client import Client

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="max_concurrent_runs, max_active, a tag (tenant=acme) …"),
]


Which = Annotated[
    str | None, typer.Argument(metavar="[RULE]", help="After tag: key, key=value, key=*")
]


def register(app: typer.Typer) -> None:
    noun = group(app, "limits", "How many runs at once: in total, per tag, and whose turn it is.")
    command(noun, "list")(list_)
    command(noun, "set")(set_)
    command(noun, "reset")(reset)
    command(noun, "pause")(pause)
    command(noun, "resume")(resume)
    command(noun, "history")(history)
    command(noun, "cost")(cost)


def list_(shell: Context) -> None:
    """Every limit in force but pools (locktender pools list shows those)."""
    from locktender.cli.tables import table

    with shell.connect() as client:
        limits = client.limits.list()
    if shell.json:
        shell.data(limits)
        return
    rows = [
        [
            escape(f"tag {each.name}" if each.kind == "tag" else each.name),
            f"[magenta]{each.value}[/]" if each.paused else each.value,
            "operator" if each.live is not None else "code/config" if each.declared else "default",
            "-" if each.live is None else each.declared or "the default",
        ]
        for each in limits
    ]
    shell.out.print(table("limit…", "in force", "set by", "after a reset", rows=rows))


def set_(
    shell: Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="max_concurrent_runs, max_active, tag, fair …")
    ],
    value: Annotated[
        str | None,
        typer.Argument(metavar="[VALUE]", help="A number; for tag: key, key=value, key=*"),
    ] = None,
    limit: Annotated[
        str | None, typer.Argument(metavar="[LIMIT]", help="For tag: runs at once.")
    ] = None,
    max_active: Annotated[
        str | None,
        typer.Option("--max-active", metavar="N", help="For tag: queued and running runs."),
    ] = None,
    counts_while_waiting: Annotated[
        bool | None,
        typer.Option(
            "--counts-while-waiting/--no-counts-while-waiting",
            help="For tag: a run keeps its place while it sleeps or waits for an event.",
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="VALUE=N", help="For fair: share of turns. Repeatable."),
    ] = None,
    expected: Expected = None,
) -> None:
    """Set a limit. In force at once; survives restarts.

    locktender limits set max_concurrent_runs 4

    locktender limits set max_concurrent_runs 6 --if 4

    locktender limits set tag 'tenant=*' 1

    locktender limits set tag 'account=*' 1 --counts-while-waiting

    locktender limits set fair tenant --weight acme=3
    """
    from locktender.base.errors import InvalidInput
    from locktender.cli import arguments
    from locktender.cli.arguments import number

    if value is None:
        raise InvalidInput(
            f"say what to set {name} to.", field="value", hint=f"e.g. {_example(name)}"
        )
    _refuse_unfit(name, value, limit, max_active, weight, counts_while_waiting)
    seen = arguments.whole(expected, "if")
    if (
        seen is not None
        and name not in {"max_concurrent_runs", "max_active", "tag"}
        and "=" not in name
    ):
        raise InvalidInput(
            f"--if compares a number of runs; {name} does not take it.",
            field="if",
            got=expected,
            hint="It goes with max_concurrent_runs, max_active and tag.",
        )
    if name == "fair":
        shown = f"fair {value}"
    elif name == "tag":
        shown = value
    else:
        shown = name
    with shell.connect(create=True) as client:
        if name == "fair":
            client.limits.set_fair(value, arguments.weights(weight or ()))
        elif name == "tag":
            _set_tag(client, value, limit, max_active, counts_while_waiting, seen)
        elif "=" in name:
            _set_tag(client, name, value, max_active, counts_while_waiting, seen)
        else:
            _check_known(name)
            client.limits.set(name, cast("Any", number(value)), expected=seen)
        _print_limit(shell, client, shown)


def _set_tag(
    client: Client,
    rule: str,
    limit: str | None,
    max_active: str | None,
    counts_while_waiting: bool | None,
    seen: int | None = None,
) -> None:
    from locktender.cli.arguments import number

    key, equals, value = rule.partition("=")
    each = value == "*"
    given: dict[str, Any] = {}
    if limit is not None:
        given["limit"] = number(limit)
    if max_active is not None:
        given["max_active"] = number(max_active)
    if counts_while_waiting is not None:
        given["counts_while_waiting"] = counts_while_waiting
    if not given:
        raise _nothing_to_set(rule)
    client.limits.set_tag(
        key, value if equals and not each else None, per_value=each, expected=seen, **given
    )


def _nothing_to_set(rule: str) -> InvalidInput:
    from locktender.base.errors import InvalidInput
    from locktender.base.limits import tag_rule

    key, equals, value = rule.partition("=")
    each = value == "*"
    tag_rule(key, value if equals and not each else None, per_value=each)  # a bad name comes first
    try_ = f"locktender limits set tag {quote(rule)}"
    return InvalidInput(
        f"say what to set for tag {rule!r}.",
        field="limit",
        hint=f"Try: {try_} 4 (runs executing at once), or: {try_} --max-active 10 (queued and running runs).",
    )


def _refuse_unfit(
    name: str,
    value: str,
    limit: str | None,
    max_active: str | None,
    weight: list[str] | None,
    counts_while_waiting: bool | None,
) -> None:
    """What `name` does not take is refused: dropped in silence, it would seem to be in force."""
    from locktender.base.errors import InvalidInput

    is_tag = name == "tag" or "=" in name
    if limit is not None and name != "tag":
        raise InvalidInput(
            f"{name} takes one value; {limit!r} is one too many.",
            field="limit",
            got=f"{value} {limit}",
            hint=_one_value(name, value),
        )
    if max_active is not None and not is_tag:
        raise InvalidInput(
            f"--max-active bounds runs with a tag; {name} does not take it.",
            field="max_active",
            got=max_active,
            hint="For all runs: locktender limits set max_active N;"
            " for a tag: locktender limits set tag tenant=acme --max-active N",
        )
    if counts_while_waiting is not None and not is_tag:
        raise InvalidInput(
            f"--counts-while-waiting is for runs with a tag; {name} does not take it.",
            field="counts_while_waiting",
            got=counts_while_waiting,
            hint="locktender limits set tag 'account=*' 1 --counts-while-waiting",
        )
    if weight and name != "fair":
        raise InvalidInput(
            f"--weight shares turns; {name} does not take it.",
            field="weight",
            got=" ".join(weight),
            hint="It goes with fair: locktender limits set fair tenant --weight acme=3",
        )


def _one_value(name: str, value: str) -> str:
    if name == "fair":
        return f"Turns are weighted by value: locktender limits set fair {value} --weight acme=3"
    if name == "age_boost":
        return "Write the time as one word: locktender limits set age_boost 5m"
    if "=" in name:
        return f"locktender limits set tag {name} {value} --max-active N bounds its queued and running runs, too."
    return f"locktender limits set {name} {value}"


def _check_known(name: str) -> None:
    """Refuses an unknown word: it is not taken as a tag, which is named after `tag`."""
    from locktender.base.errors import NotFound
    from locktender.base.names import did_you_mean, nearest
    from locktender.client.limits_async import ENGINE, FIXED

    known = {*FIXED, *ENGINE, "tag"}
    if name not in known:
        raise NotFound(
            f"there is no limit {name!r}.",
            field="limit",
            got=name,
            hint=nearest(name, known)
            or f"{did_you_mean(name, known)} For a tag: locktender limits set tag {quote(name)} 4",
        )


def _example(name: str) -> str:
    examples = {
        "tag": "locktender limits set tag 'tenant=*' 1",
        "fair": "locktender limits set fair tenant --weight acme=3",
    }
    return examples.get(name, f"locktender limits set {name} 4")


def _named(name: str, which: str | None) -> str:
    """A limit by the words it is set by: `tag tenant`, `fair tenant`, or its name alone."""
    from locktender.base.errors import InvalidInput

    if name == "tag" and which is None:
        raise InvalidInput("say which tag.", field="name", hint="e.g. tag 'tenant=*'")
    if which is None:
        return name
    if name not in {"tag", "fair"}:
        raise InvalidInput(
            f"{name} takes no argument.",
            field="name",
            got=which,
            hint="Only tag and fair do: tag tenant=acme",
        )
    return which if name == "tag" else f"fair {which}"


def reset(shell: Context, name: Name, rule: Which = None) -> None:
    """Back to what code or configuration declares."""
    name = _named(name, rule)
    with shell.connect() as client:
        client.limits.reset(name)
        _print_limit(shell, client, name)


def pause(shell: Context, name: Name = "max_concurrent_runs", rule: Which = None) -> None:
    """Start no more runs (with a tag, if one is named); what runs goes on."""
    name = _named(name, rule)
    with shell.connect(create=True) as client:
        client.limits.pause(name)
        _print_limit(shell, client, name)


def resume(shell: Context, name: Name = "max_concurrent_runs", rule: Which = None) -> None:
    """Let runs start again."""
    name = _named(name, rule)
    with shell.connect() as client:
        client.limits.resume(name)
        _print_limit(shell, client, name)


def _print_limit(shell: Context, client: Client, name: str) -> None:
    found = next((each for each in client.limits.list() if each.name == name), None)
    if shell.json:
        shell.data(found)
    elif (found is None or not found.value) and name.startswith("fair"):
        shell.say("turns are not shared any more")
    elif found is None or not found.value:
        shell.say(f"{escape(name)} is not limited any more")
    else:
        shell.say(f"{escape(name)}: {found.value}")


def history(
    shell: Context,
    limit: Annotated[str, typer.Option("--limit", "-n", metavar="N", help="How many.")] = "20",
) -> None:
    """Who changed what, when, from what to what; pools included, the newest first."""
    from locktender.cli.arguments import whole
    from locktender.cli.tables import ago, now, table

    with shell.connect() as client:
        changes = client.limits.history(whole(limit, "limit") or 0)
    if shell.json:
        shell.data(changes)
        return
    if not changes:
        shell.say("[dim]No limit was ever changed.[/]")
        return
    since = now()
    rows = [
        [
            ago(each.at, since),
            escape(each.who),
            escape(f"{each.kind} {each.name}" if each.kind in {"pool", "tag"} else each.name),
            each.before or "-",
            each.after or "(reset)",
        ]
        for each in changes
    ]
    shell.out.print(table("when", "who…", "limit…", "from", "to", rows=rows))
