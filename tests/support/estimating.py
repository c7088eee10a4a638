"""Estimates of waits in the simulator, beside what the waits were: how good they are, in numbers."""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from pathlib import Path
from statistics import median

import pytest
from tests.support.worlds import graph, items, needs, numbers, step, world

from locktender.base.clock import SECOND
from locktender.base.graph import Graph, Node
from locktender.base.limits import PoolRule
from locktender.base.states import TaskState
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.entries import TaskEntry
from locktender.kernel.explain import explain_task
from locktender.kernel.reasons import Reason, Typical
from locktender.kernel.scheduler import Scheduler
from locktender.simulate.world import SimWorld

GRAPHS = Path(__file__).parents[2] / "bench" / "workloads"
Task = tuple[str, tuple[int, ...]]
"""A step, and the numbers of those before."""
Draw = Callable[[random.Random], float]
"""Seconds that a body takes."""
SEEN = 300
ORACLE_PLAYS = 200
WARM = 30
"""Ends that are waited for before anything is estimated."""


@dataclass
class Asked:
    """One wait: what was said when it began, and how long it was."""

    run: tuple[int, int]
    """The seed, and the run's number."""
    ahead: int
    p50: int
    p90: int
    oracle: float
    actual: int = 0


@dataclass
class Measured:
    asked: list[Asked] = field(default_factory=list[Asked])

    @property
    def covered(self) -> tuple[float, float]:
        """Shares of waits that were at most as long as the median, and as the 90th percentile, said."""
        count = len(self.asked)
        return (
            sum(each.actual <= each.p50 for each in self.asked) / count,
            sum(each.actual <= each.p90 for each in self.asked) / count,
        )

    @property
    def near(self) -> float:
        """Of waits behind 20 and more: the share whose estimate was within 30 %."""
        far = [each for each in self.asked if each.ahead >= 19]
        return sum(abs(each.p50 - each.actual) <= 0.3 * each.actual for each in far) / max(
            1, len(far)
        )

    @property
    def error(self) -> float:
        """The median error, in parts of that of an oracle which knows the true distributions."""
        own = median(abs(each.p50 - each.actual) for each in self.asked)
        return own / max(1, median(abs(each.oracle - each.actual) for each in self.asked))

    @property
    def runs(self) -> int:
        """All waiters of one run share its luck: so many samples there are at least."""
        return len({each.run for each in self.asked})

    def __str__(self) -> str:
        p50, p90 = self.covered
        return (
            f"{len(self.asked)} waits of {self.runs} runs: p50 covers {p50:.1%}, p90 {p90:.1%};"
            f" within 30 % behind 20: {self.near:.0%}; error {self.error:.2f} × oracle"
        )


@contextmanager
def estimating(
    sim: SimWorld, truth: dict[str, tuple[int, ...]], every: int, warm: int = WARM
) -> Generator[Measured]:
    """Each `every`th task that begins to wait at the pool is asked about at that moment.

    `warm`: ends that are waited for before anything is asked.
    """
    ended = [0]
    found, seen, waits = Measured(), set[int](), dict[int, tuple[int, Asked]]()
    original = Scheduler.cycle

    def reason(lead: Scheduler, entry: TaskEntry, now: int) -> Reason | None:
        reasons = explain_task(lead, entry, Typical(holds=lead.ledger.holds), now)
        return next((each for each in reasons if each.gate == "pool:cpu"), None)

    def cycle(lead: Scheduler, now: int) -> Cycle:
        done = original(lead, now)
        tasks = lead.lifecycle.tasks
        for task in [task for task in waits if task not in tasks or not tasks[task].in_line]:
            began, asked = waits.pop(task)
            asked.actual = now - began
            found.asked.append(asked)
        ended[0] = sum(body.end > 0 for body in sim.bodies) if ended[0] < warm else ended[0]
        if done.unfinished or ended[0] < warm:
            return done
        for entry in list(tasks.values()):
            if entry.id in seen or entry.state != TaskState.REQUESTED or not entry.in_line:
                continue
            seen.add(entry.id)
            if len(seen) % every:
                continue
            said = reason(lead, entry, now)
            if said is None or said.p90_us is None:
                continue
            assert said.estimate_us is not None
            known = oracle(tasks.values(), entry, truth, now)
            run = sim.seed, entry.run.seq
            asked = Asked(run, said.ahead, said.estimate_us, said.p90_us, known)
            waits[entry.id] = (now, asked)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "cycle", cycle)
        yield found


def oracle(
    tasks: Iterable[TaskEntry], entry: TaskEntry, truth: Mapping[str, tuple[int, ...]], now: int
) -> float:
    """The median wait of one that needs a slot, of somebody who knows the true distributions and the line.

    It shares nothing with what it is compared to.
    """
    chance = random.Random(entry.id).random

    def drawn(durations: tuple[int, ...]) -> int:
        return durations[int(chance() * len(durations))]

    holding: list[tuple[int, tuple[int, ...]]] = []
    line: list[tuple[tuple[int, int], int, str]] = []
    for task in tasks:
        if task.state in (TaskState.SCHEDULED, TaskState.RUNNING):
            elapsed, durations = now - task.scheduled_at, truth[task.spec.step]
            longer = durations[bisect_right(durations, elapsed) :]
            holding.append((elapsed, longer or (elapsed,)))
        elif task.in_line and (task.rank, task.id) < (entry.rank, entry.id):
            line.append((task.rank, task.id, task.spec.step))
    before = [truth[name] for _, _, name in sorted(line)]
    waits: list[int] = []
    for _ in range(ORACLE_PLAYS):
        free = [drawn(longer) - elapsed for elapsed, longer in holding]
        heapify(free)
        for durations in before:
            heapreplace(free, free[0] + drawn(durations))
        waits.append(free[0])
    return median(waits)


def _truth(draws: dict[str, Draw], count: int = 2_000) -> dict[str, tuple[int, ...]]:
    dice = random.Random(7)
    return {
        name: tuple(sorted(round(SECOND * draw(dice)) for _ in range(count)))
        for name, draw in draws.items()
    }


def _world(draws: dict[str, Draw], slots: int, seed: int) -> SimWorld:
    def took(dice: random.Random, node: Node) -> int:
        return round(SECOND * draws[node.step](dice))

    return world(
        seed=seed,
        took=took,
        permits={"async": 10_000},
        rules={
            ("pool", "cpu"): PoolRule(slots),
            ("runs", ""): {"limit": -1},
            ("active", ""): {"limit": -1},
        },
        latency=0,
    )


def one_step(name: str) -> Graph:
    return graph(step("a", step=name, pools=needs(cpu=1)), flow=f"flow-{name}")


def later(sim: SimWorld, delay: int, flow: Graph, consts: bytes = b"[]") -> None:
    def submit() -> None:
        sim.submit(flow, consts=consts)

    sim.plan(delay, submit)


def arrive(
    sim: SimWorld, flows: list[tuple[float, Graph]], rate: Callable[[float], float], count: int
) -> None:
    """Runs come at random, `rate(share of all that came)` of them a second; flows by weight."""
    dice, at = random.Random(sim.seed + 1), 0.0
    weights = [weight for weight, _ in flows]
    for number in range(count):
        at += dice.expovariate(rate(number / count))
        flow = dice.choices([each for _, each in flows], weights)[0]
        later(sim, round(at * SECOND), flow)


def tenants(count: int, load: Callable[[float], float], seed: int = 3, every: int = 4) -> Measured:
    """Three tenants with steps of different kinds on ten slots."""
    draws: dict[str, Draw] = {
        "fetch": lambda dice: dice.expovariate(1 / 2.0),
        "parse": lambda dice: dice.lognormvariate(math.log(4.0), 0.5),
        "train": lambda dice: dice.uniform(5.0, 15.0),
    }
    sim = _world(draws, 10, seed)
    mean = 0.5 * 2.0 + 0.3 * 4.0 * math.exp(0.125) + 0.2 * 10.0
    flows = [(0.5, one_step("fetch")), (0.3, one_step("parse")), (0.2, one_step("train"))]
    arrive(sim, flows, lambda share: load(share) * 10 / mean, count)
    with estimating(sim, _truth(draws), every) as found:
        sim.run(steps=10_000_000)
    return found


def burst(count: int, seed: int = 5, every: int = 3) -> Measured:
    """A few come before, then all at once."""
    draws: dict[str, Draw] = {"work": lambda dice: dice.gammavariate(2.0, 1.5)}
    sim = _world(draws, 8, seed)
    sim.submit(graph(items("m", step="work", pools=needs(cpu=1)), flow="few"), consts=numbers(400))
    whole = graph(items("m", step="work", pools=needs(cpu=1)), flow="many")
    later(sim, 120 * SECOND, whole, numbers(count))
    with estimating(sim, _truth(draws), every, SEEN) as found:
        sim.run(steps=10_000_000)
    return found


def real(name: str, slots: int, runs: int, seed: int = 9, every: int = 5) -> Measured:
    """A real graph is run again and again: each run but the first is asked about.

    A task lasts as long as one of its kind that was measured. Nobody can know more of a line of n waiters from m
    durations than with √(1 + n/m) × the error of an oracle: behind one run that is up to √2, behind four 1.1.
    """
    tasks = json.loads((GRAPHS / f"{name}.json").read_text())["tasks"]
    by_step: dict[str, list[int]] = {}
    for task in tasks:
        took = max(1, round(task["runtime"] * SECOND))
        by_step.setdefault(_kind(task["name"]), []).append(took)
    nodes = [(_kind(task["name"]), tuple(task["parents"])) for task in tasks]
    return _again(nodes, by_step, slots, runs, seed, every)


def _again(
    tasks: Sequence[Task],
    by_step: dict[str, list[int]],
    slots: int,
    runs: int,
    seed: int,
    every: int,
) -> Measured:
    """A graph is run again when it has ended; each run but the first is asked about."""
    sim = world(
        seed=seed,
        took=lambda dice, node: dice.choice(by_step[node.step]),
        permits={"async": 10_000},
        rules={("pool", "cpu"): PoolRule(slots), ("runs", ""): {"limit": -1}},
        latency=0,
    )
    flow = graph(
        *(
            step(f"t{number}", step=kind, after=parents, pools=needs(cpu=1))
            for number, (kind, parents) in enumerate(tasks)
        )
    )
    work = sum(sum(by_step[kind]) // len(by_step[kind]) for kind, _ in tasks)
    alone = 2 * work // slots + sum(max(each) for each in by_step.values())
    for copy in range(runs):
        later(sim, copy * (alone + alone // 8), flow)
    truth = {kind: tuple(sorted(each)) for kind, each in by_step.items()}
    with estimating(sim, truth, every, len(tasks)) as found:
        sim.run(steps=10_000_000)
    return found


def generated(seed: int, runs: int, every: int) -> Measured:
    """A graph of a random shape, its steps with durations of random kinds: what the estimates are developed on."""
    dice = random.Random(f"graph {seed}")
    shape = dice.choice((_chains, _layers, _mixed))
    tasks = [(f"s{kind}", parents) for kind, parents in shape(dice)]
    by_step = {kind: _durations(dice) for kind in sorted({kind for kind, _ in tasks})}
    return _again(tasks, by_step, dice.choice((2, 4, 6, 8)), runs, seed, every)


def _durations(dice: random.Random, count: int = 2_000) -> list[int]:
    mean = math.exp(dice.uniform(0.0, math.log(200)))
    width = dice.uniform(0.1, 1.0)
    draws: tuple[Draw, ...] = (
        lambda dice: dice.lognormvariate(math.log(mean), width),
        lambda dice: dice.gammavariate(1 / width, mean * width),
        lambda dice: dice.uniform(mean * (1 - width), mean * (1 + width)),
        lambda dice: mean * (2.5 if dice.random() < width / 2 else 0.6) * dice.uniform(0.9, 1.1),
    )
    draw = dice.choice(draws)
    return [max(1, round(SECOND * draw(dice))) for _ in range(count)]


def _chains(dice: random.Random) -> Iterator[tuple[int, tuple[int, ...]]]:
    """One step, many chains of the same steps, one step."""
    chains, steps = dice.randint(30, 80), dice.randint(2, 4)
    yield 0, ()
    for chain in range(chains):
        yield 1, (0,)
        for kind in range(2, steps + 1):
            yield kind, (chain * steps + kind - 1,)
    yield steps + 1, tuple((chain + 1) * steps for chain in range(chains))


def _layers(dice: random.Random) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each task needs some of the layer before."""
    above, number = list[int](), 0
    for layer in range(dice.randint(3, 6)):
        here = list(range(number, number + dice.randint(5, 60)))
        for _ in here:
            yield layer, tuple(dice.sample(above, min(len(above), dice.randint(1, 3))))
        above, number = here, here[-1] + 1


def _mixed(dice: random.Random) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Tasks of several steps at once, one among the other."""
    kinds = dice.randint(2, 4)
    yield 0, ()
    for _ in range(dice.randint(40, 120)):
        yield dice.randint(1, kinds), (0,)


def _kind(name: str) -> str:
    """`sifting` of `sifting_ID0000001`, `map` of `map_map_HEP2_…`."""
    head = name.partition("_ID")[0]
    first, _, rest = head.partition("_")
    return first if f"{rest}_".startswith(f"{first}_") else head


def arrivals_served(servers: int, load: float, count: int, seed: int) -> list[tuple[int, int, int]]:
    """Exponential arrivals and services at a pool, in the simulator: when each came, started and ended."""
    sim = _world({"exp": lambda dice: dice.expovariate(1.0)}, servers, seed)
    arrive(sim, [(1.0, one_step("exp"))], lambda _share: load * servers, count)
    sim.run(steps=10_000_000)
    return [(row.requested_at, row.scheduled_at, row.ended_at) for row in sim.model.tasks.values()]


def first_come(servers: int, calls: Iterable[tuple[float, float]]) -> list[float]:
    """When each call starts that comes at an instant and lasts so long: first come, first served."""
    free, starts = [0.0] * servers, list[float]()
    for came, lasts in calls:
        starts.append(max(came, free[0]))
        heapreplace(free, starts[-1] + lasts)
    return starts


def erlang_c(servers: int, load: float) -> tuple[float, float]:
    """The share that waits, and the mean wait in services."""
    offered, term, total = servers * load, 1.0, 1.0
    for number in range(1, servers):
        term *= offered / number
        total += term
    term *= offered / servers / (1 - load)
    waits = term / (total + term)
    return waits, waits / (servers * (1 - load))
