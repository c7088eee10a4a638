"""pytest fixtures for users' tests. In `conftest.py`, or in a test module:

    pytest_plugins = ["locktender.testing.plugin"]

engine                      an engine in this process on a fresh file; its history is checked at the end
make_engine                 more engines on the same file: `make_engine(max_concurrent_runs=2)`
engine_settings             override it to give all engines of a module settings
engine_clock                the store's time under the test's control: `engine_clock.move("10m")`
overlap                 what bodies recorded with `recording("db")` say about when they ran
assert_max_concurrent   `assert_max_concurrent("db", 3)`, from the history and from the bodies

Each test has its own directory, so they are safe under xdist. Nothing of
locktender's engine is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from locktender.client.client import Client
    from locktender.testing.fixtures import Engines, MaxConcurrent, VirtualClock
    from locktender.testing.overlap import Overlap


@pytest.fixture
def engine_settings() -> dict[str, Any]:
    """Settings of every engine of the test. Override it: `return {"max_concurrent_runs": 2}`."""
    return {}


@pytest.fixture
def overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Overlap:
    """The records of bodies that run under `recording(...)`, from any process of the test."""
    from locktender.testing.overlap import VARIABLE, Overlap  # noqa: PLC0415

    records = Overlap(tmp_path / "overlap.jsonl")
    monkeypatch.setenv(VARIABLE, str(records.path))
    return records


@pytest.fixture
def make_engine(
    tmp_path: Path, overlap: Overlap, engine_settings: dict[str, Any]
) -> Iterator[Engines]:
    """Makes engines on one fresh file. All are closed at the end, then the history is checked."""
    from locktender.testing.fixtures import Engines  # noqa: PLC0415

    engines = Engines(tmp_path, overlap, engine_settings)
    yield engines
    engines.close()


@pytest.fixture
def engine_clock(make_engine: Engines) -> Iterator[VirtualClock]:
    """The store's time, moved by the test. Ask for it before `engine`, or use `make_engine` after it."""
    with make_engine.virtual() as clock:
        yield clock


@pytest.fixture
def engine(make_engine: Engines, request: pytest.FixtureRequest) -> Client:
    """An engine in this process, on a fresh file."""
    if "engine_clock" in request.fixturenames:
        request.getfixturevalue("engine_clock")
    return make_engine()


@pytest.fixture
def assert_max_concurrent(make_engine: Engines, overlap: Overlap) -> MaxConcurrent:
    """`assert_max_concurrent("db", 3)`: at no moment more than 3, by the history and by the bodies."""
    from locktender.testing.fixtures import MaxConcurrent  # noqa: PLC0415

    return MaxConcurrent(make_engine, overlap)
