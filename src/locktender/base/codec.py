"""Values as JSON, and JSON handled as raw bytes.

Two jobs. `encode` and `decode` turn a user's values into JSON and back, by
annotation, and refuse what would not come back as it went in. The rest works
on JSON that is already there (templates, items of a map, calls) and touches
only what it must, because it is on the path of every task.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, cast, overload

import msgspec

from locktender.base.errors import InvalidInput, Unserialisable
from locktender.base.jsonable import (
    BLOB_KEY,
    ERROR_KEY,
    MAX_DEPTH,
    StepError,
    Unreadable,
    from_json,
    refuse,
    spoken,
    to_json,
)
from locktender.base.model import Failure
from locktender.base.secrets import ENCODED_MARKS

__all__ = [
    "BLOB_KEY",
    "ERROR_KEY",
    "MAX_DEPTH",
    "StepError",
    "blob_ref",
    "decode",
    "decoder",
    "encode",
    "error_value",
    "is_blob",
    "is_unreadable",
    "join_list",
    "join_object",
    "pick",
    "read_call",
    "render_call",
    "split_list",
]

T = TypeVar("T")


def encode(value: object, field: str = "value") -> bytes:
    """`value` as JSON. Raises `Unserialisable` naming the place inside the value that has no JSON form."""
    try:
        raw = _encode(value)
    except (TypeError, ValueError, RecursionError, AttributeError) as error:
        refuse(value, field)
        raise Unserialisable(
            f"{field} has no JSON form: {error}.", field=field, got=type(value)
        ) from error
    if type(value) in _PLAIN and b"$locktender." not in raw:
        return raw
    # Bytes tell cheaply that nothing is wrong; only where they might, the value itself is walked.
    if (
        b"null" in raw
        or b"$locktender." in raw
        or b"\\u00"
        in raw  # how a `Raw` may write a reserved key; nothing else has it but control characters
        or _MARK_0 in raw
        or _MARK_1 in raw
        or _MARK_2 in raw
        or not _is_json(raw)
        or b'nan"' in raw
        or b'inf"' in raw
        or (len(raw) > MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH)
    ):
        refuse(value, field)
        # A renamed field can write what no dict may; inside a text the quotes would be escaped.
        if _BLOB_KEY in raw:
            raise Unserialisable(
                f"{field} writes the key {BLOB_KEY!r}, which is reserved.",
                field=field,
                got=type(value).__name__,
                hint="Rename the field: names that begin with '$locktender.' are ours.",
            )
    return raw


@overload
def decode(data: bytes, type: type[T], field: str = "value") -> T: ...
@overload
def decode(data: bytes, type: Any = Any, field: str = "value") -> Any: ...
def decode(data: bytes, type: Any = Any, field: str = "value") -> Any:  # noqa: A002
    """JSON as the annotated `type`; a collected error arrives as `StepError` wherever it stands."""
    return decoder(type)(data, field)


def decoder(wanted: Any) -> Callable[[bytes, str], Any]:
    """The decoder of one annotation, made once. Raises `InvalidInput` if none can be made."""
    try:
        return _cached_decoder(wanted)
    except TypeError:  # an annotation that cannot be hashed, e.g. Annotated[int, {...}]
        return _make_decoder(wanted)


def _make_decoder(wanted: Any) -> Callable[[bytes, str], Any]:
    plain = _without_errors(wanted)
    try:
        read = msgspec.json.Decoder(plain, dec_hook=from_json).decode
    except TypeError as error:
        raise InvalidInput(
            f"values of type {spoken(wanted)} cannot be read from JSON: {error}.",
            field="annotation",
            got=wanted,
            hint="Use one type, or a union of plain JSON types.",
        ) from error

    def decode_checked(data: bytes, field: str = "value") -> Any:
        if _ERROR_MARK in data:
            return _decode_with_errors(data, plain, field)
        try:
            return read(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            raise _mismatch(error, wanted, field) from error

    return decode_checked


_cached_decoder = functools.lru_cache(maxsize=4096)(_make_decoder)
_CONTAINERS: frozenset[Any] = frozenset({list, tuple, dict, set, frozenset, Sequence, Mapping})
_ERROR_MARK = b'"$locktender.error"'
_ERROR_START = b"{" + _ERROR_MARK


def _mismatch(error: Exception, wanted: Any, field: str) -> InvalidInput:
    hint = f"The annotation asks for {spoken(wanted)}."
    if field == "result" and "got `null`" in str(error):
        hint += " A step that is skipped or returns nothing has the result None: allow it with `| None`."
    return InvalidInput(
        f"{field} is not {spoken(wanted)}: {str(error).rstrip('.')}.", field=field, hint=hint
    )


def is_unreadable(error: InvalidInput) -> bool:
    """Whether a value could not be read because of the annotation alone, whatever the value."""
    cause: BaseException | None = error.__cause__
    while cause is not None:
        if isinstance(cause, Unreadable):
            return True
        cause = cause.__cause__
    return False


def _without_errors(wanted: Any) -> Any:
    """`wanted` with `StepError` taken out of its unions: errors are put in by hand, beside any other type."""
    origin: Any = typing.get_origin(wanted)
    arguments = typing.get_args(wanted)
    if StepError in arguments and (origin is typing.Union or origin is types.UnionType):
        members = tuple(_without_errors(each) for each in arguments if each is not StepError)
        return typing.Union[members]  # noqa: UP007
    if origin in _CONTAINERS:
        return origin[tuple(each if each is ... else _without_errors(each) for each in arguments)]
    return wanted


def _decode_with_errors(data: bytes, wanted: Any, field: str) -> Any:
    """Typed decoding of JSON that has collected errors in it, element by element."""
    if data.lstrip().startswith(_ERROR_START):
        return msgspec.json.decode(data, type=StepError)
    kind: Any = typing.get_origin(wanted) or wanted
    arguments = typing.get_args(wanted)
    if isinstance(kind, type) and issubclass(kind, Sequence | AbstractSet):
        return _decode_elements(data, kind, arguments, field)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        read = decoder(arguments[1] if arguments else Any)
        pairs = _read_fields(data)
        return {key: read(bytes(raw), f"{field}.{key}") for key, raw in pairs.items()}
    plain = _revive(msgspec.json.decode(data))
    if wanted is Any or wanted is object:
        return plain
    try:
        return msgspec.convert(plain, wanted, dec_hook=from_json)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise _mismatch(error, wanted, field) from error


def _decode_elements(data: bytes, kind: Any, arguments: tuple[Any, ...], field: str) -> Any:
    items = split_list(data)
    if kind is tuple and arguments and ... not in arguments:
        wanted = list(arguments)
    else:
        wanted = [arguments[0] if arguments else Any] * len(items)
    if len(wanted) != len(items):
        raise InvalidInput(f"{field} has {len(items)} elements, not {len(wanted)}.", field=field)
    values = [
        decoder(each)(item, f"{field}[{index}]")
        for index, (each, item) in enumerate(zip(wanted, items, strict=True))
    ]
    make: Any = kind if kind in {tuple, set, frozenset} else list
    return make(values)


def _revive(value: Any) -> Any:
    """Plain JSON with every error object in it made a `StepError`."""
    if isinstance(value, list):
        return [_revive(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        if len(found) == 1 and ERROR_KEY in found:
            return msgspec.convert(found, StepError)
        return {key: _revive(each) for key, each in found.items()}
    return value


def _is_json(raw: bytes) -> bool:
    """False where a `msgspec.Raw`, which is written as it is, is not JSON: the whole call would be unreadable."""
    try:
        _skim(raw)
        if not raw.isascii():
            raw.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


_MARK_0, _MARK_1, _MARK_2 = ENCODED_MARKS
_skim = msgspec.json.Decoder(msgspec.Raw).decode
_PLAIN = frozenset({str, int, bool, type(None)})
_encode = msgspec.json.Encoder(enc_hook=to_json).encode


class _Call(msgspec.Struct):
    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


class _BlobBody(msgspec.Struct):
    digest: str
    size: int


class _Blob(msgspec.Struct):
    ref: _BlobBody = msgspec.field(name=BLOB_KEY)


_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_call = msgspec.json.Decoder(_Call).decode
_read_blob = msgspec.json.Decoder(_Blob).decode
_write = msgspec.json.Encoder().encode
_BLOB_KEY = b'"$locktender.blob":'
_BLOB_HEAD = b"{" + _BLOB_KEY


def blob_ref(digest: str, size: int) -> bytes:
    """The value that stands for a blob."""
    return _write(_Blob(_BlobBody(digest, size)))


def is_blob(raw: bytes) -> tuple[str, int] | None:
    """Digest and size if `raw` stands for a blob. Only we write such values, always in one form."""
    if not raw.startswith(_BLOB_HEAD):
        return None
    body = _read_blob(raw).ref
    return body.digest, body.size


def error_value(failure: Failure) -> bytes:
    """A failed item as a value. The traceback stays with the task: it would be copied to every reader."""
    return _write(StepError(Failure(type=failure.type, message=failure.message, node=failure.node)))


def is_error(value: bytes) -> bool:
    """Whether a value is a collected error, and not only has one in it."""
    return value.startswith(_ERROR_START)


def split_list(raw: bytes) -> list[bytes]:
    """The elements of a JSON array. Raises LookupError where `raw` is something else."""
    try:
        return [bytes(item) for item in _read_items(raw)]
    except msgspec.MsgspecError:
        raise LookupError(f"a list is needed here, not {_kind(raw)}") from None


def join_list(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"


def join_object(fields: Mapping[str, bytes]) -> bytes:
    if not fields:
        return b"{}"
    return b"{" + b",".join([_label(name) + raw for name, raw in fields.items()]) + b"}"


@functools.lru_cache(maxsize=4096)
def _label(name: str) -> bytes:
    return _write(name) + b":"


def pick(raw: bytes, path: Iterable[str | int]) -> bytes:
    """The part of `raw` at `path`. Raises LookupError saying what is there instead."""
    for key in path:
        raw = _step_into(raw, key)
    return raw


def _step_into(raw: bytes, key: str | int) -> bytes:
    first = raw.lstrip()[:1]
    if first == b"[" and isinstance(key, int):
        items = _read_items(raw)
        if not -len(items) <= key < len(items):
            raise LookupError(f"there is no element {key} in a list of {len(items)}")
        return bytes(items[key])
    if first == b"{" and not raw.startswith(_BLOB_HEAD):
        fields = _read_fields(raw)
        # A dict with whole numbers as keys has them as text in JSON.
        found = fields.get(str(key))
        if found is None:
            known = ", ".join(sorted(fields)[:10]) or "none"
            raise LookupError(f"there is no key {key!r}; known keys: {known}")
        return bytes(found)
    raise LookupError(f"{key!r} cannot be taken from {_kind(raw)}")


_KINDS = {b"[": "a list", b"{": "an object", b'"': "a text", b"t": "true", b"f": "false"}


def _kind(raw: bytes) -> str:
    if raw.startswith(_BLOB_HEAD):
        return "a value kept as a blob"
    first = raw.lstrip()[:1]
    return "null" if first == b"n" else _KINDS.get(first, "a number")


def render_call(args: Iterable[bytes], kwargs: Mapping[str, bytes]) -> bytes:
    """A call as a task stores it: `{"args": […], "kwargs": {…}}`."""
    return b'{"args":[' + b",".join(args) + b'],"kwargs":' + join_object(kwargs) + b"}"


_NO_KEYWORDS = b'],"kwargs":{}}'


def call_decoder(wanted: Sequence[Any]) -> Callable[[bytes], tuple[Any, ...] | None] | None:
    """Reads the arguments of a call without keywords, typed, in one go; None where no decoder can be made.

    It answers None to a call that is not just that: `read_call` and `decoder` say then what is wrong.
    """
    types_of_args = tuple(map(_without_errors, wanted))
    try:
        call = msgspec.defstruct("Call", [("args", tuple[types_of_args])], gc=False)  # pyright: ignore
        read = msgspec.json.Decoder(call, dec_hook=from_json).decode
    except TypeError:
        return None

    def decode_args(raw: bytes) -> tuple[Any, ...] | None:
        if _ERROR_MARK in raw or not raw.endswith(_NO_KEYWORDS):
            return None
        try:
            return read(raw).args  # pyright: ignore
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError):
            return None

    return decode_args


def read_call(raw: bytes) -> tuple[list[bytes], dict[str, bytes]]:
    call = _read_call(raw)
    return (
        [bytes(item) for item in call.args],
        {name: bytes(item) for name, item in call.kwargs.items()},
    )
