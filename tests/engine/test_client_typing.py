"""The client keeps a flow's parameters and result visible to a strict type checker."""

import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "support" / "typed_client.py"


def test_a_strict_type_checker_sees_arguments_and_results():
    # given a file as users write it, with its expected mistakes marked
    # when pyright checks it
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(SAMPLE)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=SAMPLE.parents[2],
    )
    # then it finds the marked ones and no other
    assert done.returncode == 0, done.stdout + done.stderr
