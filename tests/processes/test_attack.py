"""Half a minute of what `python -m tests.support.attack` does for as long as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_every_fault_at_random(store: str, tmp_path: Path):
    command = [sys.executable, "-m", "tests.support.attack", "--on", store, "--minutes", "0.5"]
    root = Path(__file__).parents[2]
    # In a process of its own: the attack sets the clock of its process.
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "attack")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
