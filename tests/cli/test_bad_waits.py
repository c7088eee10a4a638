"""The same of the command line: times, schedules and events that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.steps import bad_wait_steps as flows
from tests.support.cli_harness import locktender

from locktender import Client, RunState, embedded
from locktender.store.protocol import MAX_MAIL
from locktender.testing import eventually

FILE = Path(flows.__file__)
PLAIN = f"{FILE}:plain"
NOBODY = "0" * 26
CASES: dict[str, tuple[list[str], str, str, str]] = {
    "a cron that never fires": (
        ["schedules", "set", "s", PLAIN, "--cron", "0 0 30 2 *"],
        *("cron", "never fires", "L"),
    ),
    "a zone that does not exist": (
        ["schedules", "set", "s", PLAIN, "--cron", "0 3 * * *", "--tz", "Europe/Berlim"],
        *("tz", "there is no time zone", "Europe/Berlin"),
    ),
    "at in the past": (
        ["schedules", "set", "s", PLAIN, "--at", "2020-01-01T00:00"],
        *("at", "at lies in the past", "submit"),
    ),
    "start-at in the past": (
        ["submit", PLAIN, "--start-at", "2020-01-01T00:00+00:00"],
        *("start_at", "in the past", "--start-at"),
    ),
    "an event for an unknown run": (
        ["send", NOBODY, "approved", "1"],
        *("run", "there is no run", "runs list"),
    ),
    "an event for an ended run": (
        ["send", "ENDED", "approved", '{"ok": true}'],
        *("run", "it has ended succeeded", "mailbox"),
    ),
    "an event that nobody waits for": (
        ["send", "ASKING", "aproved", '{"ok": true}'],
        *("event", "waits for no event 'aproved'", "approved"),
    ),
    "an event that is too large": (
        ["send", "ASKING", "approved", '{"ok": true, "x": "%s"}' % ("x" * 300_000)],
        *("payload", "the payload has 300,018 bytes", "262,144"),
    ),
    "an event of a wrong schema": (
        ["send", "ASKING", "approved", '{"ok": "yes"}'],
        *("payload.ok", "must be a boolean", ""),
    ),
    "an event that is no JSON": (
        ["send", "ASKING", "approved", "{no"],
        *("payload", "payload is not JSON", ""),
    ),
    "a name that nobody announced": (
        ["submit", "bad plan"],
        *("flow", "no worker has announced", "Did you mean 'bad plain'?"),
    ),
    "a schedule of such a name": (
        ["schedules", "set", "s", "bad plan", "--every", "1h"],
        *("flow", "no worker has announced", "Did you mean 'bad plain'?"),
    ),
    "a negative sleep": (["submit", f"{FILE}:negative"], "sleep", "it is negative", "500ms"),
    "a sleep of 400 years": (["submit", f"{FILE}:centuries"], "sleep", "under 100 years", "500ms"),
    "a delay of 400 years": (
        ["submit", PLAIN, "--delay", "21000w"],
        *("delay", "under 100 years", "500ms"),
    ),
    "a negative delay": (["submit", PLAIN, "--delay=-5s"], "delay", "it is negative", "500ms"),
    "keep without a key": (
        ["submit", PLAIN, "--keep", "newest"],
        *("keep", "needs a key", "key"),
    ),
    "a schedule that is not there": (
        ["schedules", "resume", "nightl"],
        *("schedule", "there is no schedule", "nightly"),
    ),
}


@pytest.fixture(scope="module")
def engine(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Client, str, dict[str, str]]]:
    url = str(tmp_path_factory.mktemp("bad") / "locktender.db")
    with embedded(url, grace="2s") as client:
        ended, asking = client.submit(flows.asks, 1), client.submit(flows.asks, 1)
        eventually(lambda: ended.status() is RunState.WAITING)
        ended.send("approved", {"ok": True})
        client.schedules.set("nightly", flows.plain, every="1h")
        assert ended.result("60s") == {"ok": True}
        eventually(lambda: asking.status() is RunState.WAITING)
        yield client, url, {"ENDED": ended.id, "ASKING": asking.id}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused_with_its_field(
    engine: tuple[Client, str, dict[str, str]], tmp_path: Path, case: str
):
    _, url, runs = engine
    words, field, message, hint = CASES[case]
    given = [runs.get(word, word) for word in words]
    done = locktender(*given, "--url", url, "--json", cwd=tmp_path)
    assert done.code != 0, done.out
    assert done.error["field"] == field, done.error
    assert message in done.error["message"]
    assert hint in (done.error.get("hint") or "")


def test_the_event_behind_the_thousandth_is_refused(
    engine: tuple[Client, str, dict[str, str]], tmp_path: Path
):
    client, url, _ = engine
    run = client.submit(flows.asks, 2)
    eventually(lambda: run.status() is RunState.WAITING)
    client.flows.pause(flows.asks.name)
    for n in range(MAX_MAIL):
        run.send("approved", {"ok": True}, id=str(n))
    words = ("send", run.id, "approved", '{"ok": true}', "--url", url, "--json")
    again = locktender(*words, "--id", "7", cwd=tmp_path)
    assert (again.code, again.data["new"]) == (0, False)  # twice is harmless, full or not
    full = locktender(*words, cwd=tmp_path)
    assert full.code != 0
    assert "is full: 1,000 events" in full.error["message"]
    client.flows.resume(flows.asks.name)
    assert run.wait("60s")
