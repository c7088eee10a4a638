"""`server` and `dev` with tokens, as real processes: what they refuse, and whom they answer."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import signal
import ssl
from pathlib import Path

import pytest
import trustme
from tests.support.cli_harness import locktender, output_of, started, until

pytestmark = pytest.mark.timeout(300)


def asked(port: int, path: str, token: str | None, tls: ssl.SSLContext | None = None) -> int:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=tls)
    )
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_without_a_token_it_does_not_start_and_says_why(tmp_path: Path):
    for words in (("--host", "0.0.0.0"), ("--auth", "tokens")):
        said = locktender("server", "--port", "0", "--json", "--url", "l.db", *words, cwd=tmp_path)
        assert (said.code, said.error["field"]) == (2, "auth"), words
        command = re.search(r"Make one: locktender (.*?)\. Or", said.error["hint"])
        assert command is not None
    wrong = ["server", "--port", "0", "--host", "0.0.0.0", "--auth", "none", "--json"]
    refused = locktender(*wrong, cwd=tmp_path)
    assert (refused.code, refused.error["field"]) == (2, "auth")
    dev = tmp_path / "flows.py"
    dev.write_text("from locktender import flow, step\n")
    words = ["dev", str(dev), "--auth", "tokens", "--port", "0", "--url", "l.db", "--json"]
    assert locktender(*words, cwd=tmp_path).code == 2
    # when that very command is given
    token = locktender(*shlex.split(command[1]), cwd=tmp_path).out.strip()

    # then it starts, and answers those who have the token
    pair = trustme.CA()
    issued = pair.issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(issued.private_key_pem.bytes())
    tls = ssl.create_default_context()
    pair.configure_trust(tls)
    options = ("--auth", "tokens", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    line = ("server", "--port", "0", "--json", "--url", "l.db", *options)
    with started(*line, cwd=tmp_path) as server:
        found = until(lambda: re.search(r"^{.*}$", output_of(server), re.MULTILINE), "its line")
        ready = json.loads(found[0])
        assert ready["url"] == f"https://127.0.0.1:{ready['port']}"
        assert asked(ready["port"], "/api/v1/runs", None, tls) == 401
        assert asked(ready["port"], "/api/v1/runs", token, tls) == 200
        assert asked(ready["port"], "/health", None, tls) == 200
        assert locktender("tokens", "revoke", "ops", "--url", "l.db", cwd=tmp_path).code == 0
        until(lambda: asked(ready["port"], "/api/v1/runs", token, tls) == 401, "the refusal")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_options_that_are_wrong(tmp_path: Path):
    server = ("server", "--port", "0", "--json")
    for words, field in (
        (("--auth", "token"), "auth"),
        (("--trusted-proxy", "10.0.0.0/8"), "trusted_proxy"),
        (("--auth", "tokens", "--trusted-proxy", "everyone"), "trusted_proxy"),
        (("--allowed-host", "a.example"), "allowed_host"),
        (("--tls-cert", "none.pem", "--tls-key", "none.pem"), "tls_cert"),
        (("--tls-cert", "none.pem"), "tls_key"),
    ):
        said = locktender(*server, *words, cwd=tmp_path)
        assert (said.code, said.error["field"]) == (2, field), words
    assert not (tmp_path / ".locktender").exists()
