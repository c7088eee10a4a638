"""What a decision costs: the scheduler alone, with every gate configured, and with a long queue ahead of it.

The first figure is the whole of a leader's judgement per task: an end is told,
the run is advanced, the gates decide, the next task is granted and both are
written into one commit. Nothing is stored and nothing is run.

The second is the kernel's side of a long queue: it holds one head per lane, so
1,000,000 queued runs of 10,000 tenants are 10,000 heads here, against 1,000.
The store's side is measured by `bench.backlog`.

    python -m bench.kernel
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable

from tests.support.worlds import graph, items, numbers, run_row, step

from bench.report import Figure
from locktender.base.changes import End
from locktender.base.graph import Graph, Item, PoolNeed
from locktender.base.limits import Fair, Limits, PoolRule, Rate, TagRule
from locktender.base.model import WorkerRow
from locktender.kernel.commit_builder import Cycle
from locktender.kernel.scheduler import Scheduler

START = 10**15
RUNS = 20
ITEMS = 1_000
ROUNDS = 7
CYCLES = 400
ENDS_PER_CYCLE = 20


def run() -> list[Figure]:
    return [per_task(), *long_queue()]


def _worker() -> WorkerRow:
    return WorkerRow("w", "bench", 1, "1", {"async": 400, "thread": 100}, total=450, claim=-1)


def _end(scheduler: Scheduler, cycle: Cycle, now: int) -> None:
    for entry in cycle.starts:
        scheduler.ended(End(entry.id, entry.token, "completed", b"1"), now, local=True)


# -- per decided task ------------------------------------------------------------------------------


def _all_gates() -> tuple[Limits, Graph]:
    never_blocks = Rate(count=1_000_000_000, per_us=1_000_000, burst=1_000_000)
    limits = Limits(
        max_concurrent_runs=RUNS,
        tags=(TagRule("tenant", per_value=True, limit=5),),
        pools={
            "db": PoolRule(300),
            "api": PoolRule(350, rate=never_blocks),
        },
        fair=Fair("tenant", {"t0": 3}),
    )
    pools = (PoolNeed("db"), PoolNeed("api"))
    flow = graph(
        items(args=(Item(),), window=25, pools=pools),
        max_parallel=30,
    )
    return limits, flow


def _decide_all() -> float:
    """Microseconds per task, over all tasks of all runs, from the second cycle on."""
    limits, flow = _all_gates()
    scheduler = Scheduler(limits, term=1, owner="bench")
    scheduler.graphs[flow.flow] = flow
    scheduler.put_worker(_worker(), local=True)
    for seq in range(1, RUNS + 1):
        tags = {"tenant": f"t{seq % 5}"}
        scheduler.put_head(run_row(seq, tags=tags, consts=numbers(ITEMS)))
    now = START
    # The first cycle expands the maps: all items are asked for, the first are granted.
    cycle = scheduler.cycle(now)
    decided = 0
    gc.collect()
    # Time of the processor, not of the wall: there is no waiting in the kernel, but there is on a shared machine.
    begun = time.process_time()
    while cycle.starts:
        now += 1_000
        _end(scheduler, cycle, now)
        decided += len(cycle.starts)
        cycle = scheduler.cycle(now)
    took = time.process_time() - begun
    if decided != RUNS * ITEMS:
        raise AssertionError(f"{decided} of {RUNS * ITEMS} tasks were decided")
    return took / decided * 1e6


def per_task() -> Figure:
    took = [_decide_all() for _ in range(ROUNDS)]
    median = statistics.median(took)
    return Figure(
        "one task decided, all gates configured",
        median,
        "µs",
        "<= 25",
        median <= 25,
        f"min {min(took):.1f}, max {max(took):.1f} over {ROUNDS} rounds of {RUNS * ITEMS:,} tasks",
    )


# -- a long queue ----------------------------------------------------------------------------------


def _cycles_with(tenants: int) -> Callable[[], float]:
    """A scheduler with one head per tenant; each call ends some runs, refills their lanes and decides."""
    limits = Limits(
        max_concurrent_runs=10 * ENDS_PER_CYCLE,
        tags=(TagRule("tenant", per_value=True, limit=1),),
    )
    scheduler = Scheduler(limits, term=1, owner="bench")
    scheduler.graphs["flow"] = graph(step())
    scheduler.put_worker(_worker(), local=True)
    seq = 0

    def arrive(tenant: str) -> None:
        nonlocal seq
        seq += 1
        scheduler.put_head(run_row(seq, tags={"tenant": tenant}))

    for number in range(tenants):
        arrive(f"t{number}")
    now = START
    running = list(scheduler.cycle(now).starts)

    def cycle() -> float:
        nonlocal now
        now += 1_000
        begun = time.process_time()
        for entry in running[:ENDS_PER_CYCLE]:
            scheduler.ended(End(entry.id, entry.token, "completed", b"1"), now, local=True)
            arrive(entry.run.row.tags["tenant"])
        del running[:ENDS_PER_CYCLE]
        running.extend(scheduler.cycle(now).starts)
        return time.process_time() - begun

    return cycle


def long_queue() -> list[Figure]:
    short, long = _cycles_with(1_000), _cycles_with(10_000)
    for _ in range(20):
        short(), long()
    gc.collect()
    few, many = [], []
    for _ in range(CYCLES):
        # In turns, so that whatever else the machine does hits both alike.
        few.append(short())
        many.append(long())
    before, after = statistics.median(few) * 1e6, statistics.median(many) * 1e6
    spread = statistics.quantiles(many, n=10)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Figure(
            "a cycle with 10,000 heads, against 1,000",
            after / before,
            "x",
            "<= 1.3",
            after / before <= 1.3,
            f"{after:,.0f} µs (p10 {spread[0] * 1e6:,.0f}, p90 {spread[-1] * 1e6:,.0f}) against {before:,.0f}",
        ),
        Figure("peak memory of the process", memory, "MB", "<= 512", memory <= 512),
    ]


if __name__ == "__main__":
    for figure in run():
        print(figure.line())
