"""The commands beside a live engine in another process, and without one (E8)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli_harness import (
    FLOWS,
    batch,
    interrupt,
    locktender,
    output_of,
    started,
    until,
)

from locktender import connect

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows.py").write_text(FLOWS)
    return tmp_path


@pytest.fixture
def engine(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A live engine that lets one run execute at a time."""
    arguments = ("dev", "flows.py", "--plain", "--pool", "db=1", "--set", "max_concurrent_runs=1")
    with started(*arguments, cwd=folder) as process:
        until(lambda: "locktender dev" in output_of(process), "the engine to start")
        yield process


def submitted(folder: Path, flow: str, *more: str) -> str:
    answer = locktender("submit", f"flows.py:{flow}", "--json", *more, cwd=folder)
    assert answer.code == 0, answer.err
    return answer.data["id"]


def test_beside_a_live_engine(folder: Path, engine: subprocess.Popen[str]) -> None:
    # given one run that holds the pool's only slot, and two that queue behind it
    go = folder / "go"
    first = submitted(folder, "holding_db", "--arg", f"until={go}", "--tag", "tenant=acme")
    second = submitted(folder, "build", "--tag", "tenant=globex")
    third = submitted(folder, "build", "--priority", "-2")
    until(lambda: f"{first[:12]}  flows:holding_db  running" in output_of(engine), "the first")

    # when everything is looked at
    said = batch(
        {
            "runs": ["runs", "list", "--json"],
            "show": ["runs", "show", first[:14], "--json"],
            "queue": ["queue", "list", "--json"],
            "queue text": ["queue", "list"],
            "pools": ["pools", "list", "--json"],
            "info": ["pools", "info", "db", "--json"],
            "info text": ["pools", "info", "db"],
            "why": ["why", first],
            "queue why": ["queue", "why", second, "--json"],
            "workers": ["workers", "list", "--json"],
            "limits": ["limits", "list", "--json"],
            "events": ["events", first, "--json"],
            "latest": ["events", "-n", "5"],
            "status": ["db", "status", "--json"],
            "config": ["config", "show", "--json"],
        },
        folder,
    )

    # then every answer is true
    assert all(answer.code == 0 for answer in said.values()), said
    assert {run["id"]: run["state"] for run in said["runs"].data} == {
        first: "running",
        second: "queued",
        third: "queued",
    }
    step = said["show"].data["steps"][0]
    assert (step["name"], step["running"], step["waiting"]) == ("hold_db", 1, 2)
    queue = said["queue"].data
    assert [(each["position"], each["run"]["id"]) for each in queue] == [(1, second), (2, third)]
    assert queue[0]["why"]["reasons"][0]["gate"].startswith("runs")
    assert "1 of 1 runs execute" in " ".join(said["queue text"].out.split())
    pool = said["pools"].data[0]
    assert (pool["name"], pool["used"], pool["limit"], pool["waiting"]) == ("db", 1, 1, 2)
    assert [holder["run"] for holder in said["info"].data["holders"]] == [first]
    assert "hold_db" in said["info text"].out
    assert "pool db: 1 of 1 in use" in said["why"].out
    assert said["queue why"].data["position"] == 1
    assert [(each["alive"], each["pid"]) for each in said["workers"].data] == [(True, engine.pid)]
    runs_limit = next(each for each in said["limits"].data if each["name"] == "max_concurrent_runs")
    assert runs_limit["value"] == "1"
    assert {each["after"] for each in said["events"].data} >= {"queued", "running", "requested"}
    assert said["status"].data["leader"] == said["workers"].data[0]["id"] + "-leads"
    assert said["config"].data["max_active"] == {"value": 10_000, "source": "default"}
    assert all(len(line) <= 80 for name in ("queue text", "info text", "latest")
               for line in said[name].out.splitlines())  # fmt: skip

    # and what has started is not said to have ended
    late = locktender("queue", "cancel", first, cwd=folder)
    assert (late.code, "1 has started" in late.out, "ended" in late.out) == (0, True, False)
    assert f"locktender runs cancel {first}" in late.err
    assert "1 has started" in locktender("queue", "reprioritise", first, "3", cwd=folder).out

    # when the operator changes things
    assert locktender("queue", "reprioritise", third[:14], "7", cwd=folder).code == 0
    with connect(folder / ".locktender" / "locktender.db") as client:
        until(lambda: client.queue.list()[0].run.id == third, "the new order")
    assert locktender("queue", "cancel", second, cwd=folder).code == 0
    raised = locktender("pools", "set", "db", "3", "--json", cwd=folder)
    assert raised.data["limit"] == 3
    with connect(folder / ".locktender" / "locktender.db") as client:
        until(lambda: client.pools.get("db").used == 3, "the raised limit to let the others in")
    go.touch()

    # then it takes effect, and the history has kept every promise
    until(lambda: f"{third[:12]}  flows:build  succeeded" in output_of(engine), "the last run")
    states = {
        run["id"]: run["state"] for run in locktender("runs", "list", "--json", cwd=folder).data
    }
    assert states == {first: "succeeded", second: "cancelled", third: "succeeded"}
    audit = locktender("audit", "--json", cwd=folder)
    assert audit.code == 0
    assert audit.data["violations"] == []
    peaks = {each["name"]: each for each in audit.data["peaks"]}
    assert peaks["pool:db"]["peak"] == 3
    assert all(each["never_exceeded"] for each in audit.data["peaks"])
    interrupt(engine)
    assert engine.wait(timeout=110) == 130


def test_without_an_engine(folder: Path) -> None:
    run = submitted(folder, "build", "--tag", "tenant=acme")
    said = batch(
        {
            "why": ["why", run[:12]],
            "pools": ["pools", "set", "db", "-1"],
            "tag": ["limits", "set", "tag", "tenant=*", "1"],
            "fair": ["limits", "set", "fair", "tenant", "--weight", "acme=3"],
            "workers": ["workers", "list"],
            "cancel": ["runs", "cancel", "--tag", "tenant=acme"],
        },
        folder,
    )
    assert all(answer.code == 0 for answer in said.values()), said
    assert "no process leads" in said["why"].out
    assert "unlimited" in said["pools"].out
    assert "1 at once (each value)" in said["tag"].out
    assert "acme=3" in said["fair"].out
    assert "No worker is connected" in said["workers"].out
    assert "no engine runs now" in said["cancel"].out
    after = batch(
        {
            "history": ["limits", "history", "--json"],
            "tag paused": ["limits", "pause", "tag", "tenant=*"],
            "tag resumed": ["limits", "resume", "tag", "tenant=*"],
            "tag reset": ["limits", "reset", "tag", "tenant=*"],
            "fair reset": ["limits", "reset", "fair", "tenant"],
            "limits": ["limits", "list", "--json"],
            "reset": ["pools", "reset", "db"],
            "pause": ["limits", "pause"],
            "bare": [],
            "help": ["pools", "set", "--help"],
            "version": ["--version"],
            "early": ["--url", ".locktender/locktender.db", "--json", "queue", "list"],
        },
        folder,
    )
    assert [name for name, answer in after.items() if answer.code] == []
    changed = {change["name"] for change in after["history"].data}
    assert {"db", "tenant=*", "fair tenant"} <= changed
    assert {each["kind"] for each in after["limits"].data} == {"runs", "active", "engine"}
    assert "unlimited again" in after["reset"].out
    assert "paused" in after["pause"].out
    assert "locktender demo" in after["bare"].out
    assert "--lease" in after["help"].out
    assert after["version"].out.strip()
    assert [each["run"]["id"] for each in after["early"].data] == [run]


def test_a_failed_run_is_retried_once_an_engine_is_there(folder: Path) -> None:
    failed = locktender("run", "flows.py:failing", "--json", cwd=folder)
    run = failed.data["id"]
    shown = locktender("runs", "show", run[:13], cwd=folder)
    assert "ZeroDivisionError" in shown.out
    assert f"locktender runs retry {run[:12]}" in shown.out
    again = locktender("runs", "retry", run[:13], cwd=folder)
    assert again.code == 0
    assert "No engine runs" in again.err
    listed = locktender("runs", "list", "--status", "queued", "--json", cwd=folder)
    assert [each["id"] for each in listed.data] == [run]
