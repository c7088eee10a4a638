"""What every command has: where the store is, where output goes, how much of it.

`command(app)` registers a function whose first parameter is the `Context`; the
options that make a `Context` are added to its own, so that no command forgets them.
"""

from __future__ import annotations

import inspect
import logging
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer
from typer.core import TyperCommand

from locktender.base.errors import InvalidFlow, LocktenderError
from locktender.cli.examples import WATCHED, example_of
from locktender.cli.output import Printer

if TYPE_CHECKING:
    from locktender.base.config import Settings
    from locktender.client.bridge import StoreReader
    from locktender.client.client import Client

PANEL = "Everywhere"
COMPLETE = "_LOCKTENDER_COMPLETE"
"""What a shell sets to ask for completions."""
WATCH_SECONDS = 1.0


class ReaderGone(Exception):
    """The reader of the output has closed it (`| head`). Typer turns a BrokenPipeError into exit code 1."""


class Context(msgspec.Struct, frozen=True, dict=True):
    url: str | None = None
    json: bool = False
    debug: bool = False

    @cached_property
    def out(self) -> Printer:
        """What was asked for."""
        return Printer(sys.stdout)

    @cached_property
    def notes(self) -> Printer:
        """Notes on stderr, never part of the answer."""
        return Printer(sys.stderr, stderr=True)

    def settings(self, **overrides: Any) -> Settings:
        from locktender.store.open import settings_for

        return settings_for(self.url, overrides)

    def connect(self, *, create: bool = False) -> Client:
        """A client of the store. Reading makes no store: an empty answer would hide a wrong path."""
        from locktender.client.client import Client

        return Client(self.settings(), engine=False, creates=create, brief=True)

    def read(self) -> StoreReader:
        """The store itself, for what no method of the client reads."""
        from locktender.client.bridge import StoreReader
        from locktender.store.open import is_server, needs_database

        settings = self.settings()
        if is_server(settings.url):
            raise needs_database("this command", settings.shown_url)
        return StoreReader(settings)

    def data(self, value: object) -> None:
        """`value` as JSON on stdout: indented for eyes, one line for pipes."""
        from locktender.cli.answers import as_json

        raw = as_json(value)
        if sys.stdout.isatty():
            raw = msgspec.json.format(raw, indent=2)
        sys.stdout.write(raw.decode() + "\n")

    def say(self, text: str) -> None:
        self.out.print(text, soft_wrap=True)

    def note(self, text: str) -> None:
        self.notes.print(text, soft_wrap=True)

    def done(self, text: str, value: object) -> None:
        """The answer of a command that changes something."""
        if self.json:
            self.data(value)
        else:
            self.say(text)


def start_logging(shell: Context, level: str = "warning") -> None:
    """The engine's log goes to stderr, above a live display and not through it."""
    from rich.logging import RichHandler
    from rich.text import Text

    class Lines(RichHandler):
        """For a file or a pipe: rich would fill each line with blanks up to the console's width."""

        def render(self, *, record: logging.LogRecord, **parts: Any) -> Text:
            return Text(f"{record.levelname:8} {parts['message_renderable']}")

    console = shell.notes.console
    handler = (RichHandler if console.is_terminal else Lines)(
        console=console, show_path=False, show_time=False, markup=False, rich_tracebacks=False
    )
    root = logging.getLogger("locktender")
    root.handlers[:] = [handler]
    root.setLevel("DEBUG" if shell.debug else level.upper())
    root.propagate = False


def log_lines(shell: Context, level: str, *, bodies: bool = False) -> None:
    """For a process that serves: its log as lines with their time, on stderr.

    `bodies`: it runs steps, whose files are imported by now. What they log is printed and kept from the
    same level up, unless they set logging up themselves.
    """
    from locktender.worker.executors.logs import print_all, print_own

    number = logging.getLevelNamesMapping()[level.upper()]
    if bodies:
        print_all(number)
    print_own(logging.DEBUG if shell.debug else number)


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store: a SQLite file or postgresql://…; or a server: https://… with LOCKTENDER_TOKEN"
        " (else LOCKTENDER_URL, else .locktender/locktender.db).",
        rich_help_panel=PANEL,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Answer as JSON.", rich_help_panel=PANEL, show_default=False, metavar=""
    ),
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Show tracebacks and the engine's log.",
        rich_help_panel=PANEL,
        show_default=False,
        metavar="",
    ),
]
Expected = Annotated[
    str | None,
    typer.Option("--if", metavar="N", help="Only if the limit is N now; else it is refused."),
]
Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Answer again each second, until an interrupt.", metavar=""),
]
_OPTIONS = {"url": (Url, None), "json": (Json, False), "debug": (Debug, False)}


def from_context(context: typer.Context, url: str | None, json: bool, debug: bool) -> Context:
    """Options after the verb override those before the noun."""
    found = context.find_root().obj
    before = found if isinstance(found, Context) else Context()
    return msgspec.structs.replace(
        before, url=url or before.url, json=json or before.json, debug=debug or before.debug
    )


_NEGATIVE = re.compile(r"-\d\S*")
_HELD = "\u2212"
"""A minus sign that option parsers do not know."""


class NumberCommand(TyperCommand):
    """A command whose arguments may be negative numbers: `locktender pools set db -1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        held = [f"{_HELD}{each[1:]}" if _NEGATIVE.fullmatch(each) else each for each in args]
        rest = super().parse_args(ctx, held)
        for key, value in ctx.params.items():
            ctx.params[key] = _released(value)
        return rest


def _released(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_HELD):
        return f"-{value[1:]}"
    if isinstance(value, list | tuple):
        return [_released(each) for each in cast("list[Any]", value)]
    return value


_PYTHON = re.compile(
    r"""(?<!--arg )\b(?P<name>[a-z_]+)=(?P<value>"[^"]*"|'[^']*'|\{[^{}]*\}|…|[\w.+:-]+)"""
)
"""An option as code gives it: `every="15m"`; not an argument of the flow's, `--arg every=3`."""


def options_of(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """Parameter of a command → the option that sets it: `max_active` → `--max-active`."""
    found: dict[str, str] = {}
    for each in parameters:
        for part in getattr(each.annotation, "__metadata__", ()):
            # In `Annotated` the first name of an option stands where its default would.
            texts = [getattr(part, "default", None), *(getattr(part, "param_decls", None) or ())]
            named = [text for text in texts if isinstance(text, str) and text.startswith("--")]
            if named:
                found[each.name] = named[0]
    # Of several tags, code has one mapping.
    return {**found, "tags": "--tag"} if "tag" in found else found


def speak_options(error: LocktenderError, options: Mapping[str, str]) -> None:
    """Names what a message or hint gives as code does by the option of this command."""

    def spoken(match: re.Match[str]) -> str:
        option = options.get(match["name"])
        if option is None:
            return match[0]
        value = match["value"].strip("\"'")
        if value == "True":
            return option
        if value.startswith("{"):  # tags={"tenant": "acme"}
            pairs = re.sub(r"""["'{}]""", "", value).replace(": ", "=")
            return " ".join(f"{option} {pair.strip()}" for pair in pairs.split(","))
        return f"{option} {shlex.quote(value)}" if " " in value else f"{option} {value}"

    error.message = _PYTHON.sub(spoken, error.message)
    error.args = (error.message,)
    if error.hint:
        error.hint = _PYTHON.sub(spoken, error.hint)


class _Noun(msgspec.Struct):
    name: str
    app: typer.Typer
    verbs: dict[str, Callable[[], object]] = {}
    """Not added yet: to describe all options of a verb takes typer a millisecond."""


_nouns: dict[int, _Noun] = {}
"""By the identity of their group."""


def add_verbs(only: str | None) -> None:
    """Adds a verb to the nouns that have it; all verbs where a noun has none of that name, or without one."""
    for noun in _nouns.values():
        added = {each.name for each in noun.app.registered_commands}
        if only not in added:
            for name in [only] if only in noun.verbs else list(noun.verbs):
                noun.verbs.pop(name)()


def _wait_and_clear(shell: Context) -> None:
    sys.stdout.flush()
    time.sleep(WATCH_SECONDS)
    if sys.stdout.isatty() and not shell.json:
        shell.out.clear()
    elif not shell.json:
        shell.say("")


def command(
    app: typer.Typer, name: str | None = None, *, hidden: bool = False, panel: str | None = None
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Registers a command, of a noun when `add_verbs` is called. It returns its exit code, None for 0."""

    def register(fn: Callable[..., int | None]) -> Callable[..., int | None]:
        if (noun := _nouns.get(id(app))) is None:
            return add(fn)
        noun.verbs[name or fn.__name__] = lambda: add(fn)
        return fn

    def add(fn: Callable[..., int | None]) -> Callable[..., int | None]:
        signature = inspect.signature(fn, eval_str=True)
        own = list(signature.parameters.values())[1:]
        options = options_of(own)
        noun = _nouns.get(id(app))
        path = f"{noun.name if noun else ''} {name or fn.__name__}".strip()
        watches = name in WATCHED and path != "config show" and "watch" not in signature.parameters

        def call(context: typer.Context, **given: Any) -> None:
            shell = from_context(context, given.pop("url"), given.pop("json"), given.pop("debug"))
            watched = bool(given.pop("watch")) if watches else False
            try:
                code = fn(shell, **given)
                while watched:
                    _wait_and_clear(shell)
                    code = fn(shell, **given)
            except BrokenPipeError as error:
                raise ReaderGone from error
            except InvalidFlow:
                raise  # about code
            except LocktenderError as error:
                speak_options(error, options)
                raise
            if code:
                raise typer.Exit(code)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", keyword, annotation=typer.Context),
            *(each.replace(kind=keyword) for each in own),
            *([inspect.Parameter("watch", keyword, annotation=Watch, default=False)] * watches),
            *(
                inspect.Parameter(option, keyword, annotation=kind, default=default)
                for option, (kind, default) in _OPTIONS.items()
            ),
        ]
        described: Any = call
        described.__signature__ = inspect.Signature(parameters)
        described.__annotations__ = {each.name: each.annotation for each in parameters}
        described.__name__ = fn.__name__
        described.__doc__ = fn.__doc__
        app.command(
            name,
            cls=NumberCommand,
            hidden=hidden,
            rich_help_panel=panel,
            epilog=example_of(path, fn.__doc__),
        )(described)
        return fn

    return register


def group(app: typer.Typer, name: str, help: str) -> typer.Typer:
    """A noun: its verbs are registered on what is returned."""
    noun = typer.Typer(no_args_is_help=True, add_completion=False, help=help)
    _nouns[id(noun)] = _Noun(name, noun)
    app.add_typer(noun, name=name, rich_help_panel="Beside a live engine, or without one")
    return noun
