"""A secret inside a value that is already encoded is refused: no worker would put its value there."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from locktender import secret
from locktender.base import codec
from locktender.base.errors import Unserialisable
from locktender.base.secrets import resolve
from locktender.flows.flows import flow
from locktender.flows.steps import step
from locktender.flows.trace import trace

ENCODED = msgspec.json.encode(secret("env:TOKEN"))
SPACED = b'{ "$locktender.secret" : "env:TOKEN" }'
ESCAPED = rb'{"\u0024locktender.secret":"env:TOKEN"}'


@dataclasses.dataclass
class Request:
    token: Any


@pytest.mark.parametrize(
    "value",
    [
        msgspec.Raw(ENCODED),
        msgspec.Raw(SPACED),
        msgspec.Raw(ESCAPED),
        msgspec.Raw(b'[1, {"a": ' + SPACED + b"}]"),
        msgspec.Raw(b'{"$locktender.secret":"env:TOKEN","other":1}'),
        {"a": [msgspec.Raw(SPACED)]},
        Request(msgspec.Raw(ESCAPED)),
        ENCODED.decode(),
        ["text", {"a": ENCODED.decode()}],
        ENCODED,
        [b"a" + ENCODED],
        Request(b"ab" + ENCODED),
        bytearray(ENCODED),
    ],
)
def test_an_encoded_secret_is_refused(value: Any):
    with pytest.raises(Unserialisable) as caught:
        codec.encode(value, "request")
    assert str(caught.value.field).startswith("request")
    assert 'Hand over secret("env:NAME") itself' in str(caught.value.hint)


@pytest.mark.parametrize("raw", [b"", b"{oops", b"NaN", b'"\xff"', b"1 2", rb'"\ud800"'])
def test_a_raw_that_is_no_json_is_refused(raw: bytes):
    with pytest.raises(Unserialisable, match=r"order\.a is a msgspec.Raw that is not JSON"):
        codec.encode({"a": msgspec.Raw(raw)}, "order")


@pytest.mark.parametrize("key", ["$locktender.blob", "$locktender.error"])
def test_a_raw_has_no_reserved_keys(key: str):
    with pytest.raises(Unserialisable, match="reserved"):
        codec.encode(msgspec.Raw(b'{"' + key.encode() + b'" : {}}'))


@pytest.mark.parametrize(
    "raw", [b'{"a": [1, null]}', b'"$locktender"', b'{"\\u0041":1}', '"ö"'.encode(), b"[]"]
)
def test_any_other_raw_is_stored_as_it_is(raw: bytes):
    assert codec.encode(msgspec.Raw(raw)) == raw
    assert codec.decode(raw, msgspec.Raw) == msgspec.Raw(raw)


def test_a_secret_beside_a_raw_still_reaches_the_step():
    stored = codec.encode({"token": secret("env:TOKEN"), "body": msgspec.Raw(b'{"a": 1}')})
    opened, found = resolve(stored, {"TOKEN": "value"})
    assert found == {"env:TOKEN": "value"}
    assert codec.decode(opened) == {"token": "value", "body": {"a": 1}}


@step
def send(body: Any) -> None: ...


@flow
def sending(body: Any) -> Any:
    return send([msgspec.Raw(SPACED)])


def test_a_flow_cannot_hand_one_to_a_step():
    with pytest.raises(Unserialisable, match="reserved"):
        trace(sending.definition, (1,), {})
