"""Blocks of code of a page of docs/, and the process that runs its programs: one per folder.

    python -m tests.support.doc_blocks < [{"name": "example.py", "folder": ..., "code": ...}]

Locktender is imported once; each block then runs in a fork, in a folder of its own.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<above>(?:<!--.*?-->\n)*)(?P<indent> *)```(?P<kind>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->")
FILE = re.compile(r"<!-- file: (\S+) -->")
RUN_BY = re.compile(r"^<!-- blocks are run by (\S+) -->$", re.MULTILINE)


class Block(NamedTuple):
    kind: str
    code: str
    line: int
    not_run: str
    """Why it is not run; empty: it is."""
    file: str
    """The file it is written to, for the commands of the page; empty: it is a program of its own."""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    for each in FENCE.finditer(text):
        reason, file = NOT_RUN.search(each["above"]), FILE.search(each["above"])
        line = text.count("\n", 0, each.start("indent")) + 1
        found.append(
            Block(
                each["kind"].strip(),
                each["code"],
                line,
                reason[1] if reason else "",
                file[1] if file else "",
            )
        )
    return found


def pages() -> list[Path]:
    """Every page that people read."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*sorted((ROOT / "docs").rglob("*.md")), *beside]


def main() -> int:
    import locktender
    import locktender.engine
    import locktender.store.sqlite.store

    for name in ("embedded", "flow", "step"):
        getattr(locktender, name)
    answers = [_ran(each) for each in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)
    return 0


def _ran(given: dict[str, Any]) -> dict[str, Any]:
    folder = Path(given["folder"])
    folder.mkdir(parents=True)
    (folder / given["name"]).write_text(given["code"], encoding="utf-8")
    child = os.fork()
    if child == 0:
        os._exit(_child(folder, given["name"]))
    _, status = os.waitpid(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "out": (folder / "stdout.txt").read_text(encoding="utf-8"),
        "err": (folder / "stderr.txt").read_text(encoding="utf-8"),
    }


def _child(folder: Path, name: str) -> int:
    os.chdir(folder)
    for number, file in ((1, "stdout.txt"), (2, "stderr.txt")):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.path[0] = str(folder)
    sys.argv = [name]
    try:
        if name.startswith("test_"):
            import pytest

            return int(pytest.main(["-q", "-p", "no:cacheprovider", "-c", os.devnull, name]))
        runpy.run_path(name, run_name="__main__")
    except BaseException:  # noqa: BLE001 — whatever a page raises is its answer
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
