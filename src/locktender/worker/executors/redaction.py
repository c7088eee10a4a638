"""Secrets in a worker: put into a call just before its body runs, removed from all that is stored of it.

What a body logs, reports or fails with is stored. The values are replaced before anything is cut
to size: half a secret would not be found again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

import msgspec

from locktender.base import secrets

HIDDEN: Final = "***"
MIN_PART_CHARS: Final = 8
"""Shorter parts of a secret say too little, and would be found everywhere."""
_json = msgspec.json.Encoder().encode


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
    opened, found = secrets.resolve(call, os.environ)
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
