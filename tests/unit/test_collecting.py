"""Cyclic garbage is looked for less often while an engine runs, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender import embedded_async
from locktender.worker.garbage import DEFAULTS, RARER, Collecting, Thresholds


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    found = gc.get_threshold()
    yield
    gc.set_threshold(*found)


def test_the_interpreter_we_run_on_has_one_of_the_defaults_we_know():
    assert gc.get_threshold() in DEFAULTS


@pytest.mark.parametrize("default", sorted(DEFAULTS))
def test_rarer_from_the_first_engine_to_the_last(default: Thresholds):
    gc.set_threshold(*default)
    of_process = Collecting()
    for engine in ("a", "b"):
        of_process.begin(engine)
        assert gc.get_threshold() == RARER
    of_process.end("a")
    of_process.end("a")  # an engine may be stopped twice
    assert gc.get_threshold() == RARER
    of_process.end("b")
    assert gc.get_threshold()[:2] == default[:2]


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 100, 100), (500, 10, 10)])
def test_thresholds_that_somebody_has_set_stay(own: Thresholds):
    gc.set_threshold(*own)
    of_process = Collecting()
    of_process.begin("a")
    assert gc.get_threshold() == own
    of_process.end("a")
    assert gc.get_threshold() == own


def test_thresholds_that_somebody_sets_meanwhile_stay():
    gc.set_threshold(700, 10, 10)
    of_process = Collecting()
    of_process.begin("a")
    gc.set_threshold(900, 10, 10)
    of_process.end("a")
    assert gc.get_threshold() == (900, 10, 10)


async def test_while_an_engine_runs(tmp_path: Path):
    gc.set_threshold(700, 10, 10)
    async with embedded_async(tmp_path / "engine.db"):
        assert gc.get_threshold() == RARER
    assert gc.get_threshold() == (700, 10, 10)
