"""SIGKILL of every process between any two commits of flows that wait (G1, G3, G4, G5).

`make test` kills each process once, while all flows go on at the same time; the whole matrix is marked `long`.
The cluster's history is judged at the end: a wait holds nothing, an event is delivered once, one run per tick, a
place is given back and taken again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.cluster import Cluster
from tests.support.kill_matrix import MOMENTS, SENDER, Kill, KillMatrix, every_kill
from tests.support.kill_scenes import SCENES

from locktender.testing import Overlap

pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]

MAX_COMMITS = {"engine": 25, "server": 25, "worker": 12, SENDER: 8}
"""All flows at once make more than these."""


def test_every_process_is_killed_once_while_all_flows_wait(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, store: str
):
    chance = random.Random(f"{store} 1")
    matrix = KillMatrix(cluster, tmp_path, overlap, waiters=40)
    kills = [
        Kill(victim, chance.choice(MOMENTS), chance.randint(1, MAX_COMMITS[victim]))
        for victim in matrix.victims
    ]
    matrix.play(list(SCENES), *kills)
    assert matrix.killed == len(kills)
    assert overlap.peak("joined") <= 2


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("scene", SCENES)
def test_killed_between_any_two_commits(
    cluster: Cluster, overlap: Overlap, tmp_path: Path, scene: str
):
    matrix = KillMatrix(cluster, tmp_path, overlap)
    cases = every_kill(matrix, scene, matrix.victims)
    # A flow may take fewer commits than when they were counted.
    assert matrix.killed >= cases * 0.7
