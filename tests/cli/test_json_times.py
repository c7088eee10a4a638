"""Times in every command's JSON have one form: 2026-11-16T12:45:40.881868Z."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import typer
from tests.steps import word_steps as flows
from tests.support.cli_harness import CommandResult, batch

from locktender import Client
from locktender.cli.answers import as_json
from locktender.cli.main import app, register_all
from locktender.testing import eventually

SERVE = {"dev", "demo", "server", "worker", "completion", "db grant-worker", "db grant-submit"}
"""They go on, or answer with no times: tests of their own start them."""
WORD = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*")
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
OF_USERS = {"args", "result", "note", "why", "text", "reason", "message"}
"""Texts for people, and what users stored. A `rank` is the order of queued runs, not a time."""


def test_times_of_every_command_have_one_form(engine: Client, url: Path, tmp_path: Path):
    gate = tmp_path / "gate"
    (tmp_path / "some_flows.py").write_text(
        "from locktender import flow, step\n@step\ndef one() -> int:\n    return 1\n"
        "@flow\ndef quick() -> int:\n    return one()\n"
    )
    engine.pools.set("db", 1)
    engine.limits.set("max_concurrent_runs", 2)
    engine.schedules.set("nightly", flows.beside, {"x": 1}, cron="0 3 * * *")
    held = engine.submit(flows.through_a_file, str(gate), 1, deadline="1h")
    ended = engine.submit(flows.beside, 1)
    ended.result("60s")
    engine.submit(flows.through_a_file, str(gate), 2)
    queued = engine.submit(flows.through_a_file, str(gate), 3)
    engine.runs.pause([queued], "by hand")
    eventually(lambda: held.tasks()[0].state == "running")
    worker = engine.workers.list()[0].id
    names = {
        "run": held.id,
        "subject": held.id,
        "worker": worker,
        "pool": "db",
        "task": "1",
        "key": "0",
    }
    given = {
        "run": ["run", "some_flows.py:quick", "--url", str(tmp_path / "other.db")],
        "submit": ["submit", "some_flows.py:quick"],
        "send": ["send", held.id, "go"],
        "runs show": ["runs", "show", ended.id],
        "runs retry": ["runs", "retry", ended.id],
        "runs cancel": ["runs", "cancel", queued.id],
        "queue why": ["queue", "why", queued.id],
        "queue cancel": ["queue", "cancel", queued.id],
        "queue reprioritise": ["queue", "reprioritise", queued.id, "3"],
        "limits set": ["limits", "set", "max_active", "9"],
        "limits reset": ["limits", "reset", "max_active"],
        "schedules set": ["schedules", "set", "daily", flows.beside.name, "--args", '{"x": 1}',
                          "--every", "24h"],
        "schedules delete": ["schedules", "delete", "daily"],
        "tokens create": ["tokens", "create", "ann", "--scope", "read"],
        "tokens revoke": ["tokens", "revoke", "ann"],
        "events follow": ["events", "--run", ended.id, "--follow"],
        "db prune": ["db", "prune", "--older-than", "1d", "--dry-run"],
        "db copy": ["db", "copy", str(url), str(tmp_path / "copy.db")],
        "db backup": ["db", "backup", str(tmp_path / "backup.db")],
    }  # fmt: skip
    for path, command in all_commands():
        if path in given or path in SERVE:
            continue
        noun = path.split()[0]
        named = {"schedules": "nightly", "pools": "db", "flows": flows.beside.name, "limits": "db"}
        values = {**names, "name": named.get(noun, ""), "flow": flows.beside.name}
        required = [each.name for each in command.params if each.required]
        missing = [each for each in required if each not in values]
        assert not missing, f"say in this test how {path} is called: {missing}"
        given[path] = [*path.split(), *(values[each] for each in required)]
    # Commands that only read come first, while everything is there.
    reads = ("list", "show", "info", "why", "logs", "history", "events", "status")
    order = sorted(given, key=lambda path: not path.endswith(reads))
    said = batch({path: ["--url", str(url), "--json", *given[path]] for path in order}, tmp_path)
    gate.touch()
    found = {path: list(_times(path, result)) for path, result in said.items()}
    assert {at for each in found.values() for at in each if not ISO.fullmatch(at)} == set()
    assert {"runs list", "why", "events", "events follow", "db status", "workers list"} <= {
        path for path, times in found.items() if times
    }


def all_commands() -> Iterator[tuple[str, Any]]:
    register_all()
    nouns: Any = typer.main.get_command(app)
    for noun, command in nouns.commands.items():
        for verb, each in getattr(command, "commands", {"": command}).items():
            yield f"{noun} {verb}".strip(), each


def _times(path: str, result: CommandResult) -> Iterator[str]:
    """Every text that begins as a time does; a number that is one is refused."""
    assert result.code == 0 or not result.out or path in {"audit", "db status"}, (path, result.err)
    for line in (result.out or result.err).splitlines():
        if line.startswith(("{", "[")):
            yield from _within(path, json.loads(line))


def _within(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key != "rank" and (key not in OF_USERS or isinstance(each, list | dict)):
                yield from _within(f"{where}.{key}", each)
    elif isinstance(value, list):
        for each in value:
            yield from _within(where, each)
    elif isinstance(value, int | float):
        assert not 10**15 <= value < 10**16, f"{where} is a time in microseconds: {value}"
    elif isinstance(value, str):
        yield from WORD.findall(value)


def test_what_users_stored_is_unchanged():
    stored = {"args": {"at": 1_790_000_000_000_000}, "result": msgspec.Raw(b'{"at": 5}')}
    assert json.loads(as_json({**stored, "at": 1_790_000_000_000_000, "since": 0})) == {
        "args": {"at": 1_790_000_000_000_000},
        "result": {"at": 5},
        "at": "2026-09-21T14:13:20.000000Z",
        "since": None,
    }
    whole = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert as_json([whole]) == b'["2026-01-02T03:04:05.000000Z"]'
