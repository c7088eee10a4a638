"""Secrets by reference: a run stores where a value is found, never the value.

`secret("env:NAME")` travels as the JSON object `{"$locktender.secret":"env:NAME"}`,
wherever a value may stand. The worker puts the value in its place just before
the body runs, in memory only. Inside a JSON text every quote is escaped, so
that the mark can be found in raw bytes and nothing else can look like it.

What a body logs, reports or fails with is stored. The values are replaced before anything is cut
to size: half a secret would not be found again.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from locktender.base.errors import InvalidInput, LocktenderError

SECRET_KEY: Final = "$locktender.secret"  # noqa: S105 — a key in JSON
MARK: Final = b'"$locktender.secret":'
ENCODED_MARKS: Final = tuple(
    # As bytes they travel in base64: at whichever of three places the mark begins, these characters are its own.
    base64.b64encode(bytes(before) + MARK)[4 if before else 0 : -4]
    for before in range(3)
)
REFERENCE_IN_JSON: Final = re.compile(rb'\{\s*"\$locktender\.secret"\s*:\s*"env:[^"]+"\s*\}')
_REFERENCE = re.compile(r"env:([^\s=\x00]+)")
_STORED = re.compile(rb'\{"\$locktender\.secret":("(?:[^"\\]|\\.)*")\}')
_text: Callable[[bytes], str] = msgspec.json.Decoder(str).decode
_json: Callable[[object], bytes] = msgspec.json.Encoder().encode


class MissingSecret(LocktenderError):
    """A secret that this worker cannot resolve. The message names the variable, never a value."""

    code = "secret_missing"


class Secret(msgspec.Struct, frozen=True):
    """Stands for a value that only the worker knows."""

    reference: str = msgspec.field(name=SECRET_KEY)

    def __repr__(self) -> str:
        return f"secret({self.reference!r})"

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        # In a flow's body it would silently become a text that no step can do anything with.
        raise InvalidInput(
            f"{self!r} has no text here: its value is known only to the worker.",
            field="secret",
            got=self.reference,
            hint="Pass it to a step as an argument of its own and put it into the text there.",
        )


def secret(reference: str) -> Any:
    """A value the worker finds under `reference`: `"env:NAME"`, a variable of its environment.

    Typed as `Any`, because it stands in for the text that the step's parameter asks for.
    """
    if not isinstance(reference, str) or _REFERENCE.fullmatch(reference) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            "a secret is given by reference.",
            field="secret",
            # A value written here by mistake must not be shown again in an error.
            got=f"a {type(reference).__name__}",
            hint='Write secret("env:NAME") with the name of an environment variable of the worker.',
        )
    return Secret(reference)


def resolve(raw: bytes, environment: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """`raw` with every reference replaced by its value, and the values by reference."""
    found: dict[str, str] = {}

    def value(match: re.Match[bytes]) -> bytes:
        reference = _text(match[1])
        known = _REFERENCE.fullmatch(reference)
        if known is None:
            raise MissingSecret(f"this worker cannot read the secret {reference!r}.")
        if known[1] not in environment:
            raise MissingSecret(
                f"the environment variable {known[1]!r} of a secret argument is not set in this worker.",
                field=known[1],
                hint="Set it where the worker is started.",
            )
        found[reference] = environment[known[1]]
        # A variable may hold bytes that are no text: half characters, which JSON does not take.
        return _json(found[reference].encode("utf-8", "replace").decode())

    return _STORED.sub(value, raw), found


HIDDEN: Final = "***"
MIN_PART_CHARS: Final = 8
"""Shorter parts of a secret would be found everywhere."""


class Redactor:
    """Finds the values of one attempt's secrets in any text, also as they look inside other texts."""

    __slots__ = ("_pattern", "references")

    def __init__(self, found: dict[str, str]) -> None:
        self.references: tuple[str, ...] = tuple(sorted(found))
        forms = {form for value in found.values() for form in _forms(value) if form}
        # The longest first: one secret may be the beginning of another.
        several = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._pattern = re.compile(several) if several else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def finds(self, raw: bytes) -> bool:
        """Whether a value stands in JSON that is to be stored. A very short one would stand anywhere."""
        if self._pattern is None:
            return False
        matches = self._pattern.finditer(raw.decode("utf-8", "replace"))
        return any(len(match[0]) >= MIN_PART_CHARS for match in matches)


def reveal(call: bytes) -> tuple[bytes, Redactor]:
    """The call with the secrets' values in it. Raises `MissingSecret`."""
    opened, found = resolve(call, os.environ)
    return opened, Redactor(found)


def _forms(value: str) -> Iterable[str]:
    """A value as itself, inside JSON, inside a repr, inside a URL; and its lines.

    JSON is written in two ways, and is itself what a repr or other JSON may hold.
    """
    text = value.encode("utf-8", "replace").decode()
    parts = [text, *(line for line in text.splitlines() if len(line) >= MIN_PART_CHARS)]
    for part in parts:
        yield from (quote(part), quote(part, ""))
        for form in {part, *_as_json(part)}:
            yield from (form, repr(form)[1:-1], ascii(form)[1:-1], *_as_json(form))


def _as_json(text: str) -> tuple[str, str]:
    """As most write it, and as Python's own module does: `ö` is `\\u00f6` there."""
    return _json(text).decode()[1:-1], json.dumps(text)[1:-1]
