"""Pages of the history: every event has its run, however many runs are remembered."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from locktender.client import history
from locktender.client.core import Core
from locktender.store.protocol import RunLabel


class Labels:
    async def run_labels(self, runs: Sequence[int]) -> dict[int, RunLabel]:
        return {run: RunLabel(f"id-{run}", "flow", {}) for run in runs}


async def test_runs_of_a_page_are_kept_and_older_ones_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(history, "MAX_IDS", 2)
    pages: Any = history.HistoryPages(cast("Core", SimpleNamespace(store=Labels())))
    await pages._read_labels({1})
    await pages._read_labels({2})
    # The first one is the oldest, and this page has an event of it.
    await pages._read_labels({1, 3})
    assert set(pages._labels) == {1, 3}
    await pages._read_labels({4, 5, 6})
    assert set(pages._labels) == {4, 5, 6}
