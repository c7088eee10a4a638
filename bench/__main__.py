"""`make bench`: every figure of docs/benchmarks.md, measured in one run on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench import (
    backlog,
    cluster,
    dispatch,
    engine,
    kernel,
    maps,
    postgres,
    store,
    take_over,
    worker,
)
from bench.report import Figure

PARTS: dict[str, Callable[[], list[Figure]]] = {
    "kernel": kernel.run,
    "store": store.figures,
    "backlog": backlog.run,
    "maps": maps.run,
    "engine": engine.run,
    "worker": worker.run,
    "postgres": postgres.run,
    "cluster": cluster.run,
    "dispatch": dispatch.run,
    "take_over": take_over.run,
}


def main(names: list[str]) -> int:
    missed = 0
    for name in names or list(PARTS):
        print(f"\n{name}", flush=True)
        for figure in PARTS[name]():
            print(figure.line(), flush=True)
            missed += figure.met is False
    print(f"\n{missed} of the figures miss their target." if missed else "\nEvery target is met.")
    # A benchmark tells; it does not fail a build: machines are shared and noisy.
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
