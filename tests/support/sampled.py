"""A sample of all combinations; the rest is marked `long` and runs when asked for: `pytest -m long`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

STORES = ("sqlite", "postgres")


def on_stores(name: str, values: dict[str, Any], sample: set[tuple[str, str]]) -> Any:
    """Parametrizes a test with a store and with the values of `name`, by their ids."""
    ways = [
        pytest.param(
            store,
            values[each],
            id=f"{store}-{each}",
            marks=() if (store, each) in sample else pytest.mark.long,
        )
        for store, each in itertools.product(STORES, values)
    ]
    return pytest.mark.parametrize(("store", name), ways, indirect=["store"])


def one_store(name: str) -> Any:
    """For what no store decides: `make test` runs it on this one, `make test-long` on both.

    What a store must do by itself is in the conformance suite, which both pass.
    """
    other = next(each for each in STORES if each != name)
    ways = [name, pytest.param(other, marks=pytest.mark.long)]
    return pytest.mark.parametrize("store", ways, indirect=True)
