"""Random worlds: whatever happens, every promise holds, every run ends, and a seed tells all."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from functools import partial

import msgspec
import pytest
from tests.property.test_pruned import pruned
from tests.support.worlds import settle

from locktender.base.clock import SECOND
from locktender.observe.checker import History, check
from locktender.simulate.scenarios import random_world
from locktender.simulate.world import SimWorld

SEEDS = 300
CHUNK = 15


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_random_worlds_keep_every_promise(first: int):
    """Also when whole runs are pruned from their history, in every fifth world, three times."""
    for seed in range(first, first + CHUNK):
        world = settle(random_world(seed), steps=60_000)
        if seed % 5 == 0:
            history = History(world.model.events, world.model.graphs, complete=True)
            chance = random.Random(seed)
            for _ in range(3):
                assert check(pruned(history, chance)) == [], seed


CHANGES = (1226, 1427, 1647, 2936, 7661)
"""Worlds with changes of leaders in which the checker once reported something."""


def test_random_worlds_keep_every_promise_while_leaders_change():
    for seed in (*CHANGES, *range(3_000, 3_030)):
        world = random_world(seed)
        chance = random.Random(seed)
        for _ in range(chance.choice([0, 1, 3, 6])):
            world.plan(chance.randrange(5 * SECOND), partial(_change_leader, world))
        settle(world, steps=60_000)


def _change_leader(world: SimWorld) -> None:
    if world.scheduler is not None:
        world.lead()


PRINT = """
import hashlib, msgspec
from locktender.simulate.scenarios import random_world
for seed in (3, 14, 15, 92, 65):
    world = random_world(seed)
    world.run()
    print(hashlib.sha256(msgspec.json.encode(world.model.events)).hexdigest())
"""


def history(seed: int) -> str:
    world = random_world(seed)
    world.run()
    return hashlib.sha256(msgspec.json.encode(world.model.events)).hexdigest()


def test_the_same_seed_gives_the_same_history():
    for seed in range(1_000, 1_004):
        assert history(seed) == history(seed)


def test_the_same_seed_gives_the_same_history_in_every_process():
    """Nothing may hang on the order of a set of texts: it differs from process to process."""
    told = {
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env=os.environ | {"PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashing in ("1", "2", "3")
    }
    assert len(told) == 1


def test_different_seeds_give_different_histories():
    assert len({history(seed) for seed in range(8)}) == 8
