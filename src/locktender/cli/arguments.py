"""Arguments of commands as values: numbers (also negative ones), flow arguments, tags, pools, settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from locktender.base import codec
from locktender.base.config import known_key
from locktender.base.errors import ArgumentMismatch, InvalidFlow, InvalidInput
from locktender.base.jsonable import spoken
from locktender.base.names import nearest

if TYPE_CHECKING:
    from locktender.flows.definitions import FlowDef


class Call(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]


def read_call(flow: FlowDef, args: str | None, named: Iterable[str]) -> Call:
    """Arguments from JSON and from name=value pairs, bound to the signature and typed by its annotations."""
    given, kwargs = _from_json(args)
    pairs = _pairs(named, "arg")
    for key, text in pairs.items():
        if key in kwargs:
            raise InvalidInput(
                f"argument {key!r} is given twice.", field=key, hint="Keep --args or --arg for it."
            )
        kwargs[key] = _value(flow, key, text)
    _check_names(flow, kwargs)
    flow.bind(given, kwargs)  # says what does not fit, with the signature
    flow.prepare()
    raw = codec.render_call(
        [codec.encode(each, flow.argument_name(index)) for index, each in enumerate(given)],
        {key: codec.encode(each, key) for key, each in kwargs.items()},
    )
    try:
        decoded, by_name = flow.decode_call(raw)
    except InvalidInput as error:
        error.hint = _typed_hint(flow, error, pairs) or error.hint
        raise
    return Call(list(decoded), by_name)


def _check_names(flow: FlowDef, kwargs: dict[str, Any]) -> None:
    """Refuses arguments that the flow has no parameter for."""
    known = flow.parameters.parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return
    for key in kwargs:
        if key not in known:
            meant = nearest(key, known, cutoff=0.7)
            names = ", ".join(known)
            takes = f"its parameters are: {names}" if names else "it takes none"
            raise InvalidFlow(
                f"flow {flow.short!r} has no parameter {key!r}; {takes}.",
                field=key,
                got=key,
                hint=f"{f'{meant} ' if meant else ''}Its signature is {flow.spoken}.",
            )


_TYPED = {int: "3", float: "1.5", bool: "true", list: "'[1, 2]'", dict: """'{"a": 1}'"""}
"""Of a plain type, a value as `--arg` takes it."""


def _typed_hint(flow: FlowDef, error: InvalidInput, named: Collection[str]) -> str | None:
    """How a value that is of another type than its parameter is written; None for any other error.

    `named`: the parameters that `--arg` gives.
    """
    name = error.field or ""
    known = flow.parameters.parameters.get(name)
    if known is None or known.kind in (known.VAR_POSITIONAL, known.VAR_KEYWORD):
        return None
    if name not in flow.hints or isinstance(error, InvalidFlow | ArgumentMismatch):
        return None
    wanted = flow.hints[name]
    takes = f"{flow.short} takes {name} as {spoken(wanted)}"
    if isinstance(wanted, type) and wanted in _TYPED and name in named:
        return f"Try: --arg {name}={_TYPED[wanted]} ({takes})."
    return f"Give another value: {takes}."


def read_named_call(args: str | None, named: Iterable[str]) -> Call:
    """Arguments by name, for a flow whose code is elsewhere: its announced parameters are checked later."""
    given, kwargs = _from_json(args)
    for key, text in _pairs(named, "arg").items():
        if key in kwargs:
            raise InvalidInput(
                f"argument {key!r} is given twice.", field=key, hint="Keep --args or --arg for it."
            )
        kwargs[key] = _json_or_text(text)
    return Call(given, kwargs)


def _from_json(text: str | None) -> tuple[list[Any], dict[str, Any]]:
    if text is None:
        return [], {}
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"--args is not JSON: {error}.",
            field="args",
            got=text,
            hint="""Write '[1, "two"]' for arguments in order, or '{"name": "value"}' by name.""",
        ) from error
    if isinstance(value, list):
        return cast("list[Any]", value), {}
    if isinstance(value, dict):
        return [], cast("dict[str, Any]", value)
    raise InvalidInput(
        "--args must be a JSON array (arguments in order) or object (by name).",
        field="args",
        got=text,
        hint=f"For one argument write --args '[{text}]'.",
    )


def json_value(text: str, field: str) -> Any:
    """A value that is given as JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"{field} is not JSON: {error}.",
            field=field,
            got=text,
            hint="""Write a text as '"yes"', an object as '{"name": "value"}'.""",
        ) from error


def _value(flow: FlowDef, key: str, text: str) -> Any:
    """Text where the parameter is text, else JSON, else text: `--arg n=3 --arg name=acme`."""
    parameter = flow.parameters.parameters.get(key)
    if parameter is not None and parameter.annotation in {str, "str", "str | None"}:
        return text
    return _json_or_text(text)


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def match(given: Iterable[str]) -> dict[str, Any]:
    """What a wait must have: `order=17` is a number, as in code."""
    several = list(given)
    found = _pairs(several, "match")
    if len(found) < len(several):
        twice = next(key for key in found if len(list(_of(several, key))) > 1)
        raise InvalidInput(
            f"--match {twice} is given twice, and an event has one value of each.",
            field="match",
            got=[f"{twice}={value}" for value in _of(several, twice)],
            hint="Send an event for each.",
        )
    return {key: _json_or_text(text) for key, text in found.items()}


def tags(given: Iterable[str]) -> dict[str, str]:
    return _pairs(given, "tag")


def labels(given: Iterable[str]) -> dict[str, str]:
    """A worker has one value of each: of two, the task that needs the other would wait for ever."""
    several = list(given)
    found = _pairs(several, "label")
    if len(found) < len(set(several)):
        twice = next(key for key in found if len({*_of(several, key)}) > 1)
        raise InvalidInput(
            f"--label {twice} is given twice, and a worker has one value of each label.",
            field="label",
            got=[f"{twice}={value}" for value in _of(several, twice)],
            hint="Start a worker for each.",
        )
    return found


def pools(given: Iterable[str]) -> dict[str, Any]:
    return {name: number(limit) for name, limit in _pairs(given, "pool").items()}


def weights(given: Iterable[str]) -> dict[str, Any]:
    return {name: number(weight) for name, weight in _pairs(given, "weight").items()}


def settings(given: Iterable[str]) -> dict[str, Any]:
    """Settings by name; numbers, true and false are read as such."""
    pairs = _pairs(given, "set")
    for key in pairs:
        known_key(key, f"--set {key}")
    return {key: number(value) for key, value in pairs.items()}


def _of(given: Iterable[str], name: str) -> list[str]:
    pairs = (each.partition("=") for each in given)
    return [value for key, _, value in pairs if key.strip() == name]


def _pairs(given: Iterable[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key.strip():
            raise InvalidInput(
                f"--{option} takes name=value.", field=option, got=each, hint=_EXAMPLES[option]
            )
        found[key.strip()] = value
    return found


_EXAMPLES = {
    "arg": "e.g. --arg n=3",
    "tag": "e.g. --tag tenant=acme",
    "label": "e.g. --label gpu=a100",
    "match": "e.g. --match order=17",
    "pool": "e.g. --pool db=4",
    "weight": "e.g. --weight acme=3",
    "set": "e.g. --set grace=5s; locktender config show lists all.",
}


def whole(text: str | None, option: str, example: str | None = None) -> int | None:
    """An option's value as a whole number, where nothing later checks it. `example`: for the hint."""
    if text is None:
        return None
    value = number(text)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(
            f"{option} must be a whole number.",
            field=option,
            got=text,
            hint=f"e.g. {example or f'--{option} 20'}",
        )
    return value


def duration(text: str | None) -> str | float | None:
    """A duration as text; a bare number is seconds, as everywhere."""
    if text is None:
        return None
    value = number(text)
    return text if isinstance(value, bool | str) else value


def moment(text: str | None, option: str) -> datetime | None:
    """A moment in ISO form, for the checks behind to judge."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{option} is not a moment.",
            field=option,
            got=text,
            hint="Write a date, a time and a zone: 2031-05-01T09:00+02:00",
        ) from error


def number(text: str) -> int | str | bool | float:
    """The number that `text` is, for the checks behind to judge; text that is none stays text."""
    try:
        return int(text.replace("_", "")) if text.strip() == text else text
    except ValueError:
        pass
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text
