"""One part after the other: measured, printed beside its record, and recorded at once."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bench.report import ROOT, Figure, Record, put_between_markers

PAGE = ROOT / "docs" / "benchmarks.md"
Measure = Callable[[], list[Figure]]


def measure(parts: Mapping[str, Measure], names: Sequence[str], *, keep: bool) -> int:
    """Prints the figures beside the recorded ones. 1 where a part or a figure with a target failed."""
    record = Record.read()
    verdicts: Counter[str] = Counter()
    failed: list[str] = []
    began = time.monotonic()
    for name in names:
        print(f"\n{name}", flush=True)
        part_began = time.monotonic()
        try:
            figures = parts[name]()
        except Exception as error:  # noqa: BLE001 — the other parts are still measured, the exit code is 1
            traceback.print_exc()
            print(f"FAIL  {name} failed: {error}", flush=True)
            failed.append(name)
            continue
        for figure in figures:
            print(figure.line(record.of(name, figure)), flush=True)
            verdicts[figure.verdict] += 1
            if figure.verdict == "failed" and figure.target:
                failed.append(f"{name}: {figure.name}")
        record.put(name, figures)
        print(f"     {time.monotonic() - part_began:.0f} s", flush=True)
        # After each part: an interrupted run keeps the parts that it measured.
        if keep:
            save(record)
    print(
        f"\n{verdicts['missed']} figures miss their target, {verdicts['floor met']} meet only their floor."
    )
    print(f"{time.monotonic() - began:.0f} s in all.")
    if keep:
        print("Recorded in bench/record.json and docs/benchmarks.md.")
    for each in failed:
        print(f"failed: {each}")
    return 1 if failed else 0


def save(record: Record) -> None:
    record.write()
    about = f"Recorded on {platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}.\n\n"
    put_between_markers(PAGE, "bench", about + record.markdown())
