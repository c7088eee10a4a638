"""Which locktender this is, as it was installed: the one place that says so."""

from __future__ import annotations

from functools import cache


@cache
def installed() -> str:
    """The version, read once per process."""
    # Only here: it takes longer to import than the rest of the client.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("locktender")
    except PackageNotFoundError:  # a folder of sources, not installed
        return "unknown"
