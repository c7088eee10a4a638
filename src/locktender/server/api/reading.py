"""Bodies and query strings: read, checked, and refused with the field and the position of what is wrong.

Python's own JSON reader names line and column, and shows keys that stand there
twice. What it lets pass (half characters, NUL, numbers that no store has) is
looked for only where the text can contain it.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import ClientDisconnect, Request

from locktender.base.errors import InvalidInput, NotFound
from locktender.base.jsonable import MAX_DEPTH
from locktender.base.names import did_you_mean, nearest
from locktender.server.api.answers import Malformed, TooLarge, UnsupportedType

B = TypeVar("B", bound=msgspec.Struct)
JSON = "application/json"
_SUSPICIOUS = re.compile(rb"\\u|\d{19}|[eE]\+?\d{3}")
_LARGEST = 2**64 - 1
_SMALLEST = -(2**63)


async def body_bytes(request: Request, most: int) -> bytes:
    """The whole body, at most `most` bytes: more is not read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise UnsupportedType(
            f"the body must be {JSON}.",
            field="content-type",
            got=kind or None,
            hint=f"curl -H 'content-type: {JSON}' -d '{{…}}'",
        )
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedType(
            "a compressed body is not read.",
            field="content-encoding",
            got=request.headers["content-encoding"],
            hint="Send it as it is.",
        )
    return await read_all(request, most)


async def read_all(request: Request, most: int) -> bytes:
    """Whatever it is."""
    if request.headers.get("content-length", "0").isdecimal():
        _check_size(int(request.headers.get("content-length", "0")), most)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            _check_size(size, most)
            parts.append(part)
    except ClientDisconnect:
        # The client is gone: no answer can be sent, and the log needs no error.
        raise Malformed("the connection ended before the body.", field="body") from None
    return b"".join(parts)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(
            f"the body has more than {most:,} bytes.",
            field="body",
            got=size,
            hint="Hand over a path or a URL in place of the data, or send several requests.",
        )


def parse(raw: bytes) -> Any:
    """The JSON value. Raises `Malformed` with line and column, or `InvalidInput` with the field."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line, column = _place(raw[: error.start].decode())
        raise Malformed(
            f"the body is not UTF-8 at line {line}, column {column}.", field="body"
        ) from None
    if not text.strip():
        raise Malformed("the body is empty.", field="body", hint="Send a JSON object: {}.")
    try:
        found = _decode(text)
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" starting at")
        early = error.pos >= len(text.rstrip()) or said == "Unterminated string"
        what = "ends too early" if early else "is not JSON"
        raise Malformed(
            f"the body {what}: {said} at line {error.lineno}, column {error.colno}.",
            field="body",
            got=text[max(0, error.pos - 20) : error.pos + 20],
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidInput(f"the body has a number too long to read: {error}.") from None
    deep = raw.count(b"[") > MAX_DEPTH or raw.count(b"{") > MAX_DEPTH
    if deep or _SUSPICIOUS.search(raw) is not None:
        _check_values(found)
    return found


def _place(text: str) -> tuple[int, int]:
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise InvalidInput(
            f"the field {twice!r} is given twice.", field=twice, hint="Leave out one of them."
        )
    return found


def _constant(name: str) -> NoReturn:
    raise Malformed(
        f"the body is not JSON: {name} is not a number in JSON.",
        field="body",
        got=name,
        hint="Use null.",
    )


def _too_deep() -> InvalidInput:
    return InvalidInput(
        f"the body is nested more than {MAX_DEPTH} deep.", field="body", hint="Flatten it."
    )


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).decode


def _check_values(value: Any) -> None:
    # A stack of our own: what is to be refused may be nested too deeply to recurse.
    stack: list[tuple[Any, str, int]] = [(value, "", 1)]
    while stack:
        part, path, depth = stack.pop()
        if depth > MAX_DEPTH + 1:
            raise _too_deep()
        if isinstance(part, str):
            _check_text(part, path)
        elif isinstance(part, float) and not math.isfinite(part):
            raise InvalidInput(
                f"{path or 'the body'} is larger than any number JSON readers agree on.", field=path
            )
        elif isinstance(part, int) and not _SMALLEST <= part <= _LARGEST:
            raise InvalidInput(
                f"{path or 'the body'} does not fit into 64 bits.",
                field=path,
                got=part,
                hint="Send it as a text.",
            )
        elif isinstance(part, dict):
            for key, each in cast("dict[str, Any]", part).items():
                _check_text(key, path)
                stack.append((each, f"{path}.{key}" if path else key, depth + 1))
        elif isinstance(part, list):
            for index, each in enumerate(cast("list[Any]", part)):
                stack.append((each, f"{path}[{index}]", depth + 1))


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise InvalidInput(
            f"{path or 'the body'} has a NUL character in it.", field=path, got=text[:40]
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{path or 'the body'} has half a character (a lone surrogate) in it.",
            field=path,
            got=text[:40],
        ) from None


def as_body(value: Any, kind: type[B]) -> B:
    """`value` as the Struct that a route declares. Raises `InvalidInput` naming the field."""
    if not isinstance(value, dict):
        raise InvalidInput(
            "the body must be a JSON object.", field="body", got=value, hint="e.g. {}"
        )
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), value, kind) from None


MAX_QUOTED = 80
"""Characters of what was sent that a message repeats; `got` has more."""


def no_cursor(given: str) -> InvalidInput:
    return InvalidInput(
        "this is not a cursor.",
        field="cursor",
        got=given,
        hint="Give `next` of the page before, or leave it out.",
    )


def cursor_numbers(given: str | UnsetType, count: int) -> tuple[int, ...] | None:
    """The numbers of a cursor, separated by dots; None: the list begins."""
    if given is UNSET:
        return None
    parts = given.split(".")
    if len(parts) != count or not all(_NUMBER.fullmatch(each) for each in parts):
        raise no_cursor(given)
    return tuple(int(each) for each in parts)


def cursor_of(numbers: Iterable[int] | None) -> str | None:
    return None if numbers is None else ".".join(str(each) for each in numbers)


_NUMBER = re.compile(r"\d{1,18}")


def check_address(request: Request) -> None:
    """Raises `Malformed` for a path or query that is not text: it would be read as another name."""
    for part in (request.scope.get("raw_path", b""), request.scope["query_string"]):
        if b"%" not in part:
            continue
        try:
            unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise Malformed(
                "the address is not UTF-8.", field="path", got=part[:MAX_QUOTED].decode("latin-1")
            ) from None


def as_query(request: Request, kind: type[B]) -> B:
    """The query string as the Struct that a route declares."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidInput(
                f"{name} is given twice.", field=name, hint="Separate several values by commas."
            )
        if "\0" in value:
            raise InvalidInput(f"{name} has a NUL character in it.", field=name)
        given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error), given, kind) from None


_AT = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$([^`]*)`)?")
_NAMED = re.compile(r"`([^`]*)`")
_BOUND = re.compile(r"Expected `(\w+)` (of length )?([<>]=) (\d+)(?:\.0)?")
_COUNTED = {"str": "characters", "array": "items", "object": "entries"}
_SPOKEN = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
    "datetime": 'a moment with a time zone, e.g. "2030-01-31T03:00:00Z"',
}


def _wrong_field(message: str, value: Any, kind: Any) -> InvalidInput:
    """What msgspec said, as our errors say it."""
    matched = _AT.fullmatch(message)
    said, path = (matched[1], matched[2] or "") if matched else (message, "")
    part, wanted, shown = _follow(value, kind, path)
    named = _NAMED.findall(said)
    if said.startswith("Object contains unknown field"):
        known = _fields(wanted)
        return InvalidInput(
            f"there is no field {named[0]!r}{f' in {shown}' if shown else ''}.",
            field=f"{shown}.{named[0]}" if shown else named[0],
            got=cast("dict[str, Any]", part).get(named[0]) if isinstance(part, dict) else None,
            hint=did_you_mean(named[0], known),
        )
    if said.startswith("Object missing required field"):
        field = f"{shown}.{named[0]}" if shown else named[0]
        return InvalidInput(f"{field} is missing.", field=field)
    field = shown or "body"
    if said.startswith("Expected") and "length" not in said and len(named) == 2:
        several: list[str] = named[0].split(" | ")
        kinds = " or ".join(_SPOKEN.get(each, each) for each in several)
        return InvalidInput(f"{field} must be {kinds}.", field=field, got=part)
    if said.startswith("Invalid enum value"):
        allowed = [str(each) for each in get_args(_plain(wanted))]
        return InvalidInput(
            f"{field} must be one of {', '.join(allowed)}.",
            field=field,
            got=part,
            hint=nearest(part, allowed),
        )
    if (bound := _BOUND.fullmatch(said)) is not None:
        kind_of, counted, sign, number = bound.groups()
        most = f"at {'most' if sign == '<=' else 'least'} {int(number):,}"
        if not counted:
            return InvalidInput(f"{field} must be {most}.", field=field, got=part)
        if number == "1" and sign == ">=":
            return InvalidInput(f"{field} must not be empty.", field=field, got=part)
        return InvalidInput(
            f"{field} must have {most} {_COUNTED[kind_of]}.", field=field, got=_length(part)
        )
    if "matching regex" in said:
        return InvalidInput(
            f"{field} is not written as it must be.",
            field=field,
            got=part,
            hint="/api/docs shows how.",
        )
    return InvalidInput(f"{field}: {said}.", field=field, got=part)


def _length(value: Any) -> Any:
    return len(value) if hasattr(value, "__len__") else value


def _follow(value: Any, kind: Any, path: str) -> tuple[Any, Any, str]:
    """The part of `value` at msgspec's path, its type, and the path with the index of the first wrong item."""
    shown = ""
    for step in re.findall(r"\.([^.\[]+)|\[(\.\.\.|\d+)\]", path):
        if step[0]:
            kind = _fields(kind).get(step[0], Any)
            value = cast("Mapping[str, Any]", value).get(step[0]) if _is_map(value) else None
            shown = f"{shown}.{step[0]}" if shown else step[0]
            continue
        element = (get_args(_plain(kind)) or (Any,))[-1]
        items = _entries(value)
        at = (
            next((key for key, each in items if not _fits(each, element)), None)
            if step[1] == "..."
            else int(step[1])
        )
        if at is None:
            return value, kind, shown
        value, kind = dict(items)[at], element
        shown = f"{shown}[{at}]" if isinstance(at, int) else f"{shown}.{at}"
    return value, kind, shown


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).items())
    return list(enumerate(cast("list[Any]", value))) if isinstance(value, list) else []


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _plain(kind: Any) -> Any:
    """Without `| None` and `| UNSET`."""
    if get_origin(kind) not in (types.UnionType, typing.Union):
        return kind
    several = [each for each in get_args(kind) if each not in (type(None), msgspec.UnsetType)]
    return several[0] if len(several) == 1 else kind


def _fields(kind: Any) -> dict[str, Any]:
    plain = _plain(kind)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return typing.get_type_hints(plain)
    return {}


def pairs(text: str, field: str) -> dict[str, str]:
    """`tenant=acme,kind=bulk`, as filters have it; refused with the position of what is wrong."""
    found: dict[str, str] = {}
    for at, part in _parts(text):
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise InvalidInput(
                f"{field} is not a filter: {part[:MAX_QUOTED]!r} at position {at} is not key=value.",
                field=field,
                got=text,
                hint=f"e.g. {field}=tenant=acme,kind=bulk",
            )
        if key in found:
            raise InvalidInput(
                f"{field} names {key[:MAX_QUOTED]!r} again at position {at}.",
                field=field,
                got=text,
            )
        found[key] = value
    return found


def words(text: str, field: str, known: typing.Iterable[str]) -> list[str]:
    """`failed,timed_out`, each of them one of `known`."""
    allowed = {str(each) for each in known}
    found: list[str] = []
    for at, part in _parts(text):
        if part not in allowed:
            raise InvalidInput(
                f"{field} is not a filter: {part[:MAX_QUOTED]!r} at position {at} is unknown.",
                field=field,
                got=text,
                hint=did_you_mean(part, allowed),
            )
        found.append(part)
    return found


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Each part between commas and its position, from 1."""
    at = 1
    # A comma behind a backslash is a part of a value.
    for part in re.findall(r"(?:^|,)((?:\\.|[^,\\]|\\$)*)", text):
        plain = re.sub(r"\\(.)", r"\1", part)
        yield at + len(part) - len(part.lstrip()), plain.strip()
        at += len(part) + 1


def number(text: str, field: str) -> int:
    """Of a path: a task's number."""
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
        raise NotFound(f"{text[:40]!r} is not a valid {field} number.", field=field, got=text[:40])
    return int(text)
