"""Random scenarios from a seed: flows, limits, workers, and everything that can go wrong with them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from locktender.base.changes import TaskRow
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.commits import CacheClear
from locktender.base.graph import (
    AwaitedEvent,
    CacheRule,
    CacheScope,
    Compare,
    Const,
    Executor,
    Graph,
    Item,
    Node,
    Output,
    PoolNeed,
    RetryPolicy,
    RunIf,
    Tag,
    Truthy,
)
from locktender.base.states import TERMINAL_RUNS
from locktender.kernel.lifecycle import Defaults
from locktender.observe.checker import History, Rejection, Violation, check
from locktender.simulate.model import Behaviour
from locktender.simulate.world import SimWorld

POOLS = ("db", "api", "gpu")
TENANTS = ("acme", "globex", "initech")
EXECUTORS: tuple[Executor, ...] = ("async", "thread", "process")
EVENTS = ("go", "stop")
RUN_IF: tuple[RunIf, ...] = ("success", "success", "success", "success", "always", "failure")


def random_graph(draw: random.Random, name: str) -> Graph:
    """A graph of up to eight nodes: plain steps, maps, maps over maps, clean-ups, conditions."""
    nodes: list[Node] = []
    for index in range(draw.randint(1, 8)):
        nodes.append(_random_node(draw, index, nodes))
    return Graph(
        flow=name,
        nodes=tuple(nodes),
        result=Output(len(nodes) - 1),
        max_parallel=draw.choice([None, None, 1, 2, 5]),
        max_parallel_by={"thread": 2} if draw.random() < 0.2 else {},
        fail="fast" if draw.random() < 0.15 else "continue",
    )


def _random_node(draw: random.Random, index: int, before: list[Node]) -> Node:
    mapped = [at for at, node in enumerate(before) if node.over is not None]
    over: Const | Output | None = None
    args: tuple[Item | Const | Output, ...] = ()
    if draw.random() < 0.4:
        over = Const(0)
        if mapped and draw.random() < 0.5:
            over = Output(draw.choice(mapped))
        args = (Item(),)
    elif before and draw.random() < 0.7:
        args = (Output(draw.randrange(len(before))),)
    after = (draw.randrange(len(before)),) if before and draw.random() < 0.3 else ()
    when = None
    if before and draw.random() < 0.1:
        when = draw.choice([Truthy(Const(1)), Compare("==", Const(1), Const(2))])
    return Node(
        name=f"n{index}",
        step=f"step{index % 3}",
        executor=draw.choice(EXECUTORS),
        args=args,
        over=over,
        after=after,
        when=when,
        window=draw.choice([None, 1, 2, 3]) if over is not None else None,
        on_error=draw.choice(["fail", "collect"]) if over is not None else "fail",
        take_errors=over is not None and index % 4 == 3,
        run_if=draw.choice(RUN_IF) if before else "success",
        pools=tuple(_random_pools(draw)),
        retry=RetryPolicy(draw.choice([0, 0, 1, 3]), delay_us=200 * MILLISECOND),
        timeout_us=draw.choice([None, None, 300 * MILLISECOND]),
        queue_timeout_us=3 * SECOND if draw.random() < 0.05 else None,
    )


_CONSTS: Final = b'[[1,2,3,4,5,6,7],1,2,{"us":200000},{"us":1500000},{"of":1}]'


def _with_sleeps(graph: Graph, seed: int) -> Graph:
    """Some of its plain nodes sleep. By a chance of its own, so that all else of a seed stays what it was."""
    draw = random.Random(seed * 7_919)  # noqa: S311
    nodes = [
        Node(
            node.name,
            "locktender:sleep",
            args=((*node.args, Const(1))[0], Const(draw.choice([3, 4]))),
            after=node.after,
            when=node.when,
            run_if=node.run_if,
            wait="sleep",
        )
        if node.over is None and draw.random() < 0.25
        else node
        for node in graph.nodes
    ]
    return msgspec.structs.replace(graph, nodes=tuple(nodes))


def _with_events(graph: Graph, seed: int) -> Graph:
    """Some of its sleeps wait for an event. By a chance of its own, too."""
    draw = random.Random(seed * 104_729)  # noqa: S311
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.wait is not None and draw.random() < 0.5:
            awaited = AwaitedEvent(draw.choice(EVENTS), default=draw.random() < 0.7)
            args = (*node.args, Const(5))
            node = msgspec.structs.replace(
                node, step="locktender:event", wait="event", event=awaited, args=args
            )
        nodes.append(node)
    return msgspec.structs.replace(graph, nodes=tuple(nodes))


def _send(world: SimWorld) -> None:
    """Events to runs and to topics, before and while they are waited for."""
    draw = random.Random(world.seed + 3_000_017)  # noqa: S311
    for _ in range(draw.randint(0, 12)):
        run, name = draw.choice([0, 1, 2, 3, 4, 5]), draw.choice(EVENTS)

        def send(run: int = run, name: str = name) -> None:
            if not run:
                world.send(0, name, **draw.choice([{}, {"of": 1}, {"of": 2}]))
            elif run in world.model.runs and world.model.runs[run].state not in TERMINAL_RUNS:
                waits = [each for each in world.model.event_waits.values() if each.run == run]
                wait = draw.choice([None, *waits])
                answered, task = (name, 0) if wait is None else (wait.name, wait.task)
                world.send(run, answered, draw.randrange(9), task)

        world.plan(draw.randrange(4 * SECOND), send)


def _random_pools(draw: random.Random) -> Iterable[PoolNeed]:
    for pool in draw.sample(POOLS, draw.choice([0, 0, 1, 1, 2])):
        yield PoolNeed(pool, draw.choice([1, 1, 1, 2]))
    if draw.random() < 0.15:
        yield PoolNeed("tenant", 1, (Tag("tenant"),))


def random_rules(draw: random.Random, world: SimWorld) -> None:
    for pool in POOLS:
        if draw.random() < 0.8:
            world.set_rule("pool", pool, _random_pool_rule(draw))
    world.set_rule("pool", "tenant[*]", {"limit": draw.randint(1, 3)})
    world.set_rule("runs", "", {"limit": draw.choice([-1, 2, 5])})
    if draw.random() < 0.5:
        world.set_rule(
            "tag", "tenant=*", {"key": "tenant", "per_value": True, "limit": draw.randint(1, 2)}
        )
    if draw.random() < 0.3:
        world.set_rule("tag", "tenant=acme", {"key": "tenant", "value": "acme", "limit": 1})
    if draw.random() < 0.3:
        world.set_rule("fair", "tenant", {"key": "tenant", "weights": {"acme": 3}})
    if draw.random() < 0.2:
        world.set_rule("engine", "age_boost_us", {"value": SECOND})
    if draw.random() < 0.3:
        world.set_rule("engine", "max_starts_per_cycle", {"value": 5})
    if draw.random() < 0.3:
        world.set_rule("active", "", {"limit": draw.randint(5, 12)})
    if draw.random() < 0.3:
        world.set_rule("engine", "placement", {"value": "pack"})
    world.set_rule("engine", "max_bypass", {"value": draw.choice([2, 4, 16])})


def _random_pool_rule(draw: random.Random) -> dict[str, object]:
    rule: dict[str, object] = {"limit": draw.randint(2, 5)}
    if draw.random() < 0.2:
        rule["rate"] = {"count": draw.randint(5, 20), "per_us": SECOND, "burst": 3}
    return rule


def _with_cache(graph: Graph, seed: int) -> Graph:
    """Results of some of its nodes are kept. By a chance of its own, too."""
    draw = random.Random(seed + 6_000_003)  # noqa: S311
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        plain = node.wait is None and node.run_if == "success" and not node.take_errors
        if plain and draw.random() < 0.2:
            ttl_us = draw.choice([200 * MILLISECOND, 2 * SECOND, 3_600 * SECOND])
            scope: CacheScope = draw.choice(["flow", "everywhere"])
            nodes[index] = msgspec.structs.replace(node, cache=CacheRule(ttl_us, scope))
    return msgspec.structs.replace(graph, nodes=tuple(nodes))


def _clear_cache(world: SimWorld) -> None:
    """Cached results are cleared now and then."""
    draw = random.Random(world.seed + 7_000_003)  # noqa: S311
    for _ in range(draw.choice([0, 1, 4])):
        clear = CacheClear(None, draw.choice([None, "flow0", "flow1"]))
        world.plan(draw.randrange(4 * SECOND), lambda clear=clear: world.model.clears.append(clear))


def random_world(
    seed: int, *, clock_jumps: bool = True, waits: bool = True, cached: bool = True
) -> SimWorld:
    """A world with arrivals, failures, crashes, lost leases, changed limits and cancels ahead of it.

    `waits`: some runs are delayed, and some steps sleep or wait for events. `cached`: beside them,
    results of some steps are kept.
    """
    draw = random.Random(seed)  # noqa: S311
    behaviour = Behaviour(
        duration=lambda rng, _node: rng.choice([1, 5, 20, 100, 400]) * MILLISECOND,
        failure=draw.choice([0.0, 0.05, 0.3]),
        latency=draw.choice([100, 1 * MILLISECOND, 20 * MILLISECOND]),
        output=_output,
    )
    # By a chance of its own: every other choice of a seed stays what it was.
    slices = random.Random(seed + 2_000_003).choice([None, 1, 3])  # noqa: S311
    deadline = draw.choice([3_600, 60]) * SECOND
    defaults = Defaults(dispatch_deadline_us=deadline, items_per_cycle=slices)
    world = SimWorld(seed, behaviour, defaults)
    random_rules(draw, world)
    local = draw.random() < 0.5
    permits = {"async": draw.randint(1, 20), "thread": draw.randint(1, 4), "process": 2}
    world.add_worker("w0", permits, local=local, total=draw.choice([-1, 6]))
    for index in range(1, draw.randint(1, 3)):
        world.add_worker(f"w{index}", permits)
    world.lead()
    graphs = [random_graph(draw, f"flow{index}") for index in range(3)]
    if waits:
        graphs = [_with_sleeps(graph, seed + index) for index, graph in enumerate(graphs)]
        graphs = [_with_events(graph, seed + index) for index, graph in enumerate(graphs)]
    if waits and cached:
        graphs = [_with_cache(graph, seed + index) for index, graph in enumerate(graphs)]
    for _ in range(draw.randint(3, 15)):
        world.plan(draw.randrange(2 * SECOND), lambda: _submit(world, draw, graphs, waits=waits))
    for _ in range(draw.randint(0, 3)):
        world.plan(draw.randrange(3 * SECOND), lambda: _cancel(world, draw))
    for _ in range(draw.randint(0, 4)):
        world.plan(draw.randrange(4 * SECOND), lambda: _change_limit(world, draw))
    if draw.random() < 0.4:
        world.plan(draw.randrange(3 * SECOND), lambda: _kill_worker(world, draw))
    for _ in range(draw.choice([0, 0, 1, 2])):
        world.plan(draw.randrange(4 * SECOND), lambda: _change_leader(world, draw))
    world.plan(5 * SECOND, lambda: _calm(world))
    _disturb(world, clock_jumps=clock_jumps)
    _pause(world)
    if waits:
        _send(world)
        _set_mutex(world)
        _clear_cache(world)
    return world


def _disturb(world: SimWorld, *, clock_jumps: bool) -> None:
    """Workers stall, clocks are set: by a chance of its own, so that all else of a seed stays what it was."""
    draw = random.Random(world.seed + 1_000_003)  # noqa: S311
    for worker in world.workers.values():
        worker.proof = draw.choice(["none", "held"])
        if draw.random() < 0.2 and not worker.local:
            lasts = draw.choice([3, 12, 25]) * SECOND
            at, name = draw.randrange(3 * SECOND), worker.id
            world.plan(at, lambda name=name, lasts=lasts: world.stall_worker(name, lasts))
    if clock_jumps and draw.random() < 0.3:
        by = draw.choice([-30, -5, 30]) * SECOND
        world.plan(draw.randrange(4 * SECOND), lambda: world.jump_clock(by))


def _pause(world: SimWorld) -> None:
    """Flows and runs are paused and resumed: by a chance of its own, too."""
    draw = random.Random(world.seed + 2_000_003)  # noqa: S311
    for _ in range(draw.choice([0, 0, 1, 3])):
        at, lasts = draw.randrange(2 * SECOND), draw.randrange(3 * SECOND)
        flow, run = f"flow{draw.randrange(3)}", draw.randint(1, 6)
        if draw.random() < 0.5:
            world.plan(at, lambda flow=flow: world.set_rule("flow", flow, {"by": "sim"}))
            world.plan(at + lasts, lambda flow=flow: world.set_rule("flow", flow, None))
        else:
            world.plan(at, lambda run=run: world.set_rule("run", f"run-{run}", {"run": run}))
            world.plan(at + lasts, lambda run=run: world.set_rule("run", f"run-{run}", None))


def _set_mutex(world: SimWorld) -> None:
    """In some worlds runs of a tenant keep their place while they wait: by a chance of its own, too."""
    draw = random.Random(world.seed + 4_000_037)  # noqa: S311
    if draw.random() < 0.2:
        rule = {"key": "tenant", "value": "globex", "limit": 1, "counts_while_waiting": True}
        world.set_rule("tag", "tenant=globex", rule)
        if draw.random() < 0.3:
            off = {**rule, "counts_while_waiting": False}
            world.plan(
                draw.randrange(3 * SECOND), lambda: world.set_rule("tag", "tenant=globex", off)
            )


def _output(_row: TaskRow, _node: Node) -> bytes:
    return b"1"


def _submit(world: SimWorld, draw: random.Random, graphs: list[Graph], *, waits: bool) -> None:
    world.submit(
        draw.choice(graphs),
        consts=_CONSTS,
        tags={"tenant": draw.choice(TENANTS)},
        priority=draw.choice([0, 0, 0, 1, 5]),
        key=draw.choice([None, None, None, "same"]),
        deadline=draw.choice([None] * 9 + [SECOND]),
        delay=_delay(world) if waits else 0,
    )


def _delay(world: SimWorld) -> int:
    """By a chance of its own, so that all else of a seed stays what it was."""
    draw = random.Random(world.seed * 1_009 + len(world.model.runs))  # noqa: S311
    return draw.choice([0] * 9 + [SECOND // 2, 3 * SECOND])


def _cancel(world: SimWorld, draw: random.Random) -> None:
    if world.model.runs:
        world.cancel(draw.choice(list(world.model.runs)))


def _change_limit(world: SimWorld, draw: random.Random) -> None:
    pool = draw.choice(POOLS)
    kind = draw.random()
    if kind < 0.3:
        world.set_rule("pool", pool, {"limit": draw.randint(2, 6), "paused": True})
    elif kind < 0.8:
        world.set_rule("pool", pool, {"limit": draw.randint(2, 6)})
    else:
        world.set_rule("runs", "", {"limit": draw.choice([1, 3, -1])})


def _kill_worker(world: SimWorld, draw: random.Random) -> None:
    alive = [worker for worker in world.workers.values() if worker.alive]
    if alive:
        name = draw.choice(alive).id
        # By a chance of its own, as in `random_world`.
        drained = random.Random(world.seed).random() < 0.5  # noqa: S311
        (world.drain_worker if drained else world.kill_worker)(name)


def _change_leader(world: SimWorld, draw: random.Random) -> None:
    world.kill_leader()
    world.plan(draw.choice([0, 6 * SECOND]), world.lead)


def _calm(world: SimWorld) -> None:
    """What must end can end: pools are open, a worker is there, a leader too."""
    for pool in POOLS:
        world.set_rule("pool", pool, {"limit": 4})
    if not any(worker.alive and not worker.local for worker in world.workers.values()):
        world.add_worker("late", {"async": 10, "thread": 4, "process": 4})
    if world.scheduler is None:
        world.lead()


def violations(world: SimWorld, *, complete: bool = True) -> list[Violation]:
    """The checker's verdict on what happened in `world`."""
    history = History(
        events=world.model.events,
        graphs=world.model.graphs,
        rejections=[Rejection("max_active", *each) for each in world.rejections],
        complete=complete,
    )
    return check(history)


class GateScenario(NamedTuple):
    """A small world in which tasks wait at a gate of one kind."""

    node: Node
    rules: Mapping[tuple[str, str], object] = MappingProxyType({})
    runs: int = 1
    max_parallel: int | None = None
    permits: int = 100
    lifted: tuple[str, str] | None = None
    """A rule that is removed after a while."""

    def world(self, seed: int = 0) -> SimWorld:
        behaviour = Behaviour(duration=lambda _rng, _node: 10 * MILLISECOND)
        made = SimWorld(seed, behaviour)
        for (kind, name), rule in self.rules.items():
            made.set_rule(kind, name, rule)
        made.add_worker("w0", {"async": self.permits})
        made.lead()
        flow = Graph("flow", (self.node,), max_parallel=self.max_parallel)
        if (lifted := self.lifted) is not None:
            made.plan(200 * MILLISECOND, lambda: made.set_rule(*lifted, None))
        for _ in range(self.runs):
            made.submit(flow, consts=b"[[1,2,3,4,5]]", tags={"tenant": "acme"})
        return made


def _five(**options: Any) -> Node:
    return Node("a", "a", executor="async", over=Const(0), args=(Item(),), **options)


_ONE_SLOT = (PoolNeed("db", 1),)
_SLOW = {"count": 10, "per_us": SECOND, "burst": 1}

GATE_SCENARIOS: Final[dict[str, GateScenario]] = {
    "runs": GateScenario(_five(), {("runs", ""): {"limit": 1}}, runs=3),
    "tag": GateScenario(
        _five(), {("tag", "tenant=*"): {"key": "tenant", "per_value": True, "limit": 1}}, runs=3
    ),
    "run": GateScenario(_five(), max_parallel=2),
    "window": GateScenario(_five(window=2)),
    "pool": GateScenario(_five(pools=_ONE_SLOT), {("pool", "db"): {"limit": 2}}),
    "rate": GateScenario(_five(pools=_ONE_SLOT), {("pool", "db"): {"limit": 9, "rate": _SLOW}}),
    "worker": GateScenario(_five(), permits=2),
    "pause": GateScenario(_five(), {("flow", "flow"): {}}, lifted=("flow", "flow")),
}
"""By the gate's kind."""
