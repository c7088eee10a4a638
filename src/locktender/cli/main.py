"""The program: all commands, and what an error does to the exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from locktender.base import tracebacks
from locktender.base.errors import LocktenderError
from locktender.cli.context import COMPLETE, Context, Debug, Json, ReaderGone, Url, add_verbs
from locktender.cli.errors import BAD, INTERRUPTED, OK, USAGE, Internal, Usage, exit_code, show

app: typer.Typer = typer.Typer(
    name="locktender",
    help="Durable workflows whose concurrency and cost are predictable.",
    epilog="New here? Try: locktender demo\n\nExit codes: 0 done; 1 the run failed, or what was asked about is"
    " bad; 2 wrong input; 130 interrupted; 141 the reader of the output is gone.",
    no_args_is_help=False,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def begin(
    context: typer.Context,
    url: Url = None,
    json: Json = False,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", show_default=False, metavar="")
    ] = False,
) -> None:
    context.obj = Context(url, json, debug)
    if version:
        from locktender.base.version import installed

        print(installed())
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


WORDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "submit", "dev", "demo"),
    "server": ("server",),
    "worker": ("worker",),
    "runs": ("runs",),
    "flows": ("flows",),
    "queue": ("queue",),
    "schedules": ("schedules",),
    "pools": ("pools",),
    "limits": ("limits",),
    "cache": ("cache",),
    "mailing": ("send", "waiting"),
    "workers": ("workers",),
    "tokens": ("tokens",),
    "why": ("why",),
    "blame": ("blame",),
    "events": ("events",),
    "explain": ("explain",),
    "audit": ("audit",),
    "db": ("db",),
    "config": ("config",),
    "completion": ("completion",),
}
"""Module of `cli` → the words it registers. One command line loads the module of its word only."""
MAX_MEANT = 3
"""Commands that a hint names."""
_registered: set[str] = set()


def register_all() -> None:
    """Every command: for help, completion and a word that is unknown."""
    _register(WORDS)
    add_verbs(None)


def _register_for(arguments: Sequence[str]) -> None:
    word, verb = _words(arguments)
    home = next((each for each, words in WORDS.items() if word in words), None)
    if home is None or COMPLETE in os.environ:
        register_all()
    if COMPLETE in os.environ:
        import typer.completion

        shells: Any = typer.completion
        shells.completion_init()
    elif home is not None:
        _register([home])
        add_verbs(verb)


def runs_bodies(arguments: Sequence[str]) -> bool:
    """Whether this command line may import or run code of the user's."""
    return any(_words(arguments)[0] in WORDS[home] for home in ("run", "server", "worker"))


def _register(parts: Iterable[str]) -> None:
    for part in parts:
        if part not in _registered:
            _registered.add(part)
            import_module(f"locktender.cli.{part}").register(app)


def _words(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """The first two that are neither an option nor the value of one."""
    before, words = "", list[str]()
    for each in arguments:
        if not each.startswith("-") and before != "--url":
            words.append(each)
        before = each
    first, second, *_ = (*words, None, None)
    return first, second


# typer brings the parser it is built on under varying names; its errors have this shape everywhere.
_UsageError: Any = typer.BadParameter.__mro__[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the caller: `>&-`
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    shell = Context(json="--json" in arguments, debug="--debug" in arguments)
    if shell.debug:
        os.environ[tracebacks.VARIABLE] = "full"
    try:
        _register_for(arguments)
        code = typer.main.get_command(app)(
            args=arguments, prog_name="locktender", standalone_mode=False
        )
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        shell.note("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, ReaderGone):
        # The reader has gone (`| head`): nothing can be written, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except LocktenderError as error:
        show(error, shell)
        return exit_code(error)
    except _UsageError as error:
        return _usage(error, shell, arguments)
    except OSError as error:  # a working directory that is gone, a disk that is full …
        show(
            Internal(f"the operating system reported: {error}.", hint="--debug shows where."), shell
        )
        return BAD
    except Exception as error:  # noqa: BLE001 — a fault of our own must not look like the user's
        fault = Internal(
            f"locktender itself failed: {type(error).__name__}: {error}",
            hint="This is a bug. --debug shows where; please report it.",
        )
        fault.__cause__ = error
        show(fault, shell)
        return BAD
    return code if isinstance(code, int) else OK


def _usage(error: Any, shell: Context, arguments: Sequence[str]) -> int:
    context: typer.Context | None = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message() + "\n")
        return USAGE
    message, found, suggestion = str(error.format_message()).partition("Did you mean")
    path = "locktender" if context is None else context.command_path
    hint = f"Did you mean{suggestion}" if found else f"See: {path} --help"
    if context is not None:
        hint = (
            _verbs_meant(context, arguments)
            or _argument_meant(error, context, arguments)
            or _option_meant(error, context, arguments)
            or hint
        )
    names = tuple(getattr(getattr(error, "param", None), "opts", ()))
    got = _value_of(names, arguments)
    message = message.strip().rstrip(".") + "."
    show(Usage(message, got=got, hint=hint.strip()), shell)
    return USAGE


def _verbs_meant(context: typer.Context, arguments: Sequence[str]) -> str | None:
    """For an unknown first word: the nouns whose verb it is, or is nearer to than to any first word."""
    word, nouns = _words(arguments)[0], getattr(context.command, "commands", {})
    if context.parent is not None or word is None or word in nouns:
        return None
    from difflib import get_close_matches

    ordered = [each for several in WORDS.values() for each in several if each in nouns]
    verbs = {noun: getattr(nouns[noun], "commands", {}) for noun in ordered}
    known = {*nouns, *(verb for several in verbs.values() for verb in several)}
    near = get_close_matches(word, sorted(known), n=1)
    found = [f"locktender {noun} {near[0]}" for noun in verbs if near and near[0] in verbs[noun]]
    if not found or near[0] in nouns:
        return None
    more = ", …" if len(found) > MAX_MEANT else ""
    return f"Did you mean: {', '.join(found[:MAX_MEANT])}{more}"


def _argument_meant(error: Any, context: typer.Context, arguments: Sequence[str]) -> str | None:
    """The command line with an unknown option as the argument of its name: `set db --limit 3` → `set db 3`."""
    option = str(getattr(error, "option_name", ""))
    named = [each.name for each in context.command.params if each.param_type_name == "argument"]
    name = option.removeprefix("--").replace("-", "_")
    value = _value_of((option,), arguments)
    if name not in named or value is None:
        return None
    words = [each for each in arguments if each not in (option, f"{option}={value}")]
    if option in arguments:
        words.pop(arguments.index(option))  # the value, which stood behind it
    place = len(context.command_path.split()) - 1 + named.index(name)
    if any(each.startswith("-") for each in words) or len(words) != place:
        return f"{name.upper()} is given without {option}. See: {context.command_path} --help"
    words.append(_fitting(name, value))
    return f"Try: locktender {shlex.join(words)}"


def _fitting(name: str, value: str) -> str:
    """The value of an argument, or an example where a limit cannot have that value."""
    if name != "limit":
        return value
    from locktender.base import names
    from locktender.base.errors import InvalidInput
    from locktender.cli.arguments import number

    try:
        names.limit(number(value), name)
    except InvalidInput:
        return "4"
    return value


def _option_meant(error: Any, context: typer.Context, arguments: Sequence[str]) -> str | None:
    """A setting that is written as an option, and a value of the flow that is written without one."""
    options = {option for each in context.command.params for option in each.opts}
    option = str(getattr(error, "option_name", ""))
    setting = option.removeprefix("--").replace("-", "_")
    if option and "--set" in options:
        from locktender.base.config import KEYS

        value = _value_of((option,), arguments)
        return f"Try: --set {setting}={value or 'VALUE'}" if setting in KEYS else None
    extra = [each for each in arguments if "=" in each and each.split("=")[0].isidentifier()]
    if extra and "unexpected extra" in error.format_message() and "--arg" in options:
        return f"Try: --arg {shlex.quote(extra[0])}"
    return None


def _value_of(names: tuple[str, ...], arguments: Sequence[str]) -> str | None:
    """What was given for the option of these names: the parser's message may not say it."""
    for each, following in zip(arguments, [*arguments[1:], None], strict=True):
        if each in names:
            return following
        name, equals, value = each.partition("=")
        if equals and name in names:
            return value
    return None


if __name__ == "__main__":
    sys.exit(main())
