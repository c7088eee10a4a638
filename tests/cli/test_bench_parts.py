"""`make bench` measures everything that can be measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURES = re.compile(r"^def (run|figures)\([^)]*\) -> list\[Figure\]:", re.MULTILINE)


def test_every_benchmark_is_a_part_of_the_whole():
    code = "from bench.__main__ import PARTS; print(*PARTS)"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = (ROOT / "bench").glob("*.py")
    modules = {file.stem for file in files if MEASURES.search(file.read_text())}
    assert modules == set(told.stdout.split())
