"""`locktender run` as a user sees it: the result on stdout, everything else on stderr, exact exit codes."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.cli_harness import (
    FLOWS,
    PROGRAM,
    CommandResult,
    all_of,
    environment,
    interrupt,
    locktender,
    output_of,
    started,
    until,
)

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cli-run")
    (made / "flows.py").write_text(FLOWS)
    (made / "shop").mkdir()
    (made / "shop" / "__init__.py").touch()
    (made / "shop" / "only.py").write_text(
        "from locktender import flow, step\n\n\n@step\ndef one(name: str) -> str:\n"
        "    return name\n\n\n@flow\ndef single(name: str = '7'):\n    return one(name)\n"
    )
    return made


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, CommandResult]:
    """Independent commands, each on a store of its own, run beside each other."""
    commands = {
        "plain": ["flows.py:build", "--pool", "db=2"],
        "json": ["flows.py:build", "--json", "--args", "[3]", "--tag", "tenant=acme"],
        "named": ["flows.py:build", "--arg", "n=5", "--arg", "label=3", "-q"],
        "object": ["flows.py:build", "--args", '{"n": 2}', "--priority", "-3", "--key", "k"],
        "module": ["shop.only", "--arg", "name=12"],
        "failing": ["flows.py:failing"],
        "failing-json": ["flows.py:failing", "--json"],
        "deadline": ["flows.py:sleepy", "--deadline", "300ms"],
        "hidden": ["flows.py:hidden"],
        "huge": ["flows.py:huge"],
    }
    return all_of(
        {name: ["run", *each, "--url", f"{name}/h.db"] for name, each in commands.items()}, folder
    )


def test_the_result_is_json_on_stdout_and_the_rest_on_stderr(
    said: dict[str, CommandResult],
) -> None:
    answer = said["plain"]
    assert answer.code == 0, answer.err
    assert answer.out == "6\n"
    assert re.search(r"^succeeded in .*: 5 done · run \w{26}$", answer.err, re.MULTILINE)


def test_json_has_stable_keys_and_nothing_on_stderr(said: dict[str, CommandResult]) -> None:
    answer = said["json"]
    assert answer.code == 0
    assert answer.err == ""
    assert set(answer.data) == {"id", "flow", "state", "seconds", "tasks", "result", "error"}
    assert answer.data["state"] == "succeeded"
    assert answer.data["result"] == 3
    assert answer.data["error"] is None


@pytest.mark.parametrize(
    ("name", "result"), [("named", "10\n"), ("object", "1\n"), ("module", '"12"\n')]
)
def test_arguments_are_read_by_annotation(
    said: dict[str, CommandResult], name: str, result: str
) -> None:
    assert said[name].code == 0, said[name].err
    assert said[name].out == result


def test_quiet_says_nothing_but_the_result(said: dict[str, CommandResult]) -> None:
    assert said["named"].err == ""


def test_a_failed_run_shows_the_users_line_and_exits_1(said: dict[str, CommandResult]) -> None:
    answer = said["failing"]
    assert answer.code == 1
    assert answer.out == ""
    assert "return 1 / x" in answer.err
    assert "ZeroDivisionError" in answer.err
    assert "locktender/worker" not in answer.err
    assert "locktender runs show" in answer.err


def test_a_failed_run_as_json(said: dict[str, CommandResult]) -> None:
    answer = said["failing-json"]
    assert answer.code == 1
    assert answer.data["state"] == "failed"
    assert set(answer.data["error"]) == {"code", "message", "field", "got", "hint"}
    assert answer.data["error"]["code"] == "run_failed"


def test_a_run_past_its_deadline_exits_1(said: dict[str, CommandResult]) -> None:
    assert said["deadline"].code == 1
    assert "timed_out in" in said["deadline"].err


def test_plain_lines_tell_what_the_waiting_ones_wait_for(folder: Path) -> None:
    go = folder / "plain-go"
    words = ("run", "flows.py:holding_db", "--arg", f"until={go}", "--pool", "db=2", "--plain")
    told = re.compile(r"hold_db 0/3, 2 running, 1 waiting \(.*pool db: 2 of 2 in use")
    with started(*words, "--url", "waiting/h.db", cwd=folder) as process:
        until(lambda: told.search(output_of(process)), "the line")
        go.touch()
        assert process.wait(timeout=110) == 0


def test_a_result_that_cannot_be_kept_says_so_without_our_frames(
    said: dict[str, CommandResult],
) -> None:
    assert said["hidden"].code == 1
    assert "unserialisable_result" in said["hidden"].err
    assert "Traceback" not in said["hidden"].err
    assert said["huge"].code == 1
    assert "2,097,152" in said["huge"].err


def test_on_a_terminal_the_picture_moves(folder: Path) -> None:
    """A pseudo-terminal: the picture names the steps, their bars and what they wait for."""
    parent, child = pty.openpty()
    env = {**environment(), "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    env.pop("NO_COLOR", None)
    go = folder / "tty-go"
    command = [*PROGRAM, "run", "flows.py:drawn", "--pool", "db=2", "--arg", f"until={go}",
               "--url", "tty/h.db"]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=child, stdin=child, text=True
    )
    os.close(child)
    seen = b""
    wanted = [b"2 running", "└ pool db: 2 of 2 in use".encode(), b"after hold_db"]
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the terminal is closed with its last writer
            break
        if not part:
            break
        seen += part
        if all(each in seen for each in wanted):
            go.touch()
    os.close(parent)
    out, _ = process.communicate(timeout=110)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert process.returncode == 0
    assert out == "3\n"
    assert "hold_db" in text
    assert "2 running" in text
    assert "└ pool db: 2 of 2 in use" in text
    assert "after hold_db" in text
    assert "4/4 100 %" in text


def test_ctrl_c_cancels_cleanly(folder: Path) -> None:
    with started("run", "flows.py:sleepy", "--plain", "--url", "int/h.db", cwd=folder) as process:
        until(lambda: "1 running" in output_of(process), "the step to run")
        interrupt(process)
        assert process.wait(timeout=110) == 130
        text = output_of(process)
    assert "Traceback" not in text
    assert "cancelled in" in text
    listed = locktender("runs", "list", "--json", "--url", "int/h.db", cwd=folder)
    assert [run["state"] for run in listed.data] == ["cancelled"]
    assert locktender("audit", "--url", "int/h.db", cwd=folder).code == 0


def test_a_second_ctrl_c_ends_it_at_once(folder: Path) -> None:
    (folder / "unstopped.py").write_text(
        "import time\nfrom locktender import flow, step\n\n\n@step\ndef spin() -> None:\n"
        "    time.sleep(60)\n\n\n@flow\ndef unstopped():\n    spin()\n"
    )
    with started("run", "unstopped.py", "--plain", "--url", "kill/h.db", cwd=folder) as process:
        until(lambda: "1 running" in output_of(process), "the thread to run")
        interrupt(process)
        until(lambda: "Ctrl-C again" in output_of(process), "the first interrupt to be heard")
        interrupt(process)
        assert process.wait(timeout=110) == 130
        assert "Traceback" not in output_of(process)
