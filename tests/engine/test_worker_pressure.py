"""D6, B1: pressure on a worker, the claim under it, and which changes are reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from locktender import step
from locktender.base.clock import MILLISECOND, SECOND
from locktender.base.config import Settings
from locktender.engine import Engine
from locktender.store.sqlite.store import SqliteStore
from locktender.worker.pressure import (
    LOG_EVERY_US,
    PUBLISH_EVERY_US,
    READ_EVERY_US,
    ClaimAsked,
    MemoryGauge,
    Pressure,
)

GB = 1 << 30
NONE = "9223372036854771712"


def machine(used: int = 4 * GB, total: int = 16 * GB) -> tuple[int, int]:
    return used, total


def write(root: Path, **files: str) -> None:
    """A file per keyword; `__` stands for a slash, `_dot_` for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def group(root: Path, path: str, limit: str, used: int, inactive: int = 0) -> None:
    """A control group of version 2."""
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\nactive_file 7\n")


def old_group(root: Path, path: str, limit: str, used: int, inactive: int = 0) -> None:
    folder = root / "sys/fs/cgroup/memory" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive}\n")


def share(root: Path) -> float:
    return MemoryGauge(root, machine).read()


# -- memory ----------------------------------------------------------------------------------------


def test_d6_memory_by_the_limit_of_the_control_group(tmp_path: Path):
    write(tmp_path, proc__self__cgroup="0::/app/worker")
    group(tmp_path, "app/worker", str(2 * GB), GB + GB // 2, inactive=GB // 2)

    assert share(tmp_path) == 0.5


def test_d6_a_group_above_may_be_nearer_to_its_limit(tmp_path: Path):
    write(tmp_path, proc__self__cgroup="0::/app/worker")
    group(tmp_path, "app/worker", str(2 * GB), GB)
    group(tmp_path, "app", str(4 * GB), 3 * GB)
    group(tmp_path, "", "max", 15 * GB)

    assert share(tmp_path) == 0.75


def test_d6_in_a_container_the_mount_is_our_own_group(tmp_path: Path):
    write(tmp_path, proc__self__cgroup="0::/../../kubepods/pod7")
    group(tmp_path, "", str(GB), GB // 4)

    assert share(tmp_path) == 0.25


def test_d6_memory_by_a_limit_of_version_1(tmp_path: Path):
    write(tmp_path, proc__self__cgroup="9:name=systemd:/\n4:cpu,memory:/docker/a1\n1:cpu:/\n0::/")
    old_group(tmp_path, "docker/a1", str(GB), GB // 2, inactive=GB // 4)
    old_group(tmp_path, "", NONE, 9 * GB)

    assert share(tmp_path) == 0.25


@pytest.mark.parametrize(
    "limit", ["max", NONE, str(17 * GB), "0", "nonsense", ""], ids=lambda each: each or "empty"
)
def test_d6_without_a_limit_the_machine_counts(tmp_path: Path, limit: str):
    write(tmp_path, proc__self__cgroup="0::/a")
    group(tmp_path, "a", limit, 1)

    assert share(tmp_path) == 0.25


def test_d6_no_control_groups_at_all(tmp_path: Path):
    assert share(tmp_path) == 0.25


def test_d6_a_limit_whose_use_cannot_be_read_does_not_count(tmp_path: Path):
    write(tmp_path, proc__self__cgroup="0::/a")
    write(tmp_path, sys__fs__cgroup__a__memory_dot_max=str(GB))

    assert share(tmp_path) == 0.25


@pytest.mark.parametrize(
    ("used", "inactive", "expected"), [(GB, 2 * GB, 0.0), (3 * GB, 0, 1.0), (GB, 0, 1.0)]
)
def test_d6_a_share_is_between_0_and_1(tmp_path: Path, used: int, inactive: int, expected: float):
    write(tmp_path, proc__self__cgroup="0::/a")
    group(tmp_path, "a", str(GB), used, inactive)

    assert share(tmp_path) == expected


def test_d6_memory_is_read_at_most_every_quarter_of_a_second(tmp_path: Path):
    readings: list[int] = []
    gauge = MemoryGauge(tmp_path, lambda: (readings.append(1) or len(readings), 10))

    seen = [gauge.share(now) for now in (0, 1, READ_EVERY_US - 1, READ_EVERY_US)]

    assert seen == [0.1, 0.1, 0.1, 0.2]


def test_d6_the_memory_of_this_machine():
    assert 0.0 < MemoryGauge().read() < 1.0


# -- pressure --------------------------------------------------------------------------------------


class PressureSignals:
    """A worker's pressure with a clock and a memory that a test moves."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.now = 10**9
        self.used = 10
        gauge = MemoryGauge(folder, lambda: (self.used, 100))
        given = {"async_permits": 100, "claim_batch": 50, **settings}
        self.settings = Settings(**given)  # pyright: ignore[reportArgumentType]
        self.pressure = Pressure(self.settings, self.now, gauge)

    def ask(self, after_us: int = SECOND, **in_flight: int) -> ClaimAsked:
        self.now += after_us
        kinds = {"async": self.settings.async_permits or -1}
        return self.pressure.claim(self.now, {"async": 0, **in_flight}, kinds)


def test_d6_a_calm_worker_asks_for_a_batch_and_hurries_nobody(tmp_path: Path):
    felt = PressureSignals(tmp_path)

    assert felt.ask() == ClaimAsked(50, 100, urgent=False)
    assert (felt.pressure.memory, felt.pressure.p99_us) == (0.1, 0)


def test_d6_memory_pressure_is_reported_at_start_and_end(tmp_path: Path):
    felt = PressureSignals(tmp_path)
    felt.ask()

    felt.used = 81
    assert felt.ask() == ClaimAsked(25, 25, urgent=True)
    felt.used = 79  # not yet well below
    assert felt.ask() == ClaimAsked(25, 25, urgent=False)
    felt.used = 70
    assert felt.ask() == ClaimAsked(50, 100, urgent=True)
    assert felt.ask() == ClaimAsked(50, 100, urgent=False)


def test_d6_latency_pressure_by_the_tasks_of_the_last_minute(tmp_path: Path):
    felt = PressureSignals(tmp_path, latency_threshold_us=100 * MILLISECOND)
    for _ in range(98):
        felt.pressure.finished(10 * MILLISECOND)
    assert not felt.ask().urgent

    for _ in range(2):
        felt.pressure.finished(200 * MILLISECOND)
    assert felt.ask() == ClaimAsked(35, 35, urgent=True)
    assert felt.pressure.p99_us == pytest.approx(200 * MILLISECOND, rel=0.02)

    assert felt.ask(60 * SECOND) == ClaimAsked(50, 100, urgent=True)
    assert felt.pressure.p99_us == 0


def test_d6_signals_combine(tmp_path: Path):
    felt = PressureSignals(tmp_path, latency_threshold_us=1)
    felt.pressure.finished(5_000)
    felt.used = 99

    assert felt.ask() == ClaimAsked(17, 17, urgent=True)


def test_b1_a_nearly_full_worker_reports_and_takes_nothing(tmp_path: Path):
    felt = PressureSignals(tmp_path)

    assert felt.ask(**{"async": 90}) == ClaimAsked(10, 100, urgent=False)
    assert felt.ask(**{"async": 91}) == ClaimAsked(0, 0, urgent=True)
    assert felt.ask(**{"async": 81}) == ClaimAsked(0, 0, urgent=False)
    assert felt.ask(**{"async": 80}) == ClaimAsked(20, 100, urgent=True)


def test_d4_a_beat_has_the_pressure_last_reported(tmp_path: Path):
    """A beat that says *full* unasked would not be taken back: the worker would stand idle until the next."""
    felt = PressureSignals(tmp_path)
    assert felt.ask(**{"async": 100}).urgent
    assert (felt.pressure.full, felt.pressure.standing) == (("async",), 0)
    assert felt.ask(MILLISECOND, **{"async": 0}).urgent

    # Full again, too soon to be told: whatever beat comes now, by the clock or late, must not tell it.
    assert not felt.ask(MILLISECOND, **{"async": 100}).urgent
    assert (felt.pressure.full, felt.pressure.standing) == ((), 100)
    # So that there is nothing to take back when it has emptied once more.
    assert not felt.ask(MILLISECOND, **{"async": 0}).urgent
    assert (felt.pressure.full, felt.pressure.standing) == ((), 100)


def test_d6_a_small_worker_that_fills_and_empties_tells_nobody(tmp_path: Path):
    felt = PressureSignals(tmp_path, async_permits=1)

    asked = [felt.ask(1, **{"async": n % 2}) for n in range(20)]

    assert {each.size for each in asked} == {0, 1}
    assert {each.standing for each in asked} == {1}
    assert not any(each.urgent for each in asked)


def test_d6_a_worker_that_swings_does_not_flood_the_store(tmp_path: Path):
    felt = PressureSignals(tmp_path)

    told = sum(felt.ask(MILLISECOND, **{"async": 95 if n % 2 else 50}).urgent for n in range(1_000))

    # that it sets in, ten times a second; that it lets go, at once after each
    assert told <= 2 * SECOND // PUBLISH_EVERY_US


def test_d6_what_could_not_be_told_yet_is_told_later(tmp_path: Path):
    felt = PressureSignals(tmp_path)
    assert felt.ask(**{"async": 95}).urgent
    assert felt.ask(
        1_000, **{"async": 50}
    ).urgent  # there is room again: nobody stands idle for this
    assert not felt.ask(1_000, **{"async": 95}).urgent

    assert felt.ask(PUBLISH_EVERY_US, **{"async": 95}) == ClaimAsked(0, 0, urgent=True)


def test_d6_unlimited_permits(tmp_path: Path):
    assert PressureSignals(tmp_path, async_permits=0).ask(**{"async": 9_999}) == ClaimAsked(
        50, 100, urgent=False
    )


def test_d6_the_bound_over_all_kinds_is_the_settings(tmp_path: Path):
    felt = PressureSignals(tmp_path, async_permits=0, total_permits=100)

    assert felt.ask(**{"async": 95}) == ClaimAsked(0, 0, urgent=True)


def test_d6_readings_are_taken_at_most_every_quarter_of_a_second(tmp_path: Path):
    felt = PressureSignals(tmp_path)
    felt.ask()
    felt.used = 99

    assert felt.ask(READ_EVERY_US - 1).size == 50
    assert felt.ask(1).size == 25


def test_d6_pressure_is_logged_once_per_change(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    felt = PressureSignals(tmp_path, latency_threshold_us=100 * MILLISECOND)
    felt.ask()
    felt.used = 85
    for _ in range(20):
        felt.ask()
    assert felt.pressure.pressed == {"memory": 0.8}
    felt.pressure.finished(SECOND)
    felt.ask(LOG_EVERY_US)
    assert felt.pressure.pressed == {"memory": 0.8, "latency": 0.1}
    felt.used = 10
    felt.ask(60 * SECOND)

    assert felt.pressure.pressed == {}
    first, second, last = [record.getMessage() for record in caplog.records]
    assert (
        first
        == "this worker is under pressure and uses 50 % of its permits: memory 85 % (over 80 %)"
    )
    assert "uses 35 % of its permits: memory 85 % (over 80 %), p99 of its tasks 1" in second
    assert last == "this worker uses all its permits again: the pressure has ended"


def test_d6_pressure_that_comes_and_goes_does_not_flood_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    felt = PressureSignals(tmp_path)

    for turn in range(200):
        felt.used = 90 if turn % 2 else 10
        felt.ask(READ_EVERY_US)

    assert 2 <= len(caplog.records) <= 1 + 200 * READ_EVERY_US // LOG_EVERY_US


@step
async def on_the_loop() -> None: ...


@step(executor="thread")
def in_a_thread() -> None: ...


@step(executor="process")
def in_a_process() -> None: ...


async def test_the_first_row_of_a_worker_has_true_figures(tmp_path: Path):
    """Permits that are free, not the size of its claim; and the memory in use."""
    store = SqliteStore(tmp_path / "locktender.db")
    await store.open()
    settings = Settings(
        work_dir=str(tmp_path / "work"), async_permits=70, thread_permits=8, process_permits=2
    )
    engine = Engine(store, settings, lead=False)
    await engine.start()
    try:
        [row] = await store.workers()
        assert (row.free, row.claim) == (80, 80)
        assert row.memory > 0
    finally:
        await engine.stop(0)
        await store.close()
