"""`events --follow` with the real program."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.support.cli_harness import executable

from locktender import InvalidInput, RunState, TaskState, embedded, flow, step
from locktender.base.events import Subject
from locktender.client.history import event_name
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]


@step
async def double(n: int) -> int:
    return 2 * n


@flow
def doubled(n: int) -> object:
    return double(n)


def lines(url: str, *words: str) -> list[dict[str, Any]]:
    done = executable("events", *words, "--json", "--url", url, cwd=Path.cwd())
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_the_history_is_read_on_behind_any_event(store_url: str):
    with embedded(store_url) as client:
        client.submit(doubled, 1).result("90s")
        client.submit_many(doubled, [1, 2, 3])
        eventually(lambda: client.runs.count("succeeded") == 4)
        everything = list(client.events.follow(after="start", wait=False))
        keys = [(each.seq, each.task, each.before, each.after) for each in everything]
        assert len(keys) == len(set(keys))
        assert {"RunQueued", "RunDequeued", "RunSucceeded", "StepStarted", "StepCompleted"} <= {
            each.name for each in everything
        }
        ended = next(each for each in everything if each.name == "RunSucceeded")
        assert client.runs.get(str(ended.run_id)).info().number == ended.run
        for at, event in enumerate(everything):
            rest = client.events.follow(after=event.cursor, wait=False)
            found = [(each.seq, each.task, each.before, each.after) for each in rest]
            assert found[: len(keys) - at - 1] == keys[at + 1 :]
        with pytest.raises(InvalidInput, match="not a cursor"):
            list(client.events.follow(after="x"))


def test_each_consumer_has_a_cursor_of_its_own(store_url: str):
    with embedded(store_url) as client:
        client.submit(doubled, 1).result("90s")
        first = lines(store_url, "--consumer", "billing")
        cut = lines(store_url, "--after", first[3]["cursor"])
        assert [each["seq"] for each in cut[: len(first) - 4]] == [
            each["seq"] for each in first[4:]
        ]
        # One that stops in the middle of its work: what it did not take comes again.
        events = client.events.follow(reader="mails", wait=False)
        taken = [next(events), next(events), next(events)]
        events.close()
        client.submit(doubled, 2).result("90s")
        again = lines(store_url, "--consumer", "billing")
        assert [each["seq"] for each in again if each in first] == []
        assert "RunSucceeded" in [each["name"] for each in again]
        on = next(client.events.follow(reader="mails", wait=False))
        assert on.cursor == taken[2].cursor
        assert [each.name for each in client.events.readers()] == ["billing", "mails"]
        assert client.events.forget_reader("mails")
        assert not client.events.forget_reader("mails")


def test_an_interrupt_ends_who_follows_and_speaks_of_no_tasks(tmp_path: Path):
    url = str(tmp_path / "locktender.db")
    with embedded(url) as client:
        client.submit(doubled, 1).result("90s")
    words = ("events", "--follow", "--json", "--after", "start", "--url", url)
    follower = subprocess.Popen(
        [sys.executable, "-m", "locktender", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith("{"), "it follows"

    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=60)

    assert (follower.returncode, said) == (130, "")


def test_a_consumer_is_told_that_events_were_pruned(tmp_path: Path):
    url = str(tmp_path / "locktender.db")
    with embedded(url) as client:
        client.submit(doubled, 1).result("90s")
        cursor = lines(url, "--after", "start")[-1]["cursor"]
        client.submit(doubled, 2).result("90s")
        late = lines(url, "--after", cursor)[-1]["cursor"]
    pruned = executable("db", "prune", "--older-than", "0s", "--url", url, cwd=tmp_path)
    assert "removed 2 runs" in pruned.out, pruned.err
    told = executable("events", "--after", cursor, "--json", "--url", url, cwd=tmp_path)
    assert told.code == 1
    assert told.error["code"] == "events_pruned"
    assert "--skip-pruned goes on" in told.error["hint"]
    assert lines(url, "--after", cursor, "--skip-pruned")[-1]["name"] == "AuditPruned"
    # One that had read them all misses nothing.
    assert [each["name"] for each in lines(url, "--after", late)][-1] == "AuditPruned"


def test_every_change_has_a_name_of_its_own():
    subjects = set(get_args(Subject))
    states = {*RunState, *TaskState, "given_back", "paused", "sent", "failed"}
    named = {
        event_name(subject, after, {})
        for subject in subjects - {"wait", "leader"}
        for after in states
    }
    assert len(named) == len(subjects - {"wait", "leader"}) * len(states)
    assert event_name("task", "scheduled", {"pools": {"db": 1}}) == "StepSlotClaimed"
    assert event_name("wait", "pool db", {}) == "StepSlotWaiting"
    assert event_name("leader", "host:1", {}) == "LeaderElected"


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_run_is_followed_to_its_end(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url: str = str(tmp_path / "locktender.db")
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    with embedded(url) as client:
        client.submit(doubled, 1).result("90s")
        run = client.submit(doubled, 2)
        command = [sys.executable, "-m", "locktender", "events", run.id, "--follow", "--json"]
        following = subprocess.Popen([*command, "--url", url], stdout=subprocess.PIPE, text=True)
        try:
            assert run.result("90s") == 4
            out, _ = following.communicate(timeout=90)
        finally:
            following.kill()
    events = [json.loads(line) for line in out.splitlines()]
    assert following.returncode == 0
    runs = [each["after"] for each in events if each["subject"] == "run"]
    assert runs == ["queued", "running", "succeeded"]
    assert len({each["run"] for each in events}) == 1
