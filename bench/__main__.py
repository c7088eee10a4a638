"""`make bench`: ours alone, in at most five minutes; each figure stands beside the recorded one of its kind.

    python -m bench [PART …] [--record]

`--record` (`make bench-record`) puts what was measured into bench/record.json and docs/benchmarks.md. With no name
the parts of DAILY run; ON_DEMAND are longer. Peers: `make bench-peers`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import (
    api,
    backlog,
    cluster,
    dispatch,
    elastic,
    engine,
    kernel,
    maps,
    postgres,
    sleepers,
    store,
    take_over,
    ui,
    waits,
    why,
    worker,
)
from bench.report import Figure, Record, put_between_markers

DAILY: dict[str, Callable[[], list[Figure]]] = {
    "kernel": kernel.run,
    "store": store.figures,
    "postgres": postgres.run,
    "engine": engine.run,
    "worker": worker.run,
    "cluster": cluster.run,
    "dispatch": dispatch.run,
    "waits": waits.run,
}
ON_DEMAND: dict[str, Callable[[], list[Figure]]] = {
    "backlog": backlog.run,
    "api": api.run,
    "elastic": elastic.run,
    "maps": maps.run,
    "sleepers": sleepers.run,
    "take_over": take_over.run,
    "ui": ui.run,
    "why": why.run,
}
PARTS = DAILY | ON_DEMAND
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--record", action="store_true", help="keep the figures")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    record = Record.read()
    missed, began = 0, time.monotonic()
    for name in given.parts or DAILY:
        print(f"\n{name}", flush=True)
        part_began = time.monotonic()
        figures = PARTS[name]()
        for figure in figures:
            print(figure.line(record.of(name, figure)), flush=True)
            missed += figure.met is False
        record.put(name, figures)
        print(f"     {time.monotonic() - part_began:.0f} s", flush=True)
    print(f"\n{missed} of the figures miss their target." if missed else "\nEvery target is met.")
    print(f"{time.monotonic() - began:.0f} s in all.")
    if given.record:
        record.write()
        about = f"Recorded {platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}.\n\n"
        put_between_markers(PAGE, "bench", about + record.markdown())
        print("Recorded in bench/record.json and docs/benchmarks.md.")
    # A benchmark tells; it does not fail a build: machines are shared and noisy.
    return 0


if __name__ == "__main__":
    sys.exit(main())
