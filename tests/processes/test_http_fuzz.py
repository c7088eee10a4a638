"""Requests that nobody would think of, made from the OpenAPI document, against a real server: none breaks it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster
from tests.support.leases import KEPT

from locktender.testing import Overlap

pytestmark = pytest.mark.timeout(1_800)
pytest_plugins = ["locktender.testing.plugin", "locktender.testing.postgres"]
STEPS = Path(__file__).parent.parent / "steps" / "api_steps.py"
CONFIG = """
# What a schema cannot say (a cron line, a unit, a flow that exists) is refused with 422, 404 or 409.
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "412", "422", "429"]

# Sequences follow the links of the document; most begin with a flow that is not there.
[phases.stateful.generation]
max-examples = 80
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, overlap: Overlap) -> Iterator[Cluster]:
    """Its history is judged at the end, whatever the requests did."""
    is_postgres = request.param == "postgres"
    url = (
        request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "locktender.db")
    )
    made = Cluster(url, tmp_path, overlap, grace="5s", **KEPT)
    try:
        yield made
    except BaseException:
        made.end()
        raise
    made.close()


def fuzzed(cluster: Cluster, folder: Path, *options: str) -> None:
    server = cluster.server().ready()
    cluster.worker(STEPS).ready()
    (folder / "schemathesis.toml").write_text(CONFIG)
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "schemathesis"),
            "--config-file", "schemathesis.toml",
            "run", f"http://127.0.0.1:{server.said['port']}/api/v1/openapi.json",
            # a stream has no end that could be judged: tests/engine/test_http_events.py is about it
            "--exclude-path", "/api/v1/events",
            "--checks", "all", "--continue-on-failure", "--generation-database", "none",
            "--request-timeout", "100", "--warnings", "off", "--seed", "17", *options,
        ],
        cwd=folder, capture_output=True, text=True, timeout=1_700,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert server.returncode is None


def test_the_examples_of_the_document(cluster: Cluster, tmp_path: Path):
    fuzzed(cluster, tmp_path, "--phases", "examples")


@pytest.mark.long
def test_all_kinds_and_sequences_of_requests(cluster: Cluster, tmp_path: Path):
    fuzzed(cluster, tmp_path, "--phases", "examples,coverage,fuzzing,stateful", "-n", "25")
