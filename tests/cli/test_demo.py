"""`locktender demo`: every claim it makes is measured, and it exits 0 only if all of them held."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest
from tests.support.cli_harness import executable, locktender

from locktender.cli.demo_proof import DemoBody, peak, peak_of_pool, peak_of_window, peak_per_tenant

pytestmark = pytest.mark.timeout(300)  # many processes: on a busy machine each starts late


def test_the_demo_holds_and_says_how_long_it_took(tmp_path: Path) -> None:
    """On a quiet machine under 20 seconds: here what it takes of a processor is bounded, on any."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = executable("demo", "--keep", cwd=tmp_path, timeout=110, TMPDIR=str(tmp_path))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
    assert said.code == 0, said
    assert "Everything held" in said.out
    assert "SIGKILL" in said.out
    assert "refused" in said.out
    assert "Try next" in said.out
    assert max(len(line) for line in said.out.splitlines()) < 300, "padded to the width of a pipe"
    seconds = re.search(r"in ([\d.]+) s\.", said.out)
    assert seconds is not None
    rows = dict(
        re.findall(
            r"^(window of fetch|pool db|runs per tenant)\s+(.*yes)\s*$", said.out, re.MULTILINE
        )
    )
    for name, limit in (("window of fetch", 3), ("pool db", 2), ("runs per tenant", 1)):
        told, *peaks, held = rows[name].split()
        assert (int(told), held) == (limit, "yes")
        assert all(1 <= int(peak) <= limit for peak in peaks)
    # and what was kept can be looked into
    url = next(tmp_path.glob("locktender-demo-*")) / "locktender.db"
    audit = locktender("audit", "--json", "--url", str(url), cwd=tmp_path)
    assert audit.code == 0
    assert audit.data["violations"] == []


def body(step: str, run: str, start: int, end: int | None, tenant: str = "acme") -> DemoBody:
    return DemoBody(step, run, tenant, 1, 1, 1, start, end)


def test_overlap_is_measured_exactly() -> None:
    assert peak([]) == 0
    assert peak([(0, 10), (10, 20)]) == 1
    assert peak([(0, 10), (9, 20), (9, 11)]) == 3


def test_a_killed_body_ends_when_its_process_did() -> None:
    bodies = [body("save", "a", 0, None), body("save", "a", 51, 60)]
    assert peak_of_pool(bodies, "save", killed_at=50) == 1
    assert peak_of_pool(bodies, "save", killed_at=55) == 2


def test_windows_are_per_run_and_tenants_count_runs() -> None:
    bodies = [
        body("fetch", "a", 0, 10),
        body("fetch", "b", 5, 15, tenant="globex"),
        body("fetch", "a", 20, 30),
        body("fetch", "c", 12, 18),
    ]
    assert peak_of_window(bodies, "fetch", 0) == 1
    assert peak_per_tenant(bodies, 0) == 2  # run c lies between two bodies of run a
