"""A cluster of real processes, once on a SQLite file and once on PostgreSQL; its history is judged at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster

from locktender.testing.overlap import Overlap

STORES = ("sqlite", "postgres")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store_url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A test for one of them alone says `@pytest.mark.parametrize("store", ["postgres"], indirect=True)`."""
    if store == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return str(tmp_path / "locktender.db")


@pytest.fixture
def cluster(store_url: str, tmp_path: Path, overlap: Overlap) -> Iterator[Cluster]:
    made = Cluster(store_url, tmp_path, overlap, grace="5s")
    try:
        yield made
    except BaseException:
        made.end()
        raise
    made.close()
