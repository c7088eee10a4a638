"""Fair turns: which value of the fair key is served next."""

from __future__ import annotations

from locktender.base.limits import Fair

MAX_FAIR_CLOCKS = 65_536


class Turns:
    """Fair turns: each value of the fair key advances its own clock by 1 / weight per start.

    This is deficit round robin in sorted form: the value with the least clock is next. A value that
    comes back after a pause starts at the present, so that nobody saves turns up.
    """

    STEP = 1 << 20

    def __init__(self) -> None:
        self.fair: Fair | None = None
        self.clock: dict[str, int] = {}
        self.present: int = 0
        self._prune_at = MAX_FAIR_CLOCKS

    def set(self, fair: Fair | None) -> None:
        if fair != self.fair:
            self.fair = fair
            self.clock.clear()
            self.present = 0

    def of(self, value: str | None) -> int:
        if self.fair is None:
            return 0
        present = self.present
        if value is None:
            return present
        at = self.clock.get(value, 0)
        return max(present, at)

    def advance(self, value: str | None) -> None:
        if self.fair is None or value is None:
            return
        turn = self.of(value)
        # The present follows the smallest turn served, so an idle value rejoins here and not at 0.
        self.present = max(self.present, turn)
        self.clock[value] = turn + self.STEP // self.fair.weight(value)
        if len(self.clock) > self._prune_at:
            self.clock = {each: at for each, at in self.clock.items() if at > self.present}
            self._prune_at = max(MAX_FAIR_CLOCKS, 2 * len(self.clock))
