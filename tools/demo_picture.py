"""docs/demo.svg from what `locktender demo` prints now: `python tools/demo_picture.py`."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"
COLUMNS = 82
END = "Try next:"
"""What follows is advice, not part of the picture."""


def demo() -> str:
    """The demo's output with its colours."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "locktender", "demo"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return ran.stdout


def picture(ansi: str) -> str:
    shown = Text.from_ansi(ansi)
    end = shown.plain.find(END)
    shown = shown[:end] if end > 0 else shown
    shown.rstrip()
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(shown, soft_wrap=True)
    drawn = console.export_svg(title="locktender demo")
    # No fonts from the network: the page that shows the picture may not load any.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(demo()))
    print(f"wrote {PICTURE.name}")
