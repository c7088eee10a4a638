"""How a server is reached: TLS, proxies in front of it, and what is refused at the start."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trustme
from tests.support.server_harness import fetch, process, served

from locktender.base.errors import InvalidInput
from locktender.client.client_async import AsyncClient
from locktender.server.options import Forwarded, HttpOptions, checked_tls, http_options, networks

LOCAL = tuple(networks(["127.0.0.1"]))
ELSEWHERE = tuple(networks(["10.0.0.0/8", "192.0.2.7"]))
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pair(authority: trustme.CA, tmp_path: Path) -> tuple[Path, Path]:
    """Certificate and key of this machine."""
    made = authority.issue_cert("localhost", "127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return cert, key


async def test_a_server_speaks_tls_and_marks_its_cookies(
    authority: trustme.CA, pair: tuple[Path, Path], tmp_path: Path
):
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def ask(
        port: int, method: str, path: str, headers: Mapping[str, str], body: str | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
        connection.request(method, path, body, dict(headers))
        got = connection.getresponse()
        got.read()
        connection.close()
        return got

    options = HttpOptions("tokens", tls=checked_tls(str(pair[0]), str(pair[1])))
    async with (
        process(tmp_path / "locktender.db", lead=True, work=False) as (core, _),
        served(core, api=True, options=options) as port,
    ):
        token = (await AsyncClient(core).tokens.create("a", ["operate"])).token
        own = {"authorization": f"Bearer {token}"}
        answer = await asyncio.to_thread(ask, port, "GET", "/api/v1/runs", own)
        assert answer.status == 200
        form = urlencode({"token": token})
        origin = {**FORM, "origin": f"https://127.0.0.1:{port}"}
        answer = await asyncio.to_thread(ask, port, "POST", "/login", origin, form)
        cookie = answer.headers["set-cookie"]
        assert answer.status == 303
        assert cookie.startswith("__Host-locktender=lt_")
        assert "; Secure" in cookie
        session = {"cookie": cookie.partition(";")[0]}
        assert (await asyncio.to_thread(ask, port, "GET", "/api/v1/runs", session)).status == 200
        plain = {**FORM, "origin": f"http://127.0.0.1:{port}"}
        assert (await asyncio.to_thread(ask, port, "POST", "/login", plain, form)).status == 403
        with pytest.raises((OSError, http.client.HTTPException)):
            await fetch(port, "/api/v1/runs", headers=own)  # without TLS


def test_wrong_certificates_are_refused_before_the_start(pair: tuple[Path, Path], tmp_path: Path):
    cert, key = map(str, pair)
    other = tmp_path / "other.pem"
    other.write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM")
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-128-CBC,00000000000000000000000000000000\n\nAAAA\n"
        "-----END RSA PRIVATE KEY-----\n"
    )
    for given, field, said in (
        ((cert, None), "tls_key", "--tls-key"),
        ((None, key), "tls_cert", "--tls-cert"),
        ((str(tmp_path / "none.pem"), key), "tls_cert", "No such file"),
        ((cert, str(tmp_path)), "tls_key", "directory"),
        ((cert, str(other)), "tls_key", "does not belong"),
        ((str(garbage), key), "tls_cert", "not a certificate"),
        ((cert, str(garbage)), "tls_key", "not a private key"),
        ((cert, str(encrypted)), "tls_key", "encrypted"),
    ):
        with pytest.raises(InvalidInput) as caught:
            checked_tls(*given)
        assert caught.value.field == field, given
        assert said in str(caught.value), caught.value
    assert checked_tls(None, None) is None


@pytest.mark.parametrize(("proxies", "believed"), [(LOCAL, True), (ELSEWHERE, False), ((), False)])
async def test_a_proxy_is_believed_only_where_it_is_trusted(
    tmp_path: Path, proxies: tuple[Any, ...], believed: bool
):
    options = HttpOptions("tokens", frozenset({"locktender.example", "127.0.0.1"}), proxies)
    async with (
        process(tmp_path / "locktender.db", lead=True, work=False) as (core, _),
        served(core, api=True, options=options) as port,
    ):
        token = (await AsyncClient(core).tokens.create("a", ["operate"])).token
        said = {
            "x-forwarded-for": "203.0.113.5",
            "x-forwarded-proto": "https",
            "x-forwarded-host": "locktender.example",
        }
        form = urlencode({"token": token}).encode()
        outside = {**FORM, **said, "origin": "https://locktender.example"}
        answer = await fetch(port, "/login", "POST", form, outside)
        assert answer.status == (303 if believed else 403)
        if believed:
            assert answer.headers["set-cookie"].startswith("__Host-locktender=")
        inside = {**FORM, **said, "origin": f"http://127.0.0.1:{port}"}
        answer = await fetch(port, "/login", "POST", form, inside)
        assert answer.status == (403 if believed else 303)
        if not believed:
            assert "secure" not in answer.headers["set-cookie"].lower()
        # a name that is not allowed is not allowed through a proxy either
        evil = {"authorization": f"Bearer {token}", "x-forwarded-host": "evil.example"}
        answer = await fetch(port, "/api/v1/runs", headers=evil)
        assert answer.status == (403 if believed else 200)


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("10.0.0.1", "203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", "1.2.3.4, 203.0.113.5", "203.0.113.5"),  # the first is the client's own word
        ("10.0.0.1", "203.0.113.5, 10.9.9.9", "203.0.113.5"),  # two proxies
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "nonsense", "nonsense"),
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),
        ("::ffff:10.0.0.1", "203.0.113.5", "203.0.113.5"),
    ],
)
async def test_the_client_behind_proxies(peer: str, header: str, client: str):
    seen: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope)

    headers = [(b"host", b"a"), (b"x-forwarded-for", header.encode())]
    scope = {"type": "http", "scheme": "http", "client": (peer, 5), "headers": headers}
    nothing: Any = None
    await Forwarded(app, ELSEWHERE)(scope, nothing, nothing)
    assert seen[0]["client"][0] == client
    assert seen[0]["headers"] == [(b"host", b"a")]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"auth": "none", "loopback": False}, "auth", "--no-api"),
    ({"auth": "both", "loopback": True}, "auth", "none"),
    ({"auth": None, "loopback": True, "proxies": ["10.0.0.0/8"]}, "trusted_proxy", "--auth tokens"),
    ({"auth": None, "loopback": True, "allowed_hosts": ["a"]}, "allowed_host", "--auth tokens"),
    ({"auth": "tokens", "loopback": True, "proxies": ["10.0.0.0/99"]}, "trusted_proxy", "10.0.0.7"),
    ({"auth": "tokens", "loopback": True, "proxies": ["proxy"]}, "trusted_proxy", "not a network"),
]


@pytest.mark.parametrize(("given", "field", "said"), REFUSED)
def test_unsafe_options_are_refused(given: dict[str, Any], field: str, said: str):
    with pytest.raises(InvalidInput) as caught:
        http_options(**given)
    assert caught.value.field == field
    assert said in str(caught.value)


def test_tokens_are_the_default_everywhere_but_on_loopback():
    make: Callable[..., HttpOptions] = http_options
    assert make(auth=None, loopback=True).auth == "none"
    assert make(auth=None, loopback=False).auth == "tokens"
    found = make(auth="tokens", loopback=True, proxies=["10.0.0.0/8,192.0.2.7"])
    assert [str(each) for each in found.proxies] == ["10.0.0.0/8", "192.0.2.7/32"]
