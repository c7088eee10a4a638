"""Lines of a running attempt are in the store before it ends, in every executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.steps import live_log_steps as steps
from tests.support.cli_harness import locktender

from locktender import Client, embedded, secret
from locktender.testing import eventually

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
HIDDEN = "hunter2-hunter2"

ALL_TRANSPORTS = "long"


@pytest.fixture(autouse=True)
def _hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HG_LIVE_TOKEN", HIDDEN)


def messages(run: Any) -> list[str]:
    return [line.message for line in run.logs()]


@pytest.mark.parametrize("flow", [steps.by_loop, steps.by_thread, steps.by_child], ids=str)
def test_lines_are_stored_while_the_body_runs(engine: Client, flow: Any, tmp_path: Path):
    run = engine.submit(flow, str(tmp_path), secret("env:HG_LIVE_TOKEN"))
    eventually(run.logs)
    following = run.follow_logs()
    first = next(following)
    assert first.message.startswith("first line, with ")
    assert HIDDEN not in first.message
    assert run.status() == "running"
    assert messages(run) == [first.message]
    (tmp_path / "gate").touch()
    assert [line.message for line in following] == ["last line"]
    assert run.result("90s") == str(tmp_path)
    assert messages(run) == [first.message, "last line"]


def test_lines_are_followed_on_both_stores(store_url: str, tmp_path: Path):
    with embedded(store_url) as client:
        run = client.submit(steps.by_loop, str(tmp_path), "x")
        eventually(lambda: messages(run) == ["first line, with x"])
        (tmp_path / "gate").touch()
        run.result("90s")
        said = locktender("runs", "logs", run.id, "--follow", "--url", str(store_url), cwd=tmp_path)
        assert said.code == 0, said.err
        texts = [line.split("on_loop ")[1] for line in said.out.splitlines()]
        assert texts == ["first line, with x", "last line"]


def test_a_body_that_logs_nothing_costs_no_statement(
    engine: Client, monkeypatch: pytest.MonkeyPatch
):
    store = engine._core.store
    kept: list[int] = []
    keep_logs = store.keep_logs

    async def counted(rows: list[Any]) -> None:
        kept.append(len(rows))
        await keep_logs(rows)

    monkeypatch.setattr(store, "keep_logs", counted)
    runs = engine.submit_many(steps.quiet, range(20))
    assert [run.result("90s") for run in runs] == list(range(20))
    assert kept == []
