"""What a failed run and an error code tell: the line of the user's file, the cause, the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli_harness import locktender

import locktender as package
from locktender import Client, InvalidInput, flow, step
from locktender.base.errors import LocktenderError
from locktender.cli.error_codes import CODES


@step(retries=1, retry_delay="1ms")
def misses(row: int) -> int:
    raise ValueError(f"row {row} is missing")


@flow
def fails(row: int) -> int:
    return misses(row)


def test_show_has_the_line_that_failed(engine: Client, url: Path, tmp_path: Path):
    run = engine.submit(fails, 7)
    assert run.wait("1m") == "failed"

    shown = locktender("--url", str(url), "runs", "show", run.id, cwd=tmp_path).out

    assert "error at step misses: ValueError: row 7 is missing" in shown
    assert 'raise ValueError(f"row {row} is missing")' in shown
    assert Path(__file__).name in shown


def test_active_and_ended_are_groups_of_states(engine: Client):
    engine.limits.pause()
    waiting = engine.submit(fails, 1)
    assert engine.runs.count("active") == 1
    assert [each.id for each in engine.runs.list(status=["active", "failed"])] == [waiting.id]
    assert engine.runs.count("ended") == 0
    engine.limits.resume()
    waiting.wait("1m")
    assert engine.runs.count("active") == 0
    assert engine.runs.count("ended") == 1
    with pytest.raises(InvalidInput, match='"active" is each that has not ended'):
        engine.runs.count("alive")


def test_explain_takes_the_name_of_a_class(tmp_path: Path):
    said = locktender("explain", "InvalidFlow", cwd=tmp_path)
    assert said.out.startswith("invalid_flow\n")
    unknown = locktender("explain", "ValueError", cwd=tmp_path)
    assert unknown.code == 2
    assert "locktender runs show RUN has its traceback" in unknown.err
    assert "Did you mean 'duplicate_key'?" in locktender("explain", "duplicate", cwd=tmp_path).err


def test_each_public_error_has_a_code_that_is_explained():
    classes = [getattr(package, name) for name in package.__all__]
    errors = [
        each for each in classes if isinstance(each, type) and issubclass(each, LocktenderError)
    ]
    assert len(errors) > 10
    assert [each.__name__ for each in errors if each.code not in CODES] == []
