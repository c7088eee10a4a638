"""The SQLite store and an embedded run without the names that only Linux has, as on macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def test_an_embedded_run_needs_no_name_that_only_linux_has(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "portable_run.py"), str(tmp_path / "locktender.db")],
        env=os.environ | {"PYTHONPATH": str(SUPPORT / "without_linux")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr
