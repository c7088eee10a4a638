"""What a name, a tag, a label, a limit and a count of slots may be: every entrance checks with these.

Also: texts of users without control characters, for terminals, and labels against those that `[labels]` declares.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from locktender.base.errors import InvalidFlow, InvalidInput
from locktender.base.graph import Graph

MAX_NAME = 200
MAX_TAGS = 64
MAX_ITEMS = 100_000
MAX_PRIORITY = 1_000_000
MAX_AGE_BOOST_US = 30 * 86_400 * 1_000_000
KNOWN_SHOWN = 10
"""Known words that a hint lists; it says how many more there are."""
MAX_NUMBER = 2**53
"""The largest number that JSON readers, SQLite and PostgreSQL all keep exactly."""
UNLIMITED = -1
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (also what turns the direction of writing), halves, private, unassigned, line ends."""


def text(value: object, field: str) -> str:
    """A line of text that shows as what it is: no control or invisible characters, nothing around it."""
    hint = f"Use 1 to {MAX_NAME} printable characters."
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text.", field=field, got=value, hint=hint)
    if not value or value != value.strip():
        raise InvalidInput(
            f"{field} must not be empty or padded with spaces.", field=field, got=value, hint=hint
        )
    if len(value) > MAX_NAME:
        raise InvalidInput(
            f"{field} is longer than {MAX_NAME} characters.", field=field, got=value, hint=hint
        )
    if not value.isascii() or not value.isprintable():
        for char in value:
            if unicodedata.category(char) in _UNPRINTABLE:
                raise InvalidInput(
                    f"{field} has a control character in it, or an invisible one"
                    f" (U+{ord(char):04X}).",
                    field=field,
                    got=value,
                    hint=hint,
                )
    return value


def name(value: object, field: str) -> str:
    """A text that is safe in a path too: no path parts."""
    value = text(value, field)
    if "/" in value or "\\" in value or value in {".", ".."}:
        raise InvalidInput(
            f"{field} looks like a path.", field=field, got=value, hint="Use no '/', '\\' or '..'."
        )
    return value


def tags(value: object, field: str = "tags") -> dict[str, str]:
    """Tags as text to text, at most 64 of them. Numbers and booleans are written out."""
    if value is None:
        return {}
    pairs = _pairs(value, field, 'e.g. {"tenant": "acme"}.')
    if len(pairs) > MAX_TAGS:
        raise InvalidInput(
            f"at most {MAX_TAGS} tags are allowed.",
            field=field,
            got=len(pairs),
            hint="Tag what limits and searches go by; hand other data over as arguments.",
        )
    return {tag_key(key, field): tag_value(item, f"{field}.{key}") for key, item in pairs}


def labels(value: object, field: str = "labels") -> dict[str, str]:
    """Labels of a worker, or that a step needs of one: as tags, in their own words."""
    if value is None:
        return {}
    pairs = _pairs(value, field, 'e.g. {"gpu": "a100"}.')
    if len(pairs) > MAX_TAGS:
        raise InvalidInput(f"at most {MAX_TAGS} labels are allowed.", field=field, got=len(pairs))
    return {label_key(key, field): label_value(item, f"{field}.{key}") for key, item in pairs}


def _pairs(value: object, field: str, hint: str) -> list[tuple[object, object]]:
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"{field} must be a mapping of names to values.", field=field, got=value, hint=hint
        )
    return list(value.items())  # pyright: ignore[reportUnknownArgumentType]


def tag_key(value: object, field: str = "tag") -> str:
    return _key(value, field, "a tag's key", "Key and value are given apart: tenant and acme.")


def label_key(value: object, field: str = "label") -> str:
    return _key(value, field, "a label's name", 'Name and value are given apart: {"gpu": "a100"}.')


def tag_value(value: object, field: str = "tag") -> str:
    # A rule per value counts under "key=*value": a value with a star of its own could meet that name.
    return _value(value, field, "a tag's", "For a rule of each value, use per_value=True.")


def label_value(value: object, field: str = "label") -> str:
    return _value(value, field, "a label's", 'Name one value: {"gpu": "a100"}.')


def _key(value: object, field: str, what: str, hint: str) -> str:
    key = name(value, field)
    if "=" in key or "*" in key:
        raise InvalidInput(
            f"{what} must not contain '=' or '*'.", field=field, got=value, hint=hint
        )
    return key


def _value(value: object, field: str, whose: str, hint: str) -> str:
    value = _written_out(value)
    result = name(value, field)
    if result.startswith("*"):
        raise InvalidInput(
            f"{whose} value must not begin with '*'.", field=field, got=value, hint=hint
        )
    return result


def _written_out(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


def limit(
    value: object, field: str, *, zero_hint: str | None = None, what: str | None = None
) -> int:
    """A limit: −1 for unlimited, or 1 and up. 0 is refused because *pause* says what is meant.

    `what`: how messages name it, where `field` does not read well.
    """
    what = what or field
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "Give a whole number, e.g. 4. Use -1 for unlimited."
        raise InvalidInput(f"{what} must be a whole number.", field=field, got=value, hint=hint)
    if value == 0:
        raise InvalidInput(
            f"{what} must not be 0.",
            field=field,
            got=value,
            hint=zero_hint or "To stop work from starting, use pause.",
        )
    hint = "Use -1 for unlimited."
    if value < UNLIMITED:
        raise InvalidInput(
            f"{what} must be -1 (unlimited) or 1 and up.", field=field, got=value, hint=hint
        )
    if value > MAX_NUMBER:
        raise InvalidInput(
            f"{what} must be {MAX_NUMBER:,} or less.", field=field, got=value, hint=hint
        )
    return value


def count(value: object, field: str, *, minimum: int = 1, maximum: int = MAX_NUMBER) -> int:
    """A whole number of at least `minimum`: slots, windows, retries, permits."""
    hint = f"Use a whole number from {minimum:,} to {maximum:,}, e.g. {max(minimum, 1)}."
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{field} must be a whole number.", field=field, got=value, hint=hint)
    if value < minimum:
        raise InvalidInput(
            f"{field} must be {minimum:,} or more.", field=field, got=value, hint=hint
        )
    if value > maximum:
        raise InvalidInput(
            f"{field} must be {maximum:,} or less.", field=field, got=value, hint=hint
        )
    return value


def priority(value: object, field: str = "priority") -> int:
    return count(value, field, minimum=-MAX_PRIORITY, maximum=MAX_PRIORITY)


def age_boost(value: object, field: str = "age_boost") -> int:
    """Microseconds per priority. Bounded, so that the place of any priority in the queue fits into 64 bits."""
    boost = count(value, field, minimum=0)
    if boost > MAX_AGE_BOOST_US:
        raise InvalidInput(
            f"{field} must be 30 days or less.",
            field=field,
            got=value,
            hint="Use lower priorities in place of a longer time.",
        )
    return boost


def did_you_mean(got: str, known: Iterable[str], written: Callable[[str], str] = str) -> str | None:
    """A hint naming the nearest known word, or else the known ones, for every 'no such …' message.

    `written`: how a word is written where it stands.
    """
    known = sorted(known)
    more = len(known) - KNOWN_SHOWN
    # A single one is named: its name is not longer than to say that it is left out.
    shown = known if more == 1 else known[:KNOWN_SHOWN]
    listed = ", ".join(_in_a_list(written(each)) for each in shown)
    listed += f" and {more} more" if more > 1 else ""
    return nearest(got, known, written) or (f"Known: {listed}." if known else None)


def _in_a_list(word: str) -> str:
    """In quotes where it could be read as several words, or as none."""
    return word if re.fullmatch(r"[^\s,]+", word) else repr(word)


def nearest(
    got: object, known: Iterable[str], written: Callable[[str], str] = str, cutoff: float = 0.5
) -> str | None:
    """The same where the message itself lists what is known. `cutoff`: how near a word must be, 0 to 1."""
    import difflib  # noqa: PLC0415 — loaded for a message only

    near = difflib.get_close_matches(str(got), sorted(known), n=1, cutoff=cutoff)
    return f"Did you mean {written(near[0])!r}?" if near else None


_CONTROLS: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # turn the order of what follows
)


def without_controls(text: str) -> str:
    """Only what can be read, and the ends of lines."""
    return _CONTROLS.sub("", text)


Declared = Mapping[str, tuple[str, ...]]
"""Label → its values; none named: any value."""


class Undeclared(NamedTuple):
    what: str
    hint: str


def undeclared(label: str, value: str, declared: Declared) -> Undeclared | None:
    """Which is not declared, the label or its value; None where both are."""
    allowed = declared.get(label)
    if allowed is None:
        return Undeclared(f"the label {label!r}", did_you_mean(label, declared) or "It is empty.")
    if allowed and value not in allowed:
        return Undeclared(f"the value {value!r}", did_you_mean(value, allowed) or "")
    return None


def never(needs: Mapping[str, str], declared: Declared | None) -> str | None:
    """Why no worker can ever have what a step needs; None where one can."""
    if declared is None:
        return None
    for label, value in needs.items():
        unknown = undeclared(label, value, declared)
        if unknown is not None:
            return (
                f"it needs {label}={value}, and [labels] does not know {unknown.what}:"
                " never, as settings are now"
            )
    return None


def check_labels(graph: Graph, declared: Declared) -> None:
    """Refuses a step that no worker can ever run."""
    for index, node in enumerate(graph.nodes):
        for label, value in node.needs.items():
            unknown = undeclared(label, value, declared)
            if unknown is not None:
                raise InvalidFlow(
                    f"step {node.name!r} needs a worker with {label}={value}, and [labels] does not know"
                    f" {unknown.what}: it would never start.",
                    field=f"nodes[{index}].needs.{label}",
                    got=value,
                    hint=f"{unknown.hint} Or add it to [labels] in the settings.".lstrip(),
                )
