"""For tests, ours and users': fixtures, overlap probe, conformance suite. Nothing but tests imports it.

For users: `pytest_plugins = ["locktender.testing.plugin"]` gives the fixtures `engine`,
`make_engine`, `engine_clock`, `overlap` and `assert_max_concurrent`; bodies record
themselves with `recording`. Each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from locktender.testing.fixtures import Engines, MaxConcurrent, VirtualClock, eventually
    from locktender.testing.history import HistoryViolated, check_history, load_history
    from locktender.testing.overlap import Overlap, recording
    from locktender.testing.processes import EngineProcess

_HOME_OF = {
    "VirtualClock": "fixtures",
    "EngineProcess": "processes",
    "Engines": "fixtures",
    "HistoryViolated": "history",
    "MaxConcurrent": "fixtures",
    "Overlap": "overlap",
    "check_history": "history",
    "eventually": "fixtures",
    "load_history": "history",
    "recording": "overlap",
}

__all__ = [
    "EngineProcess",
    "Engines",
    "HistoryViolated",
    "MaxConcurrent",
    "Overlap",
    "VirtualClock",
    "check_history",
    "eventually",
    "load_history",
    "recording",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'locktender.testing' has no attribute {name!r}")
    value: object = getattr(import_module(f"locktender.testing.{home}"), name)
    globals()[name] = value
    return value
