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
from locktender.base.commits import CacheClear
from locktender.base.graph import TRACE, AwaitedEvent, CacheRule, Const, Output, RetryPolicy
from locktender.base.ids import task_id
from locktender.base.named_runs import tracing_graph
from locktender.base.schedules import ScheduledRun, ScheduleSpec, ScheduleState
from locktender.base.states import TERMINAL_RUNS
from locktender.kernel.lifecycle import Defaults
from locktender.kernel.schedules import decide
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
    made.plan(SECOND, lambda: made.set_rule("pool", "db", {"limit": 5}))
    made.plan(1_200 * MILLISECOND, lambda: made.set_rule("pool", "db", {"limit": 3}))
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


def named(seed: int) -> SimWorld:
    """Runs submitted by name: a worker traces each, and leaders change in between."""
    draw = random.Random(seed)
    traced = graph(step("first"), step("second", args=(Output(0),)), flow="named", max_parallel=1)
    body = b'{"graph":%s,"params":{},"consts":[]}' % msgspec.json.encode(traced)
    made = world(
        seed=seed,
        took=lambda rng, _node: rng.randint(5, 60) * MILLISECOND,
        output=lambda _row, node: body if node.step == TRACE else b"1",
        workers=2,
    )
    first = tracing_graph("named", ())
    for _ in range(4):
        made.plan(draw.randrange(100) * MILLISECOND, lambda: made.submit(first))
    made.plan(draw.randrange(150) * MILLISECOND, made.lead)
    return made


def ticking(seed: int) -> SimWorld:
    """A schedule whose leaders change: the next one decides on what the last one stored."""
    draw = random.Random(seed)
    made = world(seed=seed, took=lambda rng, _node: rng.randint(5, 400) * MILLISECOND)
    flow = graph(step("tick"), flow="ticking")
    spec = ScheduleSpec("ticking", every_us=SECOND // 4, overlap="skip", catch_up="all")
    stored = [ScheduleState(anchor=made.now, last=made.now)]

    def look() -> None:
        active = [
            run for run in stored[0].runs if made.model.runs[run.seq].state not in TERMINAL_RUNS
        ]
        decision = decide("ticking", spec, stored[0], active, made.now)
        runs = list(decision.state.runs)
        for tick in decision.fires:
            row = made.submit(flow, key=f"schedule:{tick}:{len(runs)}", scheduled=("ticking", tick))
            runs += [] if row is None else [ScheduledRun(row.seq, row.id, tick)]
        stored[0] = msgspec.structs.replace(decision.state, runs=tuple(runs))

    for at in range(0, 3_000, draw.choice([50, 120, 700])):
        made.plan(at * MILLISECOND, look)
    made.plan(draw.randrange(2 * SECOND), made.lead)
    return made


def sliced(seed: int) -> SimWorld:
    """Maps of which two items are asked for in a cycle, beside chains of steps; leaders change in between."""
    draw = random.Random(seed)
    made = world(
        seed=seed,
        took=lambda rng, node: rng.randint(1, 60 if node.name == "first" else 4) * MILLISECOND,
        rules={("runs", ""): {"limit": -1}},
        defaults=Defaults(items_per_cycle=2),
    )
    nodes = [step("first"), step("next", after=(0,)), items("many")]
    flow = graph(*nodes, *draw.choice([(), (items("each", Output(2)),)]), flow="sliced")
    for _ in range(4):
        made.plan(draw.randrange(20 * MILLISECOND), lambda: made.submit(flow, consts=numbers(30)))
    for at in (20, 40, 60, 80):
        made.plan(at * MILLISECOND + draw.randrange(20 * MILLISECOND), made.lead)
    return made


def asleep(seed: int) -> SimWorld:
    """Runs that sleep beside a step that fails and is retried; leaders change meanwhile."""
    draw = random.Random(seed)
    made = world(
        seed=seed,
        took=lambda rng, _node: rng.randint(5, 60) * MILLISECOND,
        failure=0.5,
        rules={("runs", ""): {"limit": 2}},
    )
    nap = step("nap", step="locktender:sleep", wait="sleep", args=(Const(1), Const(0)))
    flaky = step("flaky", retry=RetryPolicy(retries=3, delay_us=400 * MILLISECOND))
    flow = graph(nap, flaky, step("last", args=(Output(0), Output(1))), flow="asleep")
    for _ in range(5):
        made.plan(draw.randrange(SECOND), lambda: made.submit(flow, consts=b'[{"us":2000000},1]'))
    made.plan(draw.randrange(3 * SECOND), made.lead)
    return made


def approving(seed: int) -> SimWorld:
    """Runs that wait for two events, one after or beside the other; some come before, some never; leaders change.

    In half of the worlds runs of a team keep their place at its limit while they wait.
    """
    draw = random.Random(seed)
    mutex = {"key": "team", "limit": 1, "counts_while_waiting": True}
    made = world(
        seed=seed,
        took=lambda rng, _node: rng.randint(5, 60) * MILLISECOND,
        rules={("runs", ""): {"limit": 2}, ("tag", "team"): mutex},
    )
    tags = {"team": "a"} if seed // 10 % 2 else {}
    args = (Const(0), Const(1), Const(2))
    go = AwaitedEvent("go", default=seed % 20 < 10)
    first = step("first", step="locktender:event", wait="event", event=go, args=args)
    beside = seed // 10 % 3 == 0
    after = () if beside else (0,)
    second = step("second", step="locktender:event", wait="event", event=go, args=args, after=after)
    flow = graph(first, second, step("last", args=(Output(0), Output(1))), flow="approving")
    for n in range(1, 6):
        consts = b'[1,{"us":2000000},null]'
        made.plan(n, lambda consts=consts: made.submit(flow, consts=consts, tags=tags))
        for _ in range(draw.choice([0, 1, 2, 3])):
            made.plan(SECOND // 10 + draw.randrange(SECOND), lambda n=n: made.send(n, "go", n))
        if beside:
            # The answer of the second wait, before the first has one.
            answered = task_id(n, 1)
            made.plan(SECOND // 10, lambda n=n, task=answered: made.send(n, "go", n, task))
    made.plan(draw.randrange(3 * SECOND), made.lead)
    return made


def caching(seed: int) -> SimWorld:
    """The same calls again and again, some fail first; results expire and are cleared; leaders change."""
    draw = random.Random(seed)
    made = world(
        seed=seed,
        took=lambda rng, _node: rng.randint(20, 200) * MILLISECOND,
        rules={("runs", ""): {"limit": 4}, ("pool", "db"): {"limit": 2}},
    )
    made.behaviour = replace(made.behaviour, failure=0.3)
    kept = CacheRule(draw.choice([300, 5_000]) * MILLISECOND)
    retry = RetryPolicy(retries=5, delay_us=100 * MILLISECOND, jitter=False)
    flow = graph(items("call", pools=needs(db=1), cache=kept, retry=retry), flow="caching")
    for _ in range(12):
        made.plan(draw.randrange(2 * SECOND), lambda: made.submit(flow, consts=numbers(3)))
    for _ in range(3):
        made.plan(
            draw.randrange(2 * SECOND), lambda: made.model.clears.append(CacheClear(None, None))
        )
        made.plan(draw.randrange(2 * SECOND), made.lead)
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


WORLDS = {0: crowded, 2: named, 3: sliced, 5: stranded, 7: ticking, 4: asleep, 6: approving}


def first_broken(seeds: int, wanted: set[str]) -> dict[str, object]:
    for seed in range(seeds):
        make = caching if seed % 20 == 8 else WORLDS.get(seed % 10, eventful)
        rules = broken_rules(make(seed))
        if rules and (not wanted or rules & wanted):
            return {"seed": seed, "world": make.__name__, "rules": sorted(rules)}
    return {"seed": None, "world": "", "rules": []}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(first_broken(int(sys.argv[1]), set(sys.argv[2:]))))
