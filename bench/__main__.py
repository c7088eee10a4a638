"""`make bench`: ours alone, in at most five minutes; each figure stands beside the recorded one of its kind.

    python -m bench [PART …] [--record]

`--record` (`make bench-record`) writes bench/record.json and docs/benchmarks.md, after each part. With no name the
parts of DAILY run; ON_DEMAND are longer. Peers: `make bench-peers`.

A missed target is printed and the exit code stays 0: machines are shared and noisy. The exit code is 1 where a
part failed, or where a figure with a target has no value.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from bench import (
    api,
    backlog,
    cluster,
    dispatch,
    elastic,
    engine,
    fleet_long,
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
from bench.measure import measure
from bench.report import Figure

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
    "fleet_long": fleet_long.run,
    "maps": maps.run,
    "sleepers": sleepers.run,
    "take_over": take_over.run,
    "ui": ui.run,
    "why": why.run,
}
PARTS = DAILY | ON_DEMAND


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--record", action="store_true", help="keep the figures")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return measure(PARTS, given.parts or list(DAILY), keep=given.record)


if __name__ == "__main__":
    sys.exit(main())
