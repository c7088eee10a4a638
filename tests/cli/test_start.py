"""The command line starts quickly: a command's own modules are imported when it runs."""

from __future__ import annotations

import subprocess
import sys

LIGHT = ("locktender.base", "locktender.cli")


def test_the_program_imports_no_engine_until_a_command_needs_one():
    script = "import sys, locktender.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    loaded = [name for name in done.stdout.split() if name.startswith("locktender.")]

    assert [name for name in loaded if not name.startswith(LIGHT)] == []
    # Its steps would be announced by every worker.
    assert "locktender.cli.demo_flow" not in loaded
