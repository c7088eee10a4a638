"""Runs in a child process, on a copy of the package: worlds until the checker reports one of the rules.

    python hunt.py SEEDS [RULE …]

Prints the first seed and the rules broken there as JSON; without rules named, any will do.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace

import msgspec
from tests.support.worlds import graph, items, needs, numbers, step, world

from locktender.base.clock import MILLISECOND, SECOND
from locktender.simulate.scenarios import random_world, violations
from locktender.simulate.world import SimWorld


def eventful(seed: int) -> SimWorld:
    """A random world in which a worker also loses its lease while its bodies go on: a zombie."""
    made = random_world(seed, waits=seed % 2 == 0)
    draw = random.Random(seed)

    def lose_lease() -> None:
        remote = [name for name in made.model.workers if not made.workers[name].local]
        if remote:
            name = draw.choice(remote)
            row = made.model.workers[name]
            made.model.workers[name] = msgspec.structs.replace(row, lease_until=0)
            made.add_worker(f"{name}-again", made.workers[name].permits)

    made.plan(draw.randrange(3 * SECOND), lose_lease)
    made.behaviour = replace(
        made.behaviour,
        duration=lambda rng, _node: rng.choice([1, 20, 100, 400, 2_500]) * MILLISECOND,
    )
    return made


def crowded(seed: int) -> SimWorld:
    """Wide tasks in a stream of narrow ones, with a rate and limits that move."""
    draw = random.Random(seed)
    made = world(
        seed=seed,
        took=lambda rng, _node: rng.randint(5, 60) * MILLISECOND,
        rules={
            ("runs", ""): {"limit": -1},
            ("pool", "db"): {"limit": 3},
            ("pool", "api"): {"limit": -1, "rate": {"count": 20, "per_us": SECOND, "burst": 2}},
            ("engine", "max_bypass"): {"value": 2},
        },
    )
    narrow = graph(items("narrow", pools=needs(db=1)), flow="narrow")
    wide = graph(step("wide", pools=needs(db=3)), flow="wide")
    rated = graph(items("rated", pools=needs(api=1)), flow="rated")
    for at in range(0, 1_500, 60):
        made.plan(at * MILLISECOND, lambda: made.submit(narrow, consts=numbers(6)))
    for _ in range(3):
        made.plan(draw.randrange(SECOND), lambda: made.submit(wide))
    made.submit(rated, consts=numbers(30))
    made.plan(700 * MILLISECOND, made.lead)
    return made


def stranded(seed: int) -> SimWorld:
    """Runs that need a worker that comes late, in one that goes, beside others; leaders change."""
    draw = random.Random(seed)
    made = world(
        seed=seed,
        took=lambda rng, _node: rng.randint(50, 400) * MILLISECOND,
        rules={("runs", ""): {"limit": 2}},
    )
    label = {"gpu": "a100"}
    rare = graph(step("rare", needs=label), flow="rare")
    plain = graph(step("plain"), flow="plain")
    settled = 61 * SECOND  # the checker gives a leader a minute to learn of its workers
    for flow in (rare, rare, rare, plain, plain, rare):
        made.plan(settled + draw.randrange(SECOND), lambda flow=flow: made.submit(flow))
    made.plan(settled + draw.randrange(2 * SECOND), made.lead)
    made.plan(settled + 2 * SECOND, lambda: made.add_worker("rare", labels=label))
    return made


def broken_rules(made: SimWorld) -> set[str]:
    try:
        made.run(steps=25_000)
    except AssertionError:
        # No end in sight: the checker says what is left over.
        return {each.rule for each in violations(made)} or {"livelock"}
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        return {each.rule for each in violations(made, complete=False)} | {type(error).__name__}
    return {each.rule for each in violations(made)}


def first_broken(seeds: int, wanted: set[str]) -> dict[str, object]:
    for seed in range(seeds):
        make = {0: crowded, 5: stranded}.get(seed % 10, eventful)
        rules = broken_rules(make(seed))
        if rules and (not wanted or rules & wanted):
            return {"seed": seed, "world": make.__name__, "rules": sorted(rules)}
    return {"seed": None, "world": "", "rules": []}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(first_broken(int(sys.argv[1]), set(sys.argv[2:]))))
