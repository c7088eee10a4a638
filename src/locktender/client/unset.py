"""The default of an argument for which None has a meaning of its own."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Unset(Enum):
    UNSET = "unset"

    def __repr__(self) -> str:
        return "unset"


UNSET: Final = Unset.UNSET
