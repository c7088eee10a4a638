"""The API reference: every public name, with its typed signature and its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, NamedTuple

from tools.site.docstrings import field_texts, markdown

import locktender
from locktender import client, testing
from locktender.client.client import Client


class Page(NamedTuple):
    path: str
    title: str
    opening: str
    names: tuple[str, ...]


PAGES = (
    Page(
        "api-flows",
        "API: steps and flows",
        "What a flow is written with. [Writing flows](../writing-flows.md) explains the same by task.",
        (
            "step", "flow", "Step", "AsyncStep", "Flow", "sleep", "sleep_until", "wait_event", "as_handle",
            "not_", "secret", "current", "Current", "Retry", "Fatal", "StepError", "Duration",
        ),
    ),
    Page(
        "api-client",
        "API: clients and runs",
        "Who submits runs, asks about them and sets limits. `AsyncClient` and `AsyncRun` have the same methods;"
        " there they are awaited.",
        (
            "embedded", "connect", "embedded_async", "connect_async", "Client", "Run", "AsyncClient", "AsyncRun",
            "Submission", "submit_in", "submit_in_async", "HeldSlots",
        ),
    ),
)  # fmt: skip
REST = Page(
    "api-values",
    "API: values and errors",
    "What reading methods return, what is raised, and what a provisioner implements.",
    (),
)
TESTING = Page(
    "api-testing",
    "API: testing",
    "`pytest_plugins = ['locktender.testing.plugin']` gives the fixtures; the recipe is"
    " [test a flow](../do/test-a-flow.md).",
    tuple(testing.__all__),
)
DURATION = (
    'A duration: `"500ms"`, `"90s"`, `"1h30m"`, `"7d"`, a number of seconds, or a `timedelta`.'
)
FIXTURES = (
    "engine", "make_engine", "engine_settings", "engine_clock", "overlap", "assert_max_concurrent",
)  # fmt: skip

INTERNAL = {
    "submit_call", "submit_prepared", "submit_all_prepared", "submit_named", "prepared", "set_lost", "of",
    "shown_got", "as_dict",
}  # fmt: skip
"""Methods that other modules of Locktender call."""


def pages() -> Iterator[tuple[str, str]]:
    """Path below reference/, and text."""
    placed = {name for page in PAGES for name in page.names}
    rest = REST._replace(names=tuple(sorted(set(locktender.__all__) - placed)))
    for page in (*PAGES, rest):
        yield f"{page.path}.md", _page(page, locktender)
    yield f"{TESTING.path}.md", _page(TESTING, testing, _fixtures())


def _page(page: Page, module: ModuleType, first: str = "") -> str:
    parts = [f"# {page.title}", page.opening, *([first] if first else ()), _contents(page, module)]
    for name in page.names:
        parts += _entry(name, getattr(module, name))
    return "\n\n".join(parts) + "\n"


def _contents(page: Page, module: ModuleType) -> str:
    """Each name with the first sentence about it."""
    lines = ["| name | is |", "|---|---|"]
    seen: Counter[str] = Counter()
    for name in page.names:
        text = DURATION if name == "Duration" else (getattr(module, name).__doc__ or "")
        paragraph = " ".join(text.strip().split("\n\n")[0].split())
        sentence = re.split(r"(?<=\.) (?=[A-Z`])", paragraph, maxsplit=1)[0]
        anchor = name.lower()
        number = f"-{seen[anchor]}" if seen[anchor] else ""  # `Step` after `step`
        seen[anchor] += 1
        lines.append(f"| [{name}](#{anchor}{number}) | {_plain(sentence)} |")
    return "\n".join(lines)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    if inspect.isfunction(value):
        yield signature(name, value)
        yield markdown(value.__doc__ or "")
    elif inspect.isclass(value):
        yield markdown(value.__doc__ or "")
        yield from _fields(value)
        yield from _methods(name, value)
        for part, namespace in _namespaces(value):
            yield f"### {name.lower()}.{part}"
            yield markdown(namespace.__doc__ or "")
            yield from _methods(f"{part}", namespace, level=4)
    else:
        yield f"```python\n{name} = {value}\n```"
        yield DURATION if name == "Duration" else ""


def _namespaces(cls: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """`client.runs` and the others: what the annotation of the property names. Async ones are the same."""
    if cls is not Client:
        return
    modules = [
        import_module(f"locktender.client.{each.name}") for each in iter_modules(client.__path__)
    ]
    for name, member in inspect.getmembers_static(cls):
        if not isinstance(member, cached_property) or name.startswith("_"):
            continue
        kind = inspect.get_annotations(member.func)["return"]
        yield name, next(getattr(each, kind) for each in modules if hasattr(each, kind))


def _fields(cls: type[Any]) -> Iterator[str]:
    texts = field_texts(cls)
    if issubclass(cls, Enum):
        lines = [f"| `{each.value}` | {texts.get(each.name, '')} |" for each in cls]
        yield "\n".join(["| value | meaning |", "|---|---|", *lines])
        return
    annotations = {
        name: kind
        for name, kind in inspect.get_annotations(cls).items()
        if not name.startswith("_") and (dataclasses.is_dataclass(cls) or name in texts)
    }
    if not annotations:
        return
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for name, kind in annotations.items():
        text = texts.get(name, "").replace("|", "\\|")
        lines.append(f"| `{name}` | `{_plain(kind)}` | {text} |".replace("` |  |", "` | |"))
    yield "\n".join(line.replace("`|`", "`") for line in lines)


def _text(kind: object) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def _plain(kind: object) -> str:
    """For a cell of a table."""
    return _text(kind).replace("|", "\\|")


def _methods(name: str, cls: type[Any], level: int = 3) -> Iterator[str]:
    for method, value in inspect.getmembers(cls):
        function = value.fget if isinstance(value, property) else value
        ours = str(getattr(function, "__module__", "")).startswith("locktender")
        if (
            method.startswith("_")
            or method in INTERNAL
            or not ours
            or not (value.__doc__ or "").strip()
        ):
            continue
        if isinstance(value, property):
            kind = inspect.signature(value.fget).return_annotation if value.fget else ""
            yield f"{'#' * level} {name}.{method}"
            yield f"```python\n{method}: {_text(kind)}\n```"
        elif inspect.isfunction(value) or inspect.ismethod(value):
            yield f"{'#' * level} {name}.{method}()"
            yield signature(method, value)
        else:
            continue
        yield markdown(value.__doc__ or "")


def signature(name: str, function: Any) -> str:
    """As a block of code, one parameter per line where it is long."""
    found = inspect.signature(function)
    parameters = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    shown = str(found.replace(parameters=parameters))
    text = f"{name}{shown}"
    # Annotations are texts here: their quotes are not part of them.
    text = _unquoted(text)
    if len(text) > 90:
        text = _long(name, found, parameters)
    return f"```python\n{text}\n```"


def _unquoted(text: str) -> str:
    return re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", text)


def _long(name: str, found: inspect.Signature, parameters: list[inspect.Parameter]) -> str:
    lines: list[str] = []
    starred = False
    for each, following in zip(parameters, [*parameters[1:], None], strict=True):
        if each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            lines.append("    *,")
        starred = starred or each.kind is each.VAR_POSITIONAL
        lines.append("    " + _unquoted(str(each)) + ",")
        if each.kind is each.POSITIONAL_ONLY and (
            following is None or following.kind is not each.POSITIONAL_ONLY
        ):
            lines.append("    /,")
    returns = found.return_annotation
    arrow = "" if returns is found.empty else f" -> {_text(returns)}"
    return "\n".join([f"{name}(", *lines, f"){arrow}"])


def _fixtures() -> str:
    from locktender.testing import plugin  # noqa: PLC0415 — pytest wants to import plugins itself

    parts = ["## Fixtures"]
    for name in FIXTURES:
        value: Any = getattr(plugin, name)
        function = getattr(value, "__wrapped__", None) or value._get_wrapped_function()
        parts.append(f"### {name}\n\n{markdown(function.__doc__ or '')}")
    return "\n\n".join([*parts, "## Names to import"])
