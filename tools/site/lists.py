"""Reference pages made from the code: commands, settings, metrics, events, errors, HTTP routes, tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from tools.site.columns import COLUMNS
from tools.site.docstrings import blocks, field_docs, options, rows_of

import locktender
from locktender.base.errors import LocktenderError
from locktender.base.events import SUBJECTS, Change
from locktender.base.model import WorkerRow
from locktender.base.settings_values import KEYS
from locktender.base.states import RUN_CHANGES, TASK_CHANGES
from locktender.cli.error_codes import ERRORS, FAILURES, CodeText
from locktender.cli.main import app, register_all
from locktender.client.history import event_name
from locktender.observe.exposition import Family
from locktender.observe.metrics import Metrics
from locktender.observe.prometheus import Exposition
from locktender.store.protocol import OpenRuns

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = ("url", "json", "debug")


def pages() -> Iterator[tuple[str, str]]:
    """Path below reference/, and text."""
    yield "commands.md", commands()
    yield "settings.md", settings()
    yield "metrics.md", metrics()
    yield "events.md", events()
    yield "errors.md", errors()
    yield "http.md", http()
    yield "tables.md", tables()
    yield "glossary.md", glossary()


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(each) for each in row)} |" for row in rows)])


# commands


def command_tree() -> dict[str, Any]:
    """`runs list` → its command, of every command that is not hidden."""
    register_all()
    return dict(sorted(_below("", typer.main.get_command(app))))


def _below(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(node, "commands", {}).items():
        if not each.hidden:
            yield from _below(f"{path} {name}".strip(), each)
    if not hasattr(node, "commands"):
        yield path, node


def commands() -> str:
    parts = [
        "# Commands",
        (
            "Every command of `locktender`, from the program itself. Each takes `--url` (the store), `--json` and"
            " `--debug` too. Exit codes, filters and cursors are on [the command line](../command-line.md)."
        ),
    ]
    tree = command_tree()
    parts.append(
        _table(
            ("command", "does"),
            [
                (
                    f"[{path}](#{path.replace(' ', '-')})",
                    " ".join((node.help or "").split("\n\n")[0].split()),
                )
                for path, node in tree.items()
            ],
        )
    )
    for path, node in tree.items():
        arguments = [each for each in node.params if each.param_type_name == "argument"]
        words = [
            each.metavar or each.name.upper()
            if each.required
            else f"[{each.metavar or each.name.upper()}]"
            for each in arguments
        ]
        usage = " ".join(["locktender", path, *words, "[OPTIONS]"])
        parts += [f"## {path}", f"```text\n{usage}\n```", _help_text(node)]
        rows = [
            (f"`{each.metavar or each.name.upper()}`", "", _plain(each.help)) for each in arguments
        ]
        rows += [
            (_flags(each), _shown_default(each), _plain(each.help))
            for each in node.params
            if each.param_type_name == "option" and each.name not in EVERYWHERE and not each.hidden
        ]
        if rows:
            head = ("argument or option", "default", "meaning")
            if not any(default for _, default, _ in rows):
                head, rows = (head[0], head[2]), [(name, text) for name, _, text in rows]
            parts.append(_table(head, list(rows)))
    return "\n\n".join(parts) + "\n"


def _help_text(node: Any) -> str:
    """The command's own text; lines that are commands become one block."""
    text: list[str] = []
    examples: list[str] = []
    for part in re.split(r"\n\s*\n", (node.help or "").strip()):
        line = " ".join(part.split())
        (examples if line.startswith("locktender ") else text).append(line)
    epilog = " ".join((node.epilog or "").split()).removeprefix("Example: ")
    if epilog:
        examples.append(epilog)
    shown = "\n\n".join(text).replace("\b", "")
    return shown + ("\n\n```text\n" + "\n".join(examples) + "\n```" if examples else "")


def _plain(text: str | None) -> str:
    """Help as it is shown: a backslash keeps a bracket from being read as markup."""
    return (text or "").replace("\\[", "[")


def _flags(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
    return f"{names} {option.metavar}".strip() if option.metavar else names


def _shown_default(option: Any) -> str:
    if option.default in (None, False, "", [], ()):
        return "required" if option.required else ""
    return f"`{option.default}`"


# settings


def settings() -> str:
    known = options(locktender.embedded.__doc__ or "")
    rows: list[tuple[object, ...]] = []
    for name in sorted(KEYS):
        row = known.get(name)
        default, text = ("", "set by a provisioner: the name of the worker it started")
        if name == "url":
            default, text = (
                "`.locktender/locktender.db`",
                "the store: a SQLite file or `postgresql://…`",
            )
        elif row is not None:
            default, text = f"`{row.default}`" if row.default else "", row.text
        rows.append((f"`{name}`", default, f"`LOCKTENDER_{name.upper()}`", text))
    return (
        "# Settings\n\nWhere a setting comes from, each source above the one before: the default, the file"
        " `locktender.toml` (or `[tool.locktender]` of `pyproject.toml`), a variable, an argument of `embedded()`"
        " or `--set NAME=VALUE`. `locktender config show` lists values and sources. −1 is unlimited, the text"
        ' `"none"` unsets a setting.\n\n'
        + _table(("setting", "default", "variable", "meaning"), rows)
        + "\n\n`LOCKTENDER_TRACEBACKS=full` is no setting: it shows whole tracebacks (default `short`).\n"
    )


# metrics


def metric_families() -> list[Family]:
    """Every family that a process can expose: a leader with a worker."""
    found = Metrics()
    worker = WorkerRow("worker", "host", 1, "1", {"async": 1}, 1, 1, memory=0.5, lag_us=1)
    found.describe = lambda: worker
    exposition = Exposition(found, may_lead=True)
    exposition.open_runs = OpenRuns(0, 0, 0, 0, 0, 0)
    exposition.refresh()
    return sorted(exposition.found, key=lambda each: each.name)


def metrics() -> str:
    rows = [(f"`{each.name}`", each.kind, each.description) for each in metric_families()]
    return (
        "# Metrics\n\nEvery metric that `/metrics` has, from the code. Which process has which, and what to do"
        " when an alert fires: [metrics and alerts](../operations.md).\n\n"
        + _table(("metric", "type", "meaning"), list(rows))
        + "\n"
    )


# events


def events() -> str:
    texts = subject_data()
    rows: list[tuple[object, ...]] = [
        (f"`{subject}`", texts.get(subject, "")) for subject in SUBJECTS
    ]
    changes = {"run": RUN_CHANGES, "task": TASK_CHANGES}
    parts = [
        "# Events",
        (
            "The history has one event per change of state. `locktender events RUN`, `run.events()` and"
            " `client.events.follow()` read it; [the command line](../command-line.md#events) explains cursors."
        ),
        (
            "Each event has `seq`, `at` (UTC), `actor`, `run_id`, `subject`, `task`, `before`, `after`,"
            " `data`, `name` and `cursor`."
        ),
        "## Subjects and their data",
        _table(("subject", "data"), rows),
    ]
    for subject, table in changes.items():
        parts += [
            f"## Changes of a {subject}",
            _table(
                ("name", "from", "to", "written by"),
                [
                    (f"`{event_name(subject, str(after), {})}`", before, after, owner)
                    for (before, after), owner in table.items()
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def subject_data() -> dict[str, str]:
    """Subject → what its events carry, from the docstring of `Change.data`."""
    found: dict[str, str] = {}
    for block in blocks(field_docs(Change)["data"]):
        for row in rows_of(block) or ():
            for name in row.names:
                found[name] = row.text
    return found


# errors


def error_classes() -> dict[str, list[str]]:
    """Code → public classes that have it."""
    found: dict[str, list[str]] = {}
    waiting: list[type[LocktenderError]] = [LocktenderError]
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        found.setdefault(each.code, []).append(each.__name__)
    return found


def errors() -> str:
    classes = error_classes()
    parts = [
        "# Error codes",
        (
            "Every error has a `code`, a `message`, the `field`, the value it `got` and a `hint`; `--json` and the"
            " HTTP API show all five. `locktender explain CODE` prints the entry of this page."
        ),
        "## Errors of calls, commands and requests",
    ]
    for code, text in sorted(ERRORS.items()):
        names = [each for each in classes.get(code, []) if each in locktender.__all__]
        raised = f"Raised as `{'`, `'.join(sorted(names))}`.\n\n" if names else ""
        parts.append(f"### {code}\n\n{raised}{_cause(text)}")
    parts += [
        "## Failures of tasks and runs",
        (
            "`.error_type` of `RunFailed` and `type` of a task's error. It is one of these, or the class of the"
            " exception that your step raised."
        ),
    ]
    parts += [f"### {code}\n\n{_cause(text)}" for code, text in sorted(FAILURES.items())]
    return "\n\n".join(parts) + "\n"


def _cause(text: CodeText) -> str:
    return f"**Cause.** {text.cause}\n\n**Fix.** {text.fix}"


# HTTP


def http() -> str:
    found = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    by_tag: dict[str, list[tuple[object, ...]]] = {}
    for path, methods in found["paths"].items():
        for method, each in methods.items():
            if method not in ("get", "put", "post", "delete", "patch"):
                continue
            asked = [
                f"`{one['name']}`" for one in each.get("parameters", []) if one.get("in") == "query"
            ]
            body = each.get("requestBody", {}).get("content", {})
            schema = next(iter(body.values()), {}).get("schema", {}).get("$ref", "")
            by_tag.setdefault(each.get("tags", ["other"])[0], []).append(
                (
                    f"`{method.upper()} {path}`",
                    each.get("summary", ""),
                    ", ".join(asked),
                    f"`{schema.rpartition('/')[2]}`" if schema else "",
                    each.get("x-scope", ""),
                )
            )
    parts = [
        "# HTTP routes",
        (
            "Every route of the API, from [openapi.json](../openapi.json). [The HTTP API](../http-api.md) explains"
            " them with `curl`; `/api/docs` of a server shows each with an example."
        ),
    ]
    for tag, rows in sorted(by_tag.items()):
        parts += [f"## {tag}", _table(("route", "does", "query", "body", "scope"), rows)]
    return "\n\n".join(parts) + "\n"


# tables


def table_columns() -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """Table → what is said of it, and name, type and "may be null" of its columns."""
    path = ROOT / "src/locktender/store/postgres/migrations/0001_initial.sql"
    result: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    for found in re.finditer(
        r"((?:^--[^\n]*\n)*)^CREATE (?:UNLOGGED )?TABLE locktender\.(\w+) \(\n(.*?)^\)",
        path.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    ):
        said = " ".join(line.removeprefix("--").strip() for line in found[1].splitlines())
        rows: list[tuple[str, str, str]] = []
        for line in found[3].splitlines():
            column = re.match(r"\s+(\w+) ([a-z]\w*(?:\[\])?)([^,]*),?\s*(?:-- .*)?$", line)
            if column is not None and column[1].islower():
                filled = "NOT NULL" in column[3] or "PRIMARY KEY" in column[3]
                rows.append((column[1], column[2], "" if filled else "may be null"))
        result[found[2]] = said, rows
    return result


def tables() -> str:
    known = table_columns()
    parts = [
        "# Tables of the store",
        (
            "What the PostgreSQL schema `locktender` has; the SQLite file has the same tables. Read them for"
            " reports, best through [views](database.md). Never write them: limits are counted from these rows."
            " They may change with each release; the client, the commands and the HTTP API do not. Instants are"
            " microseconds since 1970 in UTC."
        ),
        "## Tables to read",
    ]
    for name, meanings in COLUMNS.items():
        said, columns = known[name]
        by_name = {column: (kind, null) for column, kind, null in columns}
        rows = [(f"`{each}`", *by_name[each], text) for each, text in meanings.items()]
        parts += [f"### {name}", said, _table(("column", "type", "", "meaning"), list(rows))]
    parts += ["## Other tables", "The engine's own. No report needs them."]
    rows = [
        (
            f"`{name}`",
            said.partition(". ")[0].rstrip("."),
            ", ".join(f"`{each[0]}`" for each in columns),
        )
        for name, (said, columns) in known.items()
        if name not in COLUMNS
    ]
    parts.append(_table(("table", "has", "columns"), list(rows)))
    return "\n\n".join(each for each in parts if each) + "\n"


FIRST_WORDS = (
    ("step", "a function with `@step`: what a worker runs as one task"),
    ("flow", "a function with `@flow`: it connects steps"),
    ("handle", "what a step's call returns in a flow's body: it stands for the result that is not there yet"),
    ("map", "`step.map(items)`: one task per item"),
    ("store", "the SQLite file or the PostgreSQL schema that has runs, limits and history"),
    ("client", "submits runs and asks about them: `connect()`, or `embedded()` with an engine in its process"),
    ("engine", "a leader and a worker in one process: `embedded()`, `locktender dev`, `locktender worker --lead`"),
    ("server", "a process that leads and serves the HTTP API and the web UI: `locktender server`"),
    ("worker", "a process that runs tasks"),
    ("key", "a name of a run that only one active run has: `submit(key=…)`"),
    ("tag", "a name and a value on a run, for limits, fair turns and lists: `tags={\"tenant\": \"acme\"}`"),
    ("retry", "another attempt of a task, or of a run that has ended"),
)  # fmt: skip
"""The words of users; those of the engine are in CONTRIBUTING."""


def glossary() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"^## Glossary\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None  # noqa: S101
    first = _table(("word", "meaning"), list(FIRST_WORDS))
    return (
        f"# Glossary\n\nThe words of this documentation and of the code.\n\n## First words\n\n{first}\n\n"
        f"## Words of the engine\n\n{found[1].strip()}\n"
    )
