"""Values go out as JSON and come back as they were, or are refused with the place that cannot."""

import dataclasses
import sys
import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locktender.base import codec
from locktender.base.codec import StepError
from locktender.base.errors import InvalidInput, Unserialisable
from locktender.base.model import Failure


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    when: datetime | None = None


class Pair(NamedTuple):
    left: int
    right: str


class Row(TypedDict):
    id: int
    seen: date


class Thing(msgspec.Struct):
    name: str
    inner: Point | None = None


class Model(pydantic.BaseModel):
    when: datetime
    path: Path
    renamed: int = pydantic.Field(default=0, alias="re-named")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: datetime


class Holder(msgspec.Struct):
    models: list[Model]


class Forged(msgspec.Struct):
    ref: dict[str, int] = msgspec.field(name="$locktender.blob")


class Id(str):
    __slots__ = ()


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
YEAR_1000 = NOON.replace(year=1000, tzinfo=None)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Point(1, NOON), Point),
        (Pair(1, "a"), Pair),
        ({"id": 1, "seen": date(2024, 1, 2)}, Row),
        (Thing("a", Point(2)), Thing),
        (Model(**{"when": NOON, "path": Path("a/b"), "re-named": 3}), Model),
        (Strict(when=NOON), Strict),
        (Holder([Model(when=NOON, path=Path("a"))]), Holder),
        ([Model(when=NOON, path=Path("a"))], list[Model]),
        (NOON, datetime),
        (NOON.replace(tzinfo=None), datetime),
        (date(2024, 5, 1), date),
        (timedelta(days=2, microseconds=5), timedelta),
        (Colour.RED, Colour),
        (Level.LOW, Level),
        (uuid.UUID(int=5), uuid.UUID),
        (Decimal("1.10"), Decimal),
        (b"\x00\xff", bytes),
        ({1, 2}, set[int]),
        (frozenset({"a"}), frozenset[str]),
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        (Path("/a/b"), Path),
        ([Path("a"), Path("b")], list[Path]),
        (None, Path | None),
        ({1: "a"}, dict[int, str]),
        ({Colour.RED: 1}, dict[Colour, int]),
        (Id("abc"), Id),
        ("a", Literal["a", "b"]),
        (3, Annotated[int, {"unhashable": True}]),
        (2**64 - 1, int),
        (2**200, int),
        (-(2**63) - 1, Any),
        ({"a": None, "nan": "inf", "b": "null"}, Any),
        (OrderedDict(a=1), dict[str, int]),
    ],
)
def test_a_value_comes_back_as_it_went_by_annotation(value: Any, annotation: Any):
    back = codec.decode(codec.encode(value), annotation)
    assert back == value
    if annotation is not Any and not isinstance(value, dict):
        assert type(back) is type(value)


def test_without_an_annotation_values_arrive_as_plain_json():
    raw = codec.encode({"a": (1, 2), "b": Point(1), "c": b"x", "d": Path("p")})
    assert codec.decode(raw) == {"a": [1, 2], "b": {"x": 1, "when": None}, "c": "eA==", "d": "p"}


# Hypothesis reads constants from the source: keys that are ours would be refused, as they should be.
keys = st.text().filter(lambda text: not text.startswith("$locktender."))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=30,
)


@given(json_values)
def test_plain_json_round_trips(value: Any):
    assert codec.decode(codec.encode(value)) == value


@given(
    st.lists(
        st.builds(
            Point,
            st.integers(),
            st.none() | st.datetimes(timezones=st.just(UTC), min_value=YEAR_1000),
        )
    ),
    st.dictionaries(st.integers(), st.binary()),
)
def test_typed_values_round_trip(points: list[Point], blobs: dict[int, bytes]):
    assert codec.decode(codec.encode(points), list[Point]) == points
    assert codec.decode(codec.encode(blobs), dict[int, bytes]) == blobs


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "field", "says"),
    [
        (float("nan"), "args", "nan"),
        ({"a": [1.0, float("inf")]}, "args.a[1]", "inf"),
        (Point(float("-inf")), "args.x", "-inf"),  # type: ignore[arg-type]
        ({float("nan"): 1}, "args", "nan"),
        ("\ud800", "args", "surrogate"),
        ({"a": {"\udfff": 1}}, "a key of args.a", "surrogate"),
        (nested(101), "args", "100 deep"),
        (nested(5000), "args", "100 deep"),
        (loop(), "args", "contains itself"),
        ({(1, 2): 3}, "args", "key of type tuple"),
        ({"a": {None: 3}}, "args.a", "key of type NoneType"),
        ({"items": [1, 2, 3, {"conn": object()}]}, "args.items[3].conn", "object"),
        (Thing("a", Point(sys)), "args.inner.x", "module"),  # type: ignore[arg-type]
        ([{"f": print}], "args[0].f", "no JSON form"),
        (3j, "args", "complex"),
        ((n for n in [1]), "args", "generator"),
        (range(3), "args", "range"),
        ({"a": {"$locktender.blob": 1}}, "args.a.$locktender.blob", "reserved"),
        ([{"$locktender.error": 1, "b": 2}], "args[0].$locktender.error", "reserved"),
        ([Forged({"digest": 1})], "args", "reserved"),
        (msgspec.Raw(b'{"$locktender.blob":{}}'), "args.$locktender.blob", "reserved"),
        (ValueError("x"), "args", "ValueError"),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_place(value: Any, field: str, says: str):
    with pytest.raises(Unserialisable) as caught:
        codec.encode(value, "args")
    assert caught.value.field == field
    assert says in caught.value.message
    assert caught.value.code == "unserialisable"
    assert set(caught.value.as_dict()) == {"code", "message", "field", "got", "hint"}


def test_a_hundred_levels_are_allowed():
    assert codec.decode(codec.encode(nested(100))) == nested(100)


@pytest.mark.parametrize(
    ("raw", "annotation", "says"),
    [
        (b'"a"', int, "Expected `int`"),
        (b'[1,"a"]', list[int], "$[1]"),
        (b"{}", Point, "missing required field"),
        (b"nonsense", Any, "JSON"),
        (b"[" * 5000 + b"]" * 5000, Any, "recursion"),
        (b'{"when":1}', Model, "path"),
    ],
)
def test_json_that_does_not_fit_its_annotation_is_refused(raw: bytes, annotation: Any, says: str):
    with pytest.raises(InvalidInput) as caught:
        codec.decode(raw, annotation, "items")
    assert says in caught.value.message
    assert caught.value.field == "items"


def test_an_annotation_nothing_can_read_is_refused():
    with pytest.raises(InvalidInput, match="cannot be read from JSON"):
        codec.decoder(Path | int)


ERROR = StepError.of("ValueError", "bad", "index")


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (ERROR, Any),
        (ERROR, int),
        ([1, ERROR], Any),
        ([1, ERROR], list),
        ([1, ERROR], list[int]),
        ([1, ERROR], list[int | StepError]),
        ([Path("a"), ERROR], list[Path | StepError]),
        ([Point(1), ERROR], list[Point]),
        ((1, ERROR), tuple[int, StepError]),
        ((ERROR, 1), tuple[int | StepError, ...]),
        ({"a": [ERROR], "b": []}, dict[str, list[int]]),
        ({"deep": {"er": [ERROR]}}, Any),
    ],
)
def test_a_collected_error_arrives_as_one_wherever_it_stands(value: Any, annotation: Any):
    back = codec.decode(codec.encode(value), annotation)
    assert back == value


def test_an_error_value_has_no_traceback():
    raw = codec.error_value(Failure("ValueError", "bad", traceback="long", node="index"))
    error = codec.decode(raw)
    assert (error.type, error.message, error.node) == ("ValueError", "bad", "index")
    assert str(error) == "ValueError: bad"
    assert b"long" not in raw


def test_a_blob_reference_is_told_from_every_other_value():
    raw = codec.blob_ref("abc", 300_000)
    assert codec.is_blob(raw) == ("abc", 300_000)
    for other in (b"{}", b'{"a":1}', b'"$locktender.blob"', b"[]", b"null"):
        assert codec.is_blob(other) is None


@given(st.lists(json_values, max_size=8))
def test_splitting_and_joining_a_list_are_inverse(values: list[Any]):
    parts = codec.split_list(codec.encode(values))
    assert [codec.decode(part) for part in parts] == values
    assert codec.decode(codec.join_list(parts)) == values


@pytest.mark.parametrize("raw", [b"{}", b'"a"', b"3", b"null", codec.blob_ref("a", 1)])
def test_only_a_list_can_be_split(raw: bytes):
    with pytest.raises(LookupError, match="a list is needed here, not"):
        codec.split_list(raw)


@pytest.mark.parametrize(
    ("raw", "path", "part"),
    [
        (b'{"a":[1,{"b":2}]}', ("a", 1, "b"), b"2"),
        (b"[1,2]", (-1,), b"2"),
        (b"[1]", (), b"[1]"),
        (b'{"1":"x"}', (1,), b'"x"'),
        (b' {"a": null}', ("a",), b"null"),
    ],
)
def test_a_part_is_picked_by_its_path(raw: bytes, path: tuple[str | int, ...], part: bytes):
    assert codec.pick(raw, path) == part


@pytest.mark.parametrize(
    ("raw", "path", "says"),
    [
        (b'{"a":1,"b":2}', ("c",), "no key 'c'; known keys: a, b"),
        (b"[1,2]", (2,), "no element 2 in a list of 2"),
        (b"[1,2]", ("a",), "'a' cannot be taken from a list"),
        (b"null", ("a",), "from null"),
        (b'"text"', (0,), "from a text"),
        (b"12", (0,), "from a number"),
        (codec.blob_ref("d", 1), ("a",), "from a value kept as a blob"),
    ],
)
def test_a_part_that_is_not_there_says_what_is(raw: bytes, path: tuple[str | int, ...], says: str):
    with pytest.raises(LookupError) as caught:
        codec.pick(raw, path)
    assert says in str(caught.value)


@given(st.lists(json_values, max_size=4), st.dictionaries(keys, json_values, max_size=4))
def test_a_call_is_read_as_it_was_rendered(args: list[Any], kwargs: dict[str, Any]):
    raw_args = [codec.encode(each) for each in args]
    raw_kwargs = {name: codec.encode(each) for name, each in kwargs.items()}
    call = codec.render_call(raw_args, raw_kwargs)
    assert codec.read_call(call) == (raw_args, raw_kwargs)
    assert codec.decode(call) == {"args": args, "kwargs": kwargs}


def test_pydantic_is_not_imported_unless_the_user_does():
    import subprocess

    code = "import sys, locktender.flows.trace; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_result_of_none_says_that_a_step_may_have_been_skipped():
    with pytest.raises(InvalidInput, match=r"skipped or returns nothing has the result None"):
        codec.decode(b'[null, "a"]', list[str], "result")
    with pytest.raises(InvalidInput) as caught:
        codec.decode(b"[1]", list[str], "result")
    assert "skipped" not in str(caught.value)
