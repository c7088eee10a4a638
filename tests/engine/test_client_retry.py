"""Several runs tried again at once: those that may be are queued, and the error says which are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.steps import client_flows as flows
from tests.support.cli_harness import FLOWS, locktender

from locktender import AdmissionRejected, Client, DuplicateKey, InvalidInput, RunState
from locktender.client import retries
from locktender.client.run import Run

ALL_TRANSPORTS = True


def failed(engine: Client, count: int) -> list[Run[int]]:
    runs = [engine.submit(flows.failing, f"no {n}") for n in range(count)]
    for run in runs:
        run.wait(60)
    return runs


@pytest.mark.parametrize("page", [1, 2, 500])
def test_retries_beyond_the_ceiling_are_named(
    engine: Client, monkeypatch: pytest.MonkeyPatch, page: int
):
    monkeypatch.setattr(retries, "PAGE", page)
    runs = failed(engine, 5)
    engine.limits.pause()
    engine.limits.set_max_active(2)

    with pytest.raises(AdmissionRejected, match="2 runs are queued again, 3 not") as caught:
        engine.runs.retry([run.id for run in runs])

    error = caught.value
    states = {run.id: run.status() for run in runs}
    assert error.retried == tuple(run.id for run in runs[:2])
    assert error.refused == tuple(run.id for run in runs[2:])
    assert [states[each] for each in error.retried] == [RunState.QUEUED] * 2
    assert [states[each] for each in error.refused] == [RunState.FAILED] * 3
    assert all(each in error.message for each in error.refused)
    assert error.message in str(error)
    assert error.as_dict()["refused"] == list(error.refused)
    assert 1 <= error.retry_after <= 3600


def test_the_same_call_takes_the_rest_once_there_is_room(engine: Client):
    failed(engine, 3)
    engine.limits.pause()
    engine.limits.set_max_active(1)
    with pytest.raises(AdmissionRejected, match="1 run is queued again, 2 not"):
        engine.runs.retry(status="failed")

    engine.limits.set_max_active(10)

    assert len(engine.runs.retry(status="failed")) == 2
    assert {run.state for run in engine.runs.list()} == {RunState.QUEUED}


def test_many_refused_are_counted_and_a_few_are_shown(engine: Client):
    runs = failed(engine, 8)
    engine.limits.pause()
    engine.limits.set_max_active(1)
    runs[0].retry()

    with pytest.raises(
        AdmissionRejected, match=r"0 runs are queued again, 7 not \(.*, …\)"
    ) as caught:
        engine.runs.retry([run.id for run in runs[1:]])

    assert len(re.findall(r"\b[0-9a-z]{26}\b", caught.value.message.partition(")")[0])) == 5
    assert len(caught.value.refused) == 7


def test_one_alone_is_refused_in_plain_words(engine: Client):
    (run,) = failed(engine, 1)
    engine.limits.pause()
    engine.limits.set_max_active(1)
    engine.submit(flows.doubled, 1)

    with pytest.raises(
        AdmissionRejected, match=rf"^run {run.id} cannot be tried again now"
    ) as caught:
        run.retry()

    assert caught.value.refused == ()
    assert "refused" not in caught.value.as_dict()


def test_a_succeeded_run_refuses_the_whole_retry(engine: Client):
    (run,) = failed(engine, 1)
    done = engine.submit(flows.doubled, 1)
    done.result(60)
    engine.limits.pause()

    with pytest.raises(InvalidInput, match=f"run {done.id} succeeded"):
        engine.runs.retry([run.id, done.id])

    assert run.status() is RunState.FAILED


def test_a_key_in_use_is_told_with_what_was_queued(engine: Client):
    keyed = engine.submit(flows.failing, "no", key="one")
    keyed.wait(60)
    (run,) = failed(engine, 1)
    engine.limits.pause()
    holder = engine.submit(flows.doubled, 1, key="one")

    with pytest.raises(DuplicateKey, match=f"1 run is queued again.*{holder.id}") as caught:
        engine.runs.retry([keyed.id, run.id])

    assert (caught.value.retried, caught.value.refused) == ((run.id,), (keyed.id,))
    assert (keyed.status(), run.status()) == (RunState.FAILED, RunState.QUEUED)


def test_the_command_line_says_the_same(tmp_path: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    for _ in range(2):
        locktender("run", "flows.py:failing", cwd=tmp_path)
    assert locktender("limits", "set", "max_active", "1", cwd=tmp_path).code == 0

    said = locktender("runs", "retry", "--status", "failed", "--json", cwd=tmp_path)

    assert said.code != 0
    assert "1 run is queued again, 1 not" in said.error["message"]
    assert len(said.error["retried"]) == len(said.error["refused"]) == 1
    queued = locktender("runs", "list", "--status", "queued", "--json", cwd=tmp_path)
    assert [each["id"] for each in queued.data] == said.error["retried"]
