"""How it stands with workers that were asked for, in words."""

from __future__ import annotations

from dataclasses import dataclass

from locktender.kernel.naming import counted


@dataclass(slots=True)
class Standing:
    """As of the last look."""

    there: int = 0
    """Those that count, are not on their way and have not been told to end."""
    lingering: int = 0
    """Those that were told to end and still count."""
    doubled: str = ""
    """Names that more than one worker has."""
    impossible: str = ""
    """What nobody can be started for."""
    blind: bool = False
    """It could not be seen who is there."""

    def words(self, most: int, waiting: int) -> str:
        """`waiting`: how many are on their way, of at most `most`."""
        of = f"of at most {counted(most, 'worker')}"
        if self.blind:
            return f"how many {of} are there cannot be seen"
        lingering = f"{self.lingering:,} told to end and not gone yet" if self.lingering else ""
        parts = (self._here(of, waiting), lingering, self.doubled, self.impossible)
        return "; ".join(filter(None, parts))

    def _here(self, of: str, waiting: int) -> str:
        if waiting:
            return f"{waiting:,} {of} {'is on its way' if waiting == 1 else 'are on their way'}"
        if not self.there:
            return f"none {of} is on its way"
        return f"{self.there:,} {of} {'is' if self.there == 1 else 'are'} there, none is on its way"
