"""Secrets by reference: a run stores where a value is found, never the value.

`secret("env:NAME")` travels as the JSON object `{"$locktender.secret":"env:NAME"}`,
wherever a value may stand. The worker puts the value in its place just before
the body runs, in memory only. Inside a JSON text every quote is escaped, so
that the mark can be found in raw bytes and nothing else can look like it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from locktender.base.errors import InvalidInput, LocktenderError

SECRET_KEY: Final = "$locktender.secret"  # noqa: S105 — a key in JSON
MARK: Final = b'"$locktender.secret":'
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
            hint="Hand it to a step as an argument of its own and put it into the text there.",
        )


def secret(reference: str) -> Any:
    """A value the worker finds under `reference`: `"env:NAME"`, a variable of its environment.

    Typed as `Any`, because it stands in for the text that the step's parameter asks for.
    """
    if not isinstance(reference, str) or _REFERENCE.fullmatch(reference) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            "a secret is given by reference.",
            field="secret",
            # Whoever wrote the value itself must not read it again in an error.
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
