"""Texts of users where a terminal may show them: as text, never as a command to it."""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # turn the order of what follows
)


def without_controls(text: str) -> str:
    """Only what can be read, and the ends of lines."""
    return _CONTROLS.sub("", text)
