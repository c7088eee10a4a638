"""A little of the chaos that `python -m tests.support.chaos` makes for as long as one likes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.chaos import LEAST_KILLS, torment
from tests.support.cluster import Cluster

from locktender.testing import Overlap

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_everything_dies_at_random(cluster: Cluster, overlap: Overlap, record_property: Any):
    report = torment(cluster, overlap, seconds=8.0, seed=1)
    record_property("recovery", report.recovery_seconds)
    record_property("done", dict(report.done))
    assert report.done["kill"] >= LEAST_KILLS
