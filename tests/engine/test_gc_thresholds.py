"""Garbage collection thresholds: ours in processes of our own, the program's everywhere else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from locktender import embedded_async
from locktender.base.config import Settings
from locktender.cli.shutdown import StopRequests, serve
from locktender.client.core import Core
from locktender.store.open import settings_for


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    found = gc.get_threshold()
    yield
    gc.set_threshold(*found)


async def test_a_program_keeps_its_thresholds_while_an_engine_runs(tmp_path: Path):
    gc.set_threshold(700, 10, 10)
    async with embedded_async(tmp_path / "engine.db"):
        assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize(
    ("before", "work", "served"),
    [
        ((700, 10, 10), True, (10_000, 20, 50)),
        ((2_000, 10, 10), True, (10_000, 20, 50)),
        ((700, 10, 10), False, (100_000, 20, 50)),
        ((500, 9, 9), True, None),
    ],
    ids=["3.11", "3.12", "no bodies", "the user's own"],
)
async def test_our_own_process_collects_less_often(
    tmp_path: Path,
    *,
    before: tuple[int, int, int],
    work: bool,
    served: tuple[int, int, int] | None,
):
    gc.set_threshold(*before)
    settings: Settings = settings_for(tmp_path / "locktender.db", {"work_dir": str(tmp_path)})
    stop = StopRequests()
    seen: list[tuple[int, int, int]] = []

    async def ready(_: Core) -> None:
        seen.append(gc.get_threshold())
        stop.request("the test is over")

    await serve(settings, stop, ready, lead=True, work=work)
    assert seen == [served or before]
