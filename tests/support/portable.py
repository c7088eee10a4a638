"""Tests of what only Linux has are skipped elsewhere, and under `make test-portable`, which removes it."""

from __future__ import annotations

import select

import pytest

LINUX = hasattr(select, "epoll")
"""False also where tests/support/without_linux has taken its names away."""


def only_linux(what: str) -> pytest.MarkDecorator:
    """Marks a test of something that no other system has: `what`."""
    return pytest.mark.skipif(not LINUX, reason=f"only Linux has {what}")
