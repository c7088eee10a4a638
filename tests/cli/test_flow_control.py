"""The command line's words of flow control: pause and resume of runs and flows."""

from __future__ import annotations

from pathlib import Path

from tests.steps import word_steps as flows
from tests.support.cli_harness import locktender

from locktender import Client
from locktender.testing import eventually


def test_runs_and_flows_are_paused_and_resumed(engine: Client, url: Path, tmp_path: Path):
    def command(*words: str) -> str:
        done = locktender("--url", str(url), *words, cwd=tmp_path)
        assert done.code == 0, done.err
        return done.out

    engine.limits.pause()
    run = engine.submit(flows.beside, 1)
    command("runs", "pause", run.id[:12], "--reason", "wait for Ann")
    command("flows", "pause", flows.beside.name)
    engine.limits.resume()
    assert "wait for Ann" in command("why", run.id)
    assert flows.beside.name in command("flows", "list")
    assert "(paused)" in command("runs", "list")
    command("runs", "resume", run.id)
    eventually(lambda: "the run is paused" not in str(run.why()))
    assert "is paused by" in command("why", run.id)
    command("flows", "resume", flows.beside.name)
    assert run.result("60s") == 2
    refused = locktender("--url", str(url), "runs", "pause", run.id, cwd=tmp_path)
    assert refused.code == 2
    assert "it has ended succeeded" in refused.err


def test_a_limit_of_a_tag_counts_while_waiting(engine: Client, url: Path, tmp_path: Path):
    def command(*words: str) -> tuple[int, str]:
        done = locktender("--url", str(url), "limits", "set", *words, cwd=tmp_path)
        return done.code, done.out + done.err

    code, said = command("tag", "account=*", "1", "--counts-while-waiting")
    assert (code, said.strip()) == (0, "account=*: 1 at once, counts while waiting (each value)")
    code, said = command("tag", "account=*", "--no-counts-while-waiting")
    assert (code, said.strip()) == (0, "account=*: 1 at once (each value)")
    code, said = command("max_active", "9", "--counts-while-waiting")
    assert code == 2
    assert "max_active does not take it" in said
    assert engine.limits.list()


def test_a_run_is_retried_from_a_step_on(engine: Client, url: Path, tmp_path: Path):
    run = engine.submit(flows.diamond, str(tmp_path), 2)
    assert run.result("60s") == 4
    retry = ("--url", str(url), "runs", "retry", run.id)
    done = locktender(*retry, "--from", "left", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    eventually(lambda: len((tmp_path / "bottom").read_text()) == 2)
    assert (tmp_path / "top").read_text() == "x"
    assert run.result("60s") == 4
    wrong = locktender(*retry, "--from", "lefd", cwd=tmp_path)
    assert wrong.code == 2
    assert "Did you mean 'left'" in wrong.err
    wrong = locktender(*retry, "--with-args", "[1]", cwd=tmp_path)
    assert wrong.code == 2
    assert "is not a JSON object" in wrong.err
    shown = locktender("--url", str(url), "runs", "show", run.id, cwd=tmp_path).out
    assert "queued again" in shown
    assert "submitted" not in shown
    other = locktender(*retry, "--with-args", '{"x": 3}', cwd=tmp_path)
    word, made = other.out.split()
    assert (word, made == run.id) == ("submitted", False)
    assert engine.runs.get(made).result("60s") == 6


def test_a_paused_run_that_sleeps_has_no_expected_wait(engine: Client, url: Path, tmp_path: Path):
    run = engine.submit(flows.beside, 1, delay="1h")
    assert "Expected wait: ~" in str(run.why())
    run.pause("wait for Ann")
    said = str(run.why())
    assert "wait for Ann" in said
    assert "sleeps until" in said
    assert "Expected wait" not in said
    shown = locktender("--url", str(url), "runs", "show", run.id, cwd=tmp_path).out
    assert "  the run is paused by" in shown
    assert "waits for the run" not in shown
