"""What a step's body may raise to say how it failed."""

from __future__ import annotations

from locktender.base.durations import Duration, microseconds


class Retry(Exception):
    """Try again, after `after` if given, else by the step's back-off. Counts against `retries`."""

    def __init__(self, message: str = "", after: Duration | None = None) -> None:
        super().__init__(message or "the step asked to be retried")
        self.after_us: int | None = (
            None if after is None else microseconds(after, "after", minimum=0)
        )


class Fatal(Exception):
    """Do not try again: another attempt cannot help."""
