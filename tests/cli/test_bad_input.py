"""Bad input through the command line: exit code 2, no traceback, a message and what to do about it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.support.cli_harness import FLOWS, CommandResult, batch, executable, locktender

NOWHERE = "postgresql://a:secret@no-host.invalid/c"
BAD: dict[str, tuple[list[str], str]] = {
    # limits and pools
    "limit 0": (["pools", "set", "db", "0"], "pools pause"),
    "limit -2": (["pools", "set", "db", "-2"], "-1 (unlimited) or 1 and up"),
    "limit three": (["pools", "set", "db", "three"], "Use -1 for unlimited"),
    "limit true": (["pools", "set", "db", "true"], "whole number"),
    "limit 1.5": (["limits", "set", "max_concurrent_runs", "1.5"], "whole number"),
    "no limit": (["pools", "set", "db"], "hint: Try: locktender pools set db 4 "),
    "limit as code has it": (
        ["pools", "set", "db", "limit=4"],
        "the limit of pool 'db' must be a whole number. Got 'limit=4'",
    ),
    "unknown pool in a list": (["pools", "pause", "zzz"], "hint: Known: "),
    "runs 0": (["limits", "set", "max_concurrent_runs", "0"], "use pause"),
    "unknown limit": (["limits", "set", "max_concurent_runs", "4"], "'max_concurrent_runs'"),
    "tag without number": (["limits", "set", "tag", "tenant=*"], "limits set tag 'tenant=*' 4"),
    "tag and a ceiling": (["limits", "set", "tag", "tenant"], "set tag tenant --max-active 10"),
    "unknown limit, other than all": (["limits", "set", "colour", "x"], "limits set tag colour 4"),
    "tag and too much": (["limits", "set", "tenant=acme", "3", "5"], "--max-active N"),
    "time in two words": (["limits", "set", "age_boost", "5", "minutes"], "age_boost 5m"),
    "negative time": (["limits", "set", "age_boost", "-5m"], "age_boost is not a duration"),
    "two values": (["limits", "set", "max_active", "15", "20"], "'20' is one too many"),
    "ceiling of no tag": (
        ["limits", "set", "placement", "pack", "--max-active", "3"],
        "placement does not take it",
    ),
    "weight of no turns": (
        ["limits", "set", "max_active", "15", "--weight", "a=3"],
        "max_active does not take it",
    ),
    "weight of a tag": (["limits", "set", "tag", "t", "3", "--weight", "a=3"], "goes with fair"),
    "fair and a number": (["limits", "set", "fair", "tenant", "3"], "--weight acme=3"),
    "fair and a ceiling": (
        ["limits", "set", "fair", "tenant", "--max-active", "3"],
        "fair does not take it",
    ),
    "unknown and too much": (["limits", "set", "max_activ", "1", "2"], "'2' is one too many"),
    "bad lease": (["pools", "set", "db", "2", "--lease", "soon"], '"90s"'),
    "bad rate": (["pools", "set", "db", "2", "--rate", "fast"], "60/min"),
    "burst alone": (["pools", "set", "db", "2", "--burst", "5"], "burst needs a rate"),
    "burst of no rate": (
        ["pools", "set", "api", "5", "--burst", "20", "--rate", "none"],
        "takes the rate away",
    ),
    "name with path": (["pools", "set", "../db", "2"], "looks like a path"),
    "unknown pool": (["pools", "info", "dbb"], "Did you mean 'db'?"),
    # running
    "pool 0": (["run", "flows.py:build", "--pool", "db=0"], "pools pause"),
    "slots > limit": (["run", "flows.py:needs_five", "--pool", "db=2"], "could never start"),
    "two values of a label": (
        ["worker", "flows.py", "--label", "gpu=a", "--label", "gpu=b"],
        "--label gpu is given twice",
    ),
    "window 0": (["run", "flows.py:windowless"], "window must be 1 or more"),
    "bad deadline": (["run", "flows.py:build", "--deadline", "-5x"], '"90s"'),
    "no file": (["run", "flow.py:build"], "Did you mean 'flows.py'?"),
    "does not import": (["run", "broken.py:build"], "import nonexistent_thing"),
    "syntax error": (["run", "syntax.py:build"], "does not import: SyntaxError"),
    "bad definition": (["run", "negative.py:build"], "negative.py:4"),
    "no such flow": (["run", "flows.py:biuld"], "Did you mean 'build'?"),
    "a step": (["run", "flows.py:fetch"], "is a step"),
    "which flow": (["run", "flows.py"], "flows.py:build"),
    "no module": (["run", "no.such.module:flow"], "no module 'no.such.module'"),
    "a folder": (["run", "folder"], "folder is a directory"),
    "a folder's flow": (["run", "folder:build"], "folder is a directory"),
    "app is a file": (["worker", "--app", "flows.py"], "locktender worker flows.py"),
    "no app": (["worker", "--app", "no_such"], "no module 'no_such'"),
    "app is a folder": (["worker", "--app", "folder"], "folder is a directory"),
    "wrong argument": (["run", "flows.py:build", "--arg", "m=1"], "build(n: int = 4"),
    "unknown argument": (
        ["run", "flows.py:build", "--arg", "m=1"],
        "flow 'build' has no parameter 'm'; its parameters are: n",
    ),
    "argument without --arg": (["run", "flows.py:build", "n=1"], "Try: --arg n=1"),
    "setting as an option": (["worker", "--thread-permits", "0"], "Try: --set thread_permits=0"),
    "no option and no setting": (["worker", "--bogus", "0"], "See: locktender worker --help"),
    "wrong type in --args": (
        ["run", "flows.py:build", "--args", '{"n": "many"}'],
        "Give another value: build takes n as int.",
    ),
    "wrong type": (
        ["run", "flows.py:build", "--arg", "n=many"],
        "Try: --arg n=3 (build takes n as int)",
    ),
    "args not json": (["run", "flows.py:build", "--args", "{"], "--args is not JSON"),
    "args a number": (["run", "flows.py:build", "--args", "5"], "--args '[5]'"),
    "tracing raises": (["run", "flows.py:untraceable"], 'add(wanted["missing"])'),
    "miscalled step": (["run", "flows.py:miscalled"], "add(xs: list[int]) -> int"),
    "unserialisable": (["run", "sets.py:take"], "no JSON form"),
    "unknown setting": (["run", "flows.py:build", "--set", "gracee=1s"], "Did you mean 'grace'?"),
    "whose setting": (["run", "flows.py:build", "--set", "gracee=1s"], "--set gracee is not"),
    "bad tag": (["submit", "flows.py:build", "--tag", "tenant"], "--tag tenant=acme"),
    "bad priority": (["submit", "flows.py:build", "--priority", "high"], "whole number"),
    "bad on_duplicate": (["submit", "flows.py:build", "--on-duplicate", "x"], "one of attach"),
    "duplicate of nothing": (["run", "flows.py:build", "--on-duplicate", "attach"], "needs a key"),
    "no url": (["run", "flows.py:build", "--set", "blob_url=x"], "blob_url must be a url"),
    # looking
    "events 0": (["events", "-n", "0"], "limit must be 1 or more"),
    "events -1": (["events", "-n", "-1"], "limit must be 1 or more"),
    "reset which tag": (["limits", "reset", "tag"], "say which tag"),
    "reset too much": (["limits", "reset", "max_active", "4"], "takes no argument"),
    "no such run": (["runs", "show", "zzzzzzzzzzzz"], "runs list"),
    "not an id": (["why", "../etc"], "not the id of a run"),
    "ambiguous": (["runs", "show", "0000"], "Give more of the id"),
    "no such state": (["runs", "list", "--status", "runing"], "Did you mean 'running'?"),
    "unknown state": (["runs", "list", "--status", "foo"], "hint: A run is submitted, queued"),
    "unknown command": (["pool", "list"], "Did you mean"),
    "verb without its noun": (["cancel", "06gy"], "hint: Did you mean: locktender runs cancel"),
    "verb of many nouns": (["list"], "locktender runs list, locktender flows list"),
    "argument as an option": (
        ["pools", "set", "db", "--limit", "3"],
        "hint: Try: locktender pools set db 3",
    ),
    "argument as an option, =": (
        ["pools", "set", "--limit=-1", "db"],
        "hint: Try: locktender pools set db -1",
    ),
    "argument as an option, without the one before it": (
        ["pools", "set", "--limit", "3"],
        "hint: LIMIT is given without --limit",
    ),
    "argument as an option, and more": (
        ["pools", "set", "db", "--limit", "3", "--rate", "5/s"],
        "hint: LIMIT is given without --limit",
    ),
    "argument as an option, and no number": (
        ["pools", "set", "db", "--limit", "many"],
        "hint: Try: locktender pools set db 4\n",
    ),
    "unknown verb": (["pools", "lst"], "Did you mean"),
    "unknown option": (["pools", "list", "--jsn"], "--json"),
    "missing argument": (["why"], "--help"),
    "unknown code": (["explain", "nosuchcode"], "hint: To list all codes: locktender explain"),
    "two times of a schedule": (
        ["schedules", "set", "s", "flows.py:build", "--cron", "* * * * *", "--every", "5m"],
        "give only one of --cron, --every, --at; --cron and --every are given.\nhint: Leave out --every.",
    ),
    "no time of a schedule": (
        ["schedules", "set", "s", "flows.py:build"],
        "say when: give one of --cron, --every, --at.",
    ),
    # stores
    "no store": (["runs", "list", "--url", "none.db"], "locktender run FILE.py:flow"),
    "a directory": (["run", "flows.py:build", "--url", "folder"], "is a directory"),
    "copy of no store": (["db", "copy", "none.db", "to.db"], "hint: Check FROM"),
    "corrupt": (["runs", "list", "--url", "corrupt.db"], "backup"),
    "newer": (["runs", "list", "--url", "newer.db"], "Upgrade locktender"),
    "foreign": (["runs", "list", "--url", "foreign.db"], "another program"),
    "postgres": (["runs", "list", "--url", NOWHERE], "Check the host's name in the url"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cli-bad")
    (made / "flows.py").write_text(FLOWS)
    (made / "broken.py").write_text("import os\n\nimport nonexistent_thing\n")
    (made / "syntax.py").write_text("def build(:\n")
    (made / "negative.py").write_text(
        "from locktender import step\n\n\n@step(retries=-1)\ndef build() -> None: ...\n"
    )
    (made / "sets.py").write_text(
        "from typing import Any\nfrom locktender import flow, step\n\n\n@step\n"
        "def keep(x: Any) -> int:\n    return 1\n\n\n@flow\ndef take():\n"
        "    return keep(open(__file__))\n"
    )
    (made / "folder").mkdir()
    (made / "corrupt.db").write_bytes(b"not a database at all" * 1000)
    assert locktender("pools", "set", "db", "4", cwd=made).code == 0
    shutil.copy(made / ".locktender" / "locktender.db", made / "newer.db")
    with sqlite3.connect(made / "newer.db") as db:
        db.execute(
            "UPDATE migration SET number = 999 WHERE number = (SELECT max(number) FROM migration)"
        )
    db.close()
    with sqlite3.connect(made / "foreign.db") as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    return made


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, CommandResult]:
    ambiguous(folder)
    return batch({name: arguments for name, (arguments, _) in BAD.items()}, folder)


def ambiguous(folder: Path) -> None:
    """Two runs whose ids begin alike."""
    for _ in range(2):
        assert locktender("submit", "flows.py:build", cwd=folder).code == 0
    with sqlite3.connect(folder / ".locktender" / "locktender.db") as db:
        ids = [row[0] for row in db.execute("SELECT id FROM run")]
        for each in ids:
            db.execute("UPDATE run SET id = ? WHERE id = ?", ("0000" + each[4:], each))
    db.close()


@pytest.mark.parametrize("name", BAD)
def test_bad_input_exits_2_with_a_message_and_what_to_do(
    said: dict[str, CommandResult], name: str
) -> None:
    answer = said[name]
    assert answer.code == 2, answer
    assert "Traceback (most recent call last)" not in answer.err or name == "does not import"
    assert "error:" in answer.err
    assert BAD[name][1] in answer.err, answer.err
    assert answer.out == ""
    assert "secret" not in answer.err


@pytest.mark.parametrize("name", BAD)
def test_bad_input_comes_with_a_hint_or_with_what_is_allowed(
    said: dict[str, CommandResult], name: str
) -> None:
    assert "hint:" in said[name].err or " must be " in said[name].err, said[name].err


@pytest.mark.parametrize("name", ["limit -2", "does not import", "no such flow", "unknown command"])
def test_the_program_itself_says_the_same(
    folder: Path, said: dict[str, CommandResult], name: str
) -> None:
    assert executable(*BAD[name][0], cwd=folder) == said[name]


def test_what_does_not_import_shows_the_users_part_only(said: dict[str, CommandResult]) -> None:
    text = said["does not import"].err
    assert 'broken.py", line 3' in text
    assert "locktender/cli" not in text
    assert "importlib" not in text


def test_errors_as_json(folder: Path) -> None:
    answer = locktender("pools", "set", "db", "three", "--json", cwd=folder)
    assert answer.code == 2
    assert answer.out == ""
    assert set(answer.error) == {"code", "message", "field", "got", "hint"}
    assert answer.error["code"] == "invalid_input"
    assert answer.error["got"] == "'three'"
    usage = locktender("pools", "lst", "--json", cwd=folder)
    assert usage.code == 2
    assert usage.error["code"] == "usage"


def test_debug_shows_the_traceback(folder: Path) -> None:
    answer = locktender("pools", "set", "db", "0", "--debug", cwd=folder)
    assert answer.code == 2
    assert "Traceback" in answer.err


def test_nothing_was_stored(folder: Path, said: dict[str, CommandResult]) -> None:
    assert said
    pools = locktender("pools", "list", "--json", cwd=folder).data
    assert [(pool["name"], pool["limit"]) for pool in pools] == [("db", 4)]
    limits = locktender("limits", "list", "--json", cwd=folder).data
    assert [limit["name"] for limit in limits if limit["live"] is not None] == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_is_refused(folder: Path) -> None:
    store = folder / "frozen.db"
    shutil.copy(folder / ".locktender" / "locktender.db", store)
    store.chmod(0o444)
    answer = locktender("pools", "set", "db", "2", "--url", "frozen.db", cwd=folder)
    assert answer.code == 2
    assert "read-only" in answer.err
