"""A retry from a step on keeps what stands before it; with other arguments it is a new run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.steps import word_steps as flows

from locktender import Client, InvalidInput, RunFailed

ALL_TRANSPORTS = "long"


def calls(marks: Path) -> dict[str, int]:
    names = ("top", "left", "right", "bottom")
    return {each: len((marks / each).read_text()) for each in names if (marks / each).exists()}


def test_a_succeeded_run_goes_again_from_a_step_on(engine: Client, tmp_path: Path):
    run = engine.submit(flows.diamond, str(tmp_path), 2)
    assert run.result("60s") == 4
    assert run.retry(from_step="left").result("60s") == 4
    assert calls(tmp_path) == {"top": 1, "left": 2, "right": 1, "bottom": 2}
    assert run.retry(from_step="top").result("60s") == 4
    assert calls(tmp_path) == {"top": 2, "left": 3, "right": 2, "bottom": 3}
    assert run.info().generation == 2


def test_of_a_failed_run_what_failed_before_the_step_goes_again(engine: Client, tmp_path: Path):
    (tmp_path / "fail-right").touch()
    run = engine.submit(flows.diamond, str(tmp_path), 2)
    with pytest.raises(RunFailed):
        run.result("60s")
    (tmp_path / "fail-right").unlink()
    assert run.retry(from_step="left").result("60s") == 4
    assert calls(tmp_path) == {"top": 1, "left": 2, "right": 2, "bottom": 1}


def test_other_arguments_make_a_new_run(engine: Client, tmp_path: Path):
    run = engine.submit(flows.diamond, str(tmp_path), 2, tags={"team": "red"}, priority=3)
    assert run.result("60s") == 4
    again = run.retry(args={"x": 5})
    assert again.id != run.id
    assert again.result("60s") == 10
    assert (again.info().tags, again.info().priority) == ({"team": "red"}, 3)
    assert run.result("60s") == 4


def test_wrong_retries_are_refused_and_say_why(engine: Client, tmp_path: Path):
    flows.GATE.clear()
    active = engine.submit(flows.two_steps, 1)
    with pytest.raises(InvalidInput, match="only a run that has ended"):
        active.retry(from_step="gated")
    flows.GATE.set()
    active.result("60s")
    with pytest.raises(InvalidInput, match="Did you mean 'gated'"):
        active.retry(from_step="gate")
    with pytest.raises(InvalidInput, match="cannot be kept"):
        active.retry(from_step="gated", args={"x": 2})
    with pytest.raises(InvalidInput, match="Begin at one of its steps"):
        active.retry()
    with pytest.raises(InvalidInput):
        active.retry(args={"y": 2})
