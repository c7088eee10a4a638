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
        assert "Nobody waits" in nobody.out + nobody.err
        run = client.submit(approval, 1)
        eventually(lambda: run.status() is RunState.WAITING)
        shown = locktender("waiting", "--url", url, cwd=tmp_path)
        assert "approved" in shown.out
        [wait] = locktender("waiting", "--json", "--url", url, cwd=tmp_path).data
        assert (wait["run"], wait["event"], wait["token"]) == (run.id, "approved", "")
        why = locktender("why", run.id, "--url", url, cwd=tmp_path)
        assert "waits for event `approved` since" in why.out
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
