"""Options of workers on Ray: labels as resources, what is refused; Ray is not imported before it is used."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from locktender.base.config import load
from locktender.base.errors import InvalidSettings
from locktender.provision import ray_workers
from locktender.provision.options import provisioner_of, store_hash
from locktender.provision.ray_workers import (
    RayFailed,
    RayWorkers,
    _Bridge,
    _BridgeProcess,
    actor_options,
    demand_of,
)

WORKERS = RayWorkers(sources=("flows.py",), actor={"resources": {"base": 1}})


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ({}, {"num_cpus": 1}),
        ({"gpu": "2"}, {"num_cpus": 1, "num_gpus": 2}),
        ({"gpu": "0.5"}, {"num_cpus": 1, "num_gpus": 0.5}),
        ({"gpu": "A100"}, {"num_cpus": 1, "num_gpus": 1, "accelerator_type": "A100"}),
        ({"cpu": "4"}, {"num_cpus": 4}),
        ({"spot": "1", "zone": "eu"}, {"num_cpus": 1, "resources": {"spot": 1, "zone:eu": 0.001}}),
    ],
)
def test_labels_are_resources_of_the_actor(needs: dict[str, str], expected: dict[str, Any]):
    found = actor_options(WORKERS, needs) or {}
    wanted = expected | {"resources": {"base": 1, **expected.get("resources", {})}}
    assert found == wanted
    assert demand_of(found)["CPU"] == expected["num_cpus"]


@pytest.mark.parametrize(
    "needs", [{"cpu": "many"}, {"gpu": "0"}, {"spot": "-1"}, {"gpu": "nan"}, {"disk": "inf"}]
)
def test_labels_that_no_actor_can_have(needs: dict[str, str]):
    assert actor_options(WORKERS, needs) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "sources"),
        ({"sources": []}, "sources is empty"),
        ({"sources": ["f.py"], "actor": {"name": "x"}}, "set by the provisioner"),
        ({"sources": ["f.py"], "worker_url": "postgresql://a:b@c/d"}, "must name where the url is"),
        ({"sources": ["f.py"], "adress": "x"}, "is not known"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str):
    settings = load(overrides={"provisioner": {"kind": "ray", **options}})
    with pytest.raises(InvalidSettings, match=says):
        provisioner_of(settings)


def test_each_store_has_a_namespace_of_its_own():
    def names(*urls: str) -> list[str]:
        return [store_hash(load(overrides={"url": url})) for url in urls]

    same = names(
        "postgresql://a:x@db/l",
        "postgresql://a:y@db/l",
        "postgresql://a:x@db/l?sslmode=require&pooled=true",
    )
    others = names(
        "postgresql://a:x@db/m",
        "postgresql://a:x@db/l?schema=two",
        "postgresql://a:x@db/l?schema=two&host=/run/other",
        "postgresql:///l?host=/run/one",
        "one.db",
        "two.db",
    )
    assert len(set(same)) == 1
    assert len({*same, *others}) == 1 + len(others)


@pytest.mark.parametrize("there", [True, False])
def test_ray_is_not_imported_and_told_how_to_install(there: bool):
    code = (
        "import sys\n"
        f"if not {there}: sys.modules['ray'] = None\n"
        "from locktender.base.config import load\n"
        "from locktender.provision.ray_workers import RayWorkers\n"
        "try: RayWorkers(sources=('f.py',))(load())\n"
        "except Exception as error: print(error, error.hint)\n"
        "assert sys.modules.get('ray') is None and 'ray._raylet' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "" if there else "pip install 'locktender[ray]'" in done.stdout


async def test_a_bridge_that_refused_is_reaped(monkeypatch: pytest.MonkeyPatch):
    """It is killed, and its end is waited for: else the loop may be closed before it."""
    begun: list[_BridgeProcess] = []

    class Noted(_BridgeProcess):
        def __init__(self) -> None:
            super().__init__()
            begun.append(self)

    answer = """import sys; sys.stdin.readline(); print('{"error": "no"}', flush=True); sys.stdin.read()"""
    monkeypatch.setattr(ray_workers, "BRIDGE", (sys.executable, "-c", answer))
    monkeypatch.setattr(ray_workers, "_BridgeProcess", Noted)
    monkeypatch.setattr(ray_workers, "REAP_SECONDS", 60.0)
    bridge = _Bridge({"address": "nowhere"}, timeout_seconds=60.0)
    with pytest.raises(RayFailed, match="failed to connect to the Ray cluster at nowhere: no"):
        await bridge.call("list")
    await bridge.end()
    assert [each.exited.is_set() for each in begun] == [True]
