"""`locktender dev`: runs from another terminal, changes taken up, mistakes survived, a clean end."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.cli_harness import interrupt, locktender, output_of, started, until

FLOW = """
from locktender import flow, step
from words import WORD


@step
def greet(name: str) -> str:
    return f"{WORD} {name}"


@flow
def hello(name: str = "you"):
    return greet(name)
"""


def result_of(folder: Path, run: str) -> object:
    shown = locktender("runs", "show", run, "--json", cwd=folder)
    return shown.data["result"]


def test_dev_runs_what_is_submitted_and_takes_up_changes(tmp_path: Path) -> None:
    file, words = tmp_path / "greetings.py", tmp_path / "words.py"
    file.write_text(FLOW)
    words.write_text('WORD = "hello"\n')

    def submit() -> str:
        run = locktender("submit", "greetings.py", "--json", cwd=tmp_path).data["id"]
        until(lambda: f"{run[:12]}  greetings:hello  succeeded" in output_of(dev), "the run to end")
        return run

    with started("dev", "greetings.py", "--plain", cwd=tmp_path) as dev:
        until(
            lambda: "locktender dev greetings.py (greetings:hello)" in output_of(dev),
            "dev to start",
        )
        assert result_of(tmp_path, submit()) == "hello you"

        # a sibling changes
        words.write_text('WORD = "good morning"\n')
        until(lambda: output_of(dev).count("reloaded") == 1, "the first reload")
        assert result_of(tmp_path, submit()) == "good morning you"

        # a mistake is shown, and the old code keeps running
        words.write_text('WORD = "unfinished\n')
        until(lambda: "the old code keeps running" in output_of(dev), "the mistake to be shown")
        assert "SyntaxError" in output_of(dev)
        words.write_text('WORD = "good night"\n')
        until(lambda: output_of(dev).count("reloaded") == 2, "the second reload")
        assert result_of(tmp_path, submit()) == "good night you"

        interrupt(dev)
        assert dev.wait(timeout=110) == 130
        assert "Traceback" not in output_of(dev)
    assert locktender("audit", cwd=tmp_path).code == 0


def test_dev_answers_by_http_and_after_a_reload_too(tmp_path: Path) -> None:
    file = tmp_path / "greetings.py"
    file.write_text(FLOW.replace("from words import WORD\n", 'WORD = "hello"\n'))

    def asked(url: str, body: object = None) -> Any:
        raw = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, raw, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as found:
            return json.load(found)

    with started("dev", "greetings.py", "--plain", "--port", "0", cwd=tmp_path) as dev:
        until(lambda: "/api/docs" in output_of(dev), "the address")
        [url] = re.findall(r"http://127.0.0.1:\d+/api", output_of(dev))

        def greeted() -> Any:
            body = {"flow": "greetings:hello", "args": {"name": "ann"}}
            run = asked(f"{url}/v1/runs", body)["id"]
            return asked(f"{url}/v1/runs/{run}/result?wait=30")["result"]

        assert greeted() == "hello ann"
        file.write_text(file.read_text().replace("hello", "welcome", 1))
        until(lambda: "reloaded" in output_of(dev), "the reload")
        assert greeted() == "welcome ann"
        interrupt(dev)
        assert dev.wait(timeout=110) == 130
        assert "Traceback" not in output_of(dev)
    assert locktender("audit", cwd=tmp_path).code == 0


def test_dev_goes_on_after_its_worker_lost_its_lease(tmp_path: Path) -> None:
    file, url = tmp_path / "greetings.py", tmp_path / "locktender.db"
    file.write_text(FLOW.replace("from words import WORD\n", 'WORD = "hello"\n'))
    words = ("dev", "greetings.py", "--plain", "--url", str(url), "--port", "0")
    with started(*words, cwd=tmp_path) as dev:
        until(lambda: "/api/docs" in output_of(dev), "dev to start")
        for number in (1, 2):
            # As a leader does with a worker that was silent for longer than its lease and the grace for stalls.
            with closing(sqlite3.connect(url, timeout=60)) as db, db:
                db.execute("DELETE FROM worker")
                db.execute("UPDATE leader SET expires_at = 0")
            until(lambda n=number: output_of(dev).count("joined again") >= n, "joined again")
        run = locktender("submit", "greetings.py", "--url", str(url), "--json", cwd=tmp_path).data[
            "id"
        ]
        until(lambda: f"{run[:12]}  greetings:hello  succeeded" in output_of(dev), "the run to end")
        interrupt(dev)
        assert dev.wait(timeout=110) == 130
        assert "Traceback" not in output_of(dev)
        assert "Bad file descriptor" not in output_of(dev)
