"""What every contender is measured with: the same bodies, counts and definitions. Standard library only.

`steps`    no-op durable bodies a second.
`runs`     runs of one step each, a second.
`idle`     median milliseconds from a submission to the first line of the body, with nothing else going on.
`limit_N`  at most 10 bodies of N ms at a time: the wall clock over the ideal, count × N ms / 10.

Ours is measured from `submit` to `result`. A peer is measured at its best: its queue is filled before its
worker starts; `drain` counts from its first recorded end to its last, `whole` adds the time that filling took;
its limit counts from the first body's start to the last body's end. A peer that polls for work polls each 10 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LIMIT = 10
BATCH = 200
"""Of the bare loops, and of pgqueuer's second line."""
POLL_SECONDS = 0.01
"""Of every peer that polls for work: one rule for all. As shipped they poll each 0.1–1 s."""
PATIENCE_SECONDS = 20.0
"""After this long a measurement counts what has ended by then."""


@dataclass(frozen=True)
class Limited:
    milliseconds: int
    bodies: int

    @property
    def seconds(self) -> float:
        return self.milliseconds / 1000

    @property
    def key(self) -> str:
        return f"limit_{self.milliseconds}"


@dataclass(frozen=True)
class Workload:
    steps: int
    runs: int
    idle: int
    """How many submissions the median is of."""
    limits: tuple[Limited, ...]

    def scaled(self, by: float) -> Workload:
        """Fewer, for who needs longer."""
        return replace(
            self,
            steps=max(40, int(self.steps * by)),
            runs=max(20, int(self.runs * by)),
            limits=tuple(
                Limited(each.milliseconds, max(3 * LIMIT, int(each.bodies * max(by, 0.2))))
                for each in self.limits
            ),
        )


FULL = Workload(10_000, 10_000, 40, (Limited(1, 1_000), Limited(10, 500), Limited(100, 100)))
QUICK = Workload(1_000, 1_000, 8, (Limited(1, 200), Limited(10, 100), Limited(100, 30)))

MEASURES = {
    "steps_drain": "no-op steps/s, drain",
    "steps_whole": "no-op steps/s, submitted and done",
    "runs_drain": "single-step runs/s, drain",
    "runs_whole": "single-step runs/s, submitted and done",
    "idle": "idle submit → body, p50 ms",
    **{each.key: f"limit of {LIMIT}, {each.milliseconds} ms, wall ÷ ideal" for each in FULL.limits},
}
HIGHER_IS_BETTER = frozenset({"steps_drain", "steps_whole", "runs_drain", "runs_whole"})
