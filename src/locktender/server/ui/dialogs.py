"""Dialogs: what an action asks for, and the same action as a command line and as curl.

Commands are made from what stands in the form, by the code that reads the form when it is sent. A form that is
not complete has no commands: nobody copies a value that was not chosen.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from locktender.base.errors import LocktenderError

COMMANDS = "commands"
"""The block of a dialog with its commands: asked for again with each change of the form."""
NO_REASON = "Only the form keeps a reason: the commands have none."
_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
Given = Mapping[str, str]
"""What stands in a form, by the names of its fields."""


@dataclass(frozen=True, slots=True)
class Commands:
    """How to do the same elsewhere; both empty: the form is not complete."""

    cli: str = ""
    curl: str = ""
    note: str = ""
    """What lacks, or what the commands do not do."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One thing that a dialog asks for."""

    name: str
    label: str
    kind: Literal["text", "number", "area", "check", "choice"] = "text"
    value: str = ""
    hint: str = ""
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    whole: bool = True
    """Of a number: whether it has no fraction."""

    @property
    def chosen(self) -> bool:
        """Of choices: whether one of them is chosen from the start. A required one is never chosen unseen."""
        return not self.required or any(value == self.value for value, _ in self.choices)

    def fault(self, text: str) -> str:
        """What is wrong with what was typed; empty: nothing that is known here."""
        if self.required and not text:
            return f"{self.label} is missing"
        if self.kind == "number" and text and not _is_number(text, self.whole):
            return f"{self.label} is not a {'whole ' if self.whole else ''}number"
        return ""


@dataclass(frozen=True, slots=True)
class Dialog:
    """Asks before an action: what will happen, to what, and how to do the same elsewhere."""

    title: str
    text: str
    button: str
    """The verb: `Cancel 12 runs`."""
    post: str
    """The path that the form is sent to. A GET of it with the form's values answers the commands."""
    commands: Callable[[Given], Commands]
    danger: bool = False
    fields: tuple[FormField, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    def initial(self) -> dict[str, str]:
        """What stands in the form when it opens."""
        return {**self.hidden, **{each.name: each.value for each in self.fields}}

    def commands_of(self, given: Given) -> Commands:
        read = {name: value.strip() for name, value in given.items()}
        faults = [each.fault(read.get(each.name, "")) for each in self.fields]
        if any(faults):
            return Commands(note=f"{'; '.join(filter(None, faults))}: no command yet.")
        try:
            return self.commands(read)
        except LocktenderError as error:
            return Commands(note=f"No command yet: {error.message} {error.hint or ''}".strip())


def _is_number(text: str, whole: bool) -> bool:
    return (_WHOLE if whole else _NUMBER).fullmatch(text) is not None


def number(text: str) -> Any:
    """An int if the text is one, else the text: the verb that takes it checks it."""
    return int(text) if _WHOLE.fullmatch(text) and len(text) < 12 else text


def command_line(origin: str, verb: str, *words: object, **options: object) -> str:
    """`command_line(…, "runs cancel", id, reason="late", force=True)`; what is None, False or empty is left out.

    It names the server: without it a command acts on the store of the shell that it is pasted into.
    """
    given = [str(each) for each in words]
    named: list[str] = []
    for name, value in options.items():
        option = "--" + name.strip("_").replace("_", "-")
        for each in value if isinstance(value, list | tuple) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if each is True:
                named.append(option)
            elif each not in (None, False, ""):
                named += [option, str(each)]  # pyright: ignore[reportUnknownArgumentType]
    named += ["--url", origin]
    if any(each.startswith("-") and not _is_number(each, False) for each in given):
        given, named = [], [*named, "--", *given]
    return shlex.join(["locktender", *verb.split(), *given, *named])


def curl_line(origin: str, method: str, path: str, body: object = None, *, token: bool) -> str:
    """The same by the HTTP API. `token`: the server wants one, which the shell has in LOCKTENDER_TOKEN."""
    plain = method == "GET" or (method == "POST" and body is not None)
    line = shlex.join(["curl", *([] if plain else ["-X", method]), f"{origin}/api/v1{path}"])
    if token:
        line += ' -H "authorization: Bearer $LOCKTENDER_TOKEN"'
    if body is not None:
        text = json.dumps(body, ensure_ascii=False)
        line += " " + shlex.join(["-H", "content-type: application/json", "-d", text])
    return line
