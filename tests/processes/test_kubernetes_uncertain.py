"""Kubernetes: creations whose outcome is not known, in part or late, and lists that are older than them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.test_provision_kubernetes import NAME, OTHER, becomes, made, states, until
from tests.support.fake_kubernetes import FakeCluster

from locktender.base.clock import SECOND, ManualClock
from locktender.base.config import Settings
from locktender.kernel.demand import Demand, Want
from locktender.provision import kube_api
from locktender.provision.controller import ProvisionController
from locktender.provision.kube_api import ApiError
from locktender.provision.kubernetes import KubernetesProvisioner
from locktender.provision.protocol import WrongAnswer
from locktender.store.protocol import Elect
from locktender.store.sqlite import SqliteStore

THIRD = "worker-3333333333"
SETTINGS = Settings(max_workers=3, start_timeout_us=600 * SECOND)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    found = FakeCluster(tmp_path)
    found.hold()  # no pod runs
    yield found
    found.end()
    assert found.unexpected == []


@pytest.fixture
async def jobs(cluster: FakeCluster) -> AsyncIterator[KubernetesProvisioner]:
    found = made(cluster, settings={"total_permits": 1})
    yield found
    await found.close()


class Leader:
    """A leader whose tasks lack workers, on virtual time."""

    def __init__(self, store: SqliteStore, clock: ManualClock, jobs: KubernetesProvisioner) -> None:
        self.store, self.clock = store, clock
        self.controller = ProvisionController(jobs, SETTINGS, clock=clock)

    async def sees(self, tasks: int, after: int = 0) -> set[str]:
        """One step of it; returns the names that count then."""
        self.clock.advance(after * SECOND)
        wants = (Want("async", (), "fetch", "s1", tasks),) if tasks else ()
        self.controller.observe(Demand(tasks, wants, 0), [], self.store, 1)
        await self.controller.settled()
        return {each.name for each in (await self.store.provisioned()).asked}


@pytest.fixture
async def leader(tmp_path: Path, jobs: KubernetesProvisioner) -> AsyncIterator[Leader]:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "locktender.db", clock)
    await store.open()
    assert (await store.elect(Elect("leader", 10_000 * SECOND))).term == 1
    found = Leader(store, clock, jobs)
    yield found
    await found.controller.close()
    await store.close()


async def called(cluster: FakeCluster, calls: int) -> None:
    async def look() -> bool:
        return cluster.waiting_calls >= calls

    await until(look, "a call that waits")


async def times_out(monkeypatch: pytest.MonkeyPatch, call: Any) -> Any:
    with monkeypatch.context() as short:
        short.setattr(kube_api, "REQUEST_SECONDS", 0.5)
        return await call


async def test_a_creation_that_timed_out_may_come_later(
    cluster: FakeCluster, jobs: KubernetesProvisioner, monkeypatch: pytest.MonkeyPatch
):
    cluster.creates = ["late"]
    with pytest.raises(WrongAnswer, match=r"in time.* may still come"):
        await times_out(monkeypatch, jobs.request(1, {}, "", [NAME]))
    assert await states(jobs) == {}

    cluster.late.set()
    await becomes(jobs, **{"0123456789": "starting"})
    assert await jobs.request(1, {}, "", [NAME]) == [NAME]  # 409, and it is the same
    assert list(cluster.jobs) == [NAME]


async def test_a_creation_without_an_answer_that_was_not_carried_out(
    cluster: FakeCluster, leader: Leader
):
    """Its name counts until `start_timeout`, and not longer; then another is requested."""
    cluster.creates = ["dropped"]
    [name] = await leader.sees(1)
    assert cluster.jobs == {}
    assert await leader.sees(1, after=300) == {name}
    [other] = await leader.sees(1, after=301) | await leader.sees(1, after=60)
    assert other != name
    assert list(cluster.jobs) == [other]


async def test_a_part_is_created_a_part_refused_and_a_part_not_known(
    cluster: FakeCluster, leader: Leader
):
    """Those that may come count, the refused do not; it is a failure, with a cool-down."""
    cluster.creates = ["made", "lost", "refused"]
    names = await leader.sees(3)
    assert names == set(cluster.jobs)
    assert len(names) == 2
    assert "may still come" in leader.controller.describe()
    assert await leader.sees(1, after=1) == names
    assert len(cluster.created) == 2

    assert len(await leader.sees(3, after=20)) == len(cluster.jobs) == 3


async def test_all_refused_but_one_that_is_not_known(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    cluster.creates = ["refused", "dropped", "refused"]
    with pytest.raises(WrongAnswer, match="may still come") as raised:
        await jobs.request(3, {}, "", [NAME, OTHER, THIRD])
    assert raised.value.may_come is not None
    assert len(raised.value.may_come) == 1


@pytest.mark.parametrize("status", [500, 504, 403])
async def test_a_job_that_exists_and_cannot_be_read_counts(
    cluster: FakeCluster, jobs: KubernetesProvisioner, status: int
):
    """409 says that an earlier try was carried out; that the read after it fails changes nothing."""
    cluster.creates = ["lost"]
    with pytest.raises(WrongAnswer):
        await jobs.request(1, {}, "", [NAME])
    cluster.reads = [status]
    with pytest.raises(WrongAnswer, match="exists and cannot be read"):
        await jobs.request(1, {}, "", [NAME])


async def test_a_job_deleted_after_a_409_does_not_count(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    cluster.creates = ["lost"]
    with pytest.raises(WrongAnswer):
        await jobs.request(1, {}, "", [NAME])
    cluster.reads = [404]
    with pytest.raises(ApiError, match="404"):
        await jobs.request(1, {}, "", [NAME])


async def test_a_creation_that_answers_503_and_was_carried_out(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    """It is repeated, and the answer to that is 409."""
    cluster.creates = ["made-503"]
    assert await jobs.request(1, {}, "", [NAME]) == [NAME]
    assert len(cluster.created) == 1


async def test_a_refused_repeat_says_nothing_of_the_first_try(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    cluster.answers += [
        (503, {"Retry-After": "0"}, "etcd leader changed"),
        (403, {}, "exceeded quota"),
    ]
    with pytest.raises(WrongAnswer, match=r"exceeded quota; the worker may still come"):
        await jobs.request(1, {}, "", [NAME])


async def test_a_list_that_began_before_the_creation_ends_no_worker(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    cluster.lists_late = True
    listing = asyncio.create_task(jobs.list())
    await called(cluster, 1)
    assert await jobs.request(1, {}, "", [NAME]) == [NAME]
    cluster.late.set()
    assert {each.name: each.state for each in await listing} == {NAME: "starting"}
    assert await states(jobs) == {NAME: "starting"}
    await jobs.release(NAME)
    await becomes(jobs, **{"0123456789": "ended"})


async def test_a_creation_that_is_answered_after_the_end_of_its_job(
    cluster: FakeCluster, jobs: KubernetesProvisioner
):
    assert await jobs.list() == []
    cluster.creates = ["told-late"]
    request = asyncio.create_task(jobs.request(1, {}, "", [NAME]))
    await becomes(jobs, **{"0123456789": "starting"})
    with cluster.lock:
        cluster._remove(NAME)
    await becomes(jobs, **{"0123456789": "ended"})
    cluster.late.set()
    assert await request == [NAME]
    assert await states(jobs) == {NAME: "ended"}


async def test_a_job_that_comes_after_it_was_given_up_is_released(
    cluster: FakeCluster, leader: Leader, monkeypatch: pytest.MonkeyPatch
):
    """It counts until it is gone: no other is requested in its place before."""
    cluster.creates = ["late", "made", "made"]
    names = await times_out(monkeypatch, leader.sees(3))
    assert len(names) == 3
    [late] = names - set(cluster.jobs)
    # Those that are listed and did not join are released; that one is not listed.
    cluster.creates = []
    await leader.sees(0, after=601)

    async def gone() -> bool:
        return cluster.jobs == {} and await leader.sees(0, after=1) == set()

    await until(gone, "all to be given up")
    assert len(await leader.sees(2, after=600)) == len(cluster.jobs) == 2
    cluster.late.set()

    async def came() -> bool:
        return late in {each["metadata"]["name"] for each in cluster.created}

    await until(came, "the late one")

    async def released() -> bool:
        assert len(await leader.sees(9, after=0)) <= 3
        return late not in cluster.jobs

    await until(released, "the late one to be released")
    assert ("DELETE", late) in {
        (method, path.rpartition("/")[2]) for method, path, _ in cluster.requests
    }
