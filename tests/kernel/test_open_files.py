"""The bound of open files: raised as far as it may be, never lowered, and given back to children."""

from __future__ import annotations

import resource

import pytest

from locktender.base import open_files

ALL = resource.RLIM_INFINITY


class Bounds:
    """Stands for the system: what it allows, and what was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        self.refuses = False
        monkeypatch.setattr(resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(resource, "setrlimit", self._set)
        monkeypatch.setattr(open_files, "_at_start", [])

    def _set(self, _: int, bounds: tuple[int, int]) -> None:
        if self.refuses:
            raise ValueError("not allowed to raise maximum limit")
        self.now = bounds


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1_024, 1_000_000, 65_536),
        (1_024, 4_096, 4_096),
        (1_024, ALL, 65_536),
        (100_000, 1_000_000, 100_000),
        (ALL, ALL, ALL),
        (64, 64, 64),
    ],
)
def test_it_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, then: int
):
    bounds = Bounds(monkeypatch, soft, hard)
    open_files.allow(65_536)
    assert bounds.now == (then, hard)
    assert open_files.bound() == (None if then == ALL else then)
    assert open_files.at_start() == (None if then == soft else soft)


def test_a_child_gets_the_bound_of_the_start(monkeypatch: pytest.MonkeyPatch):
    bounds = Bounds(monkeypatch, 1_024, ALL)
    open_files.allow(4_096)
    open_files.allow(65_536)
    open_files.give_back(open_files.at_start())
    assert bounds.now == (1_024, ALL)


def test_a_bound_that_the_system_refuses_to_raise_stays(monkeypatch: pytest.MonkeyPatch):
    bounds = Bounds(monkeypatch, 256, ALL)
    bounds.refuses = True
    open_files.allow(65_536)
    assert bounds.now == (256, ALL)
    assert open_files.at_start() is None
    open_files.give_back(None)
