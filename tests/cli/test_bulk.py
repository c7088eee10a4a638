"""`runs` and `queue` change runs by id or by a filter."""

from __future__ import annotations

import json
from pathlib import Path

from tests.steps import word_steps as flows
from tests.support.cli_harness import CommandResult, locktender

from locktender import Client, Submission
from locktender.testing import eventually


def test_runs_are_counted_first_and_cancelled_by_filter(engine: Client, url: Path, tmp_path: Path):
    def command(*words: str) -> CommandResult:
        return locktender("--url", str(url), *words, cwd=tmp_path)

    engine.limits.pause()
    calls = [Submission((n,), tags={"tenant": "acme" if n % 2 else "b"}) for n in range(7)]
    runs = engine.submit_many(flows.beside, calls)
    chosen = ["--flow", flows.beside.name, "--state", "queued", "--tag", "tenant=acme"]

    dry = command("runs", "cancel", *chosen, "--dry-run")
    assert dry.out == "3 runs would be asked to cancel\n"
    assert engine.runs.count("queued") == 7
    prior = command("queue", "reprioritise", "5", "--tag", "tenant=b")
    assert prior.out == "priority 5 requested for 4\n"
    assert command("queue", "reprioritise", runs[1].id, "-3").out == "priority -3 requested for 1\n"
    wrong = command("queue", "reprioritise", runs[1].id)
    assert wrong.code == 2
    assert "hint: e.g. locktender queue reprioritise RUN 20" in wrong.err
    assert (
        command("runs", "pause", *chosen).out
        == "paused: " + ", ".join(run.id for run in (runs[5], runs[3], runs[1])) + "\n"
    )
    done = command("runs", "cancel", *chosen, "--yes")
    assert done.out == "cancel requested for 3\n"
    eventually(lambda: engine.runs.count("cancelled") == 3)
    again = command("runs", "retry", "--state", "cancelled", "--json")
    assert len(json.loads(again.out)["ids"]) == 3

    none = command("runs", "cancel")
    assert none.code == 2
    assert "--tag tenant=acme" in none.err
    both = command("runs", "cancel", runs[0].id, "--tag", "tenant=acme")
    assert both.code == 2
    assert "not both" in both.err
    engine.limits.resume()
