"""Events from the command line: `send` and `waiting`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.cli_harness import locktender

from locktender import RunState, embedded, flow, wait_event
from locktender.testing import check_history, eventually

pytestmark = pytest.mark.timeout(300)


@flow
def approval(n: int) -> Any:
    return wait_event("approved", timeout="2d")


def test_who_waits_for_what_and_the_answer(tmp_path: Path):
    url = str(tmp_path / "locktender.db")
    with embedded(url) as client:
        nobody = locktender("waiting", "--url", url, cwd=tmp_path)
        assert "No run waits" in nobody.out + nobody.err
        run = client.submit(approval, 1)
        eventually(lambda: run.status() is RunState.WAITING)
        shown = locktender("waiting", "--url", url, cwd=tmp_path)
        assert "approved" in shown.out
        [wait] = locktender("waiting", "--json", "--url", url, cwd=tmp_path).data
        assert (wait["run"], wait["event"], wait["token"]) == (run.id, "approved", "")
        why = locktender("why", run.id, "--url", url, cwd=tmp_path)
        assert "has waited for event `approved` for" in why.out
        wrong = locktender("send", run.id, "approved", "{no", "--url", url, cwd=tmp_path)
        assert wrong.code == 2
        assert "payload is not JSON" in wrong.err
        other = locktender("send", run.id, "aproved", "1", "--url", url, cwd=tmp_path)
        assert other.code != 0
        assert "approved" in other.err
        given = ("send", run.id, "approved", '{"ok": true}', "--id", "7", "--url", url)
        sent = locktender(*given, "--json", cwd=tmp_path)
        assert sent.data == {"run": run.id, "event": "approved", "new": True}
        assert run.result("60s") == {"ok": True}
        assert not locktender(*given, "--json", cwd=tmp_path).data["new"]
        late = locktender("send", run.id, "approved", "1", "--url", url, cwd=tmp_path)
        assert "has ended succeeded" in late.err
    check_history(url)


@flow
def payment(order: int) -> Any:
    return wait_event("paid", match={"order": order}, timeout="2d")


def test_one_event_for_a_topic_and_one_answer_by_token(tmp_path: Path):
    url = str(tmp_path / "locktender.db")

    def send(*words: str, code: int = 0) -> Any:
        done = locktender("send", *words, "--json", "--url", url, cwd=tmp_path)
        assert done.code == code, done.err
        return done.data if code == 0 else done.err

    with embedded(url) as client:
        runs = [client.submit(payment, order) for order in (17, 18)]
        asked = client.submit(approval, 1)
        eventually(lambda: all(run.status() is RunState.WAITING for run in (*runs, asked)))
        given = ("--topic", "paid", '{"amount": 12}', "--match", "order=17", "--id", "b1")
        assert send(*given) == {"topic": "paid", "new": True}
        assert runs[0].result("60s") == {"amount": 12}
        assert send(*given) == {"topic": "paid", "new": False}
        assert runs[1].status() is RunState.WAITING
        [wait] = asked.waits()
        assert "not the token of a wait" in send("--token", f"{wait.token}0", "1", code=2)
        assert send("--token", wait.token, '"yes"') == {"run": asked.id, "new": True}
        assert asked.result("60s") == "yes"
        assert "is over" in send("--token", wait.token, '"no"', code=2)
        assert send("--topic", "paid", "--match", "order=18") == {"topic": "paid", "new": True}
        assert runs[1].result("60s") is None
    check_history(url)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "send takes RUN NAME"),
        (("06gy8rm99095",), "send takes RUN NAME"),
        (("--topic", "paid", "1", "2"), "at most one JSON value"),
        (("--topic", "paid", "--token", "a.b"), "exclude each other"),
        (("06gy8rm99095", "paid", "--match", "order=1"), "--match is for topics"),
        (("--topic", "paid", "--match", "order"), "--match takes name=value"),
        (("--topic", "paid", "--match", "a=1", "--match", "a=2"), "--match a is given twice"),
        (("--token", "a.b", "--id", "1"), "--token takes no --id"),
        (("--topic", "paid", "{no"), "payload is not JSON"),
    ],
)
def test_what_send_refuses_has_a_hint(words: tuple[str, ...], told: str, tmp_path: Path):
    url = tmp_path / "locktender.db"
    with embedded(url):
        pass
    done = locktender("send", *words, "--url", str(url), cwd=tmp_path)
    assert done.code == 2
    assert told in done.err
    assert "hint" in done.err
