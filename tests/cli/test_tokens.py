"""`tokens create|list|revoke`: a token is printed once, its hash is stored."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.support.cli_harness import locktender

from locktender import connect


def test_a_token_is_printed_once_and_only_its_hash_is_stored(tmp_path: Path):
    def command(*words: str):
        return locktender("tokens", *words, "--url", "l.db", cwd=tmp_path)

    made = command("create", "ci", "--scope", "submit", "--tag", "tenant=acme", "--expires", "30d")
    assert made.code == 0, made.err
    token = made.out.strip()
    assert token.startswith("lt_")
    assert "shown this once" in made.err
    [listed] = command("list", "--json").data
    assert (listed["name"], listed["state"], listed["tags"]) == ("ci", "valid", {"tenant": "acme"})
    assert listed["scopes"] == ["read", "submit"]
    assert (listed["used_at"], listed["expires_at"] > listed["created_at"]) == (None, True)
    assert token.split("_")[1] == listed["id"]
    shown = command("list")
    assert "tenant=acme" in shown.out
    secret = token.split("_", 2)[2]
    assert secret not in shown.out
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]
    again = command("create", "ci", "--scope", "read")
    assert (again.code, "tokens revoke ci" in again.err) == (2, True)
    other = command("create", "ops", "--scope", "operate", "--json").data
    assert other["token"].startswith(f"lt_{other['info']['id']}_")
    assert command("revoke", "ci").code == 0
    assert command("revoke", other["info"]["id"], "--json").data["state"] == "revoked"
    assert {each["state"] for each in command("list", "--json").data} == {"revoked"}
    assert {bool(each["revoked_by"]) for each in command("list", "--json").data} == {True}
    missing = command("revoke", "ci")
    assert missing.code != 0
    assert "no token 'ci'" in missing.err


def test_wrong_tokens_are_refused(tmp_path: Path):
    def refused(*words: str) -> str:
        found = locktender("tokens", "create", *words, "--url", "l.db", cwd=tmp_path)
        assert found.code == 2
        return found.err

    assert "read, submit, operate, admin" in refused("a")
    assert "'submit'" in refused("a", "--scope", "submitt")
    assert "duration" in refused("a", "--scope", "read", "--expires", "soon")
    assert "path" in refused("../a", "--scope", "read")
    assert "tag" in refused("a", "--scope", "read", "--tag", "tenant")
    with connect(tmp_path / "l.db") as client:
        assert client.tokens.list() == []
    with sqlite3.connect(tmp_path / "l.db") as db:
        assert db.execute("SELECT count(*) FROM token").fetchone() == (0,)
