"""B14: settings are read from files, variables and overrides, and are validated together at start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.inherited import settings_above

from locktender.base.config import Settings, load
from locktender.base.errors import InvalidSettings
from locktender.base.limits import Fair, PoolRule, Rate, TagRule
from locktender.base.settings_values import KEYS

SECOND = 1_000_000


def write(directory: Path, text: str, name: str = "locktender.toml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def refused(*args: object, **kwargs: object) -> str:
    with pytest.raises(InvalidSettings) as caught:
        load(*args, **kwargs)  # pyright: ignore[reportArgumentType]
    return str(caught.value)


def test_defaults_are_those_of_the_design(tmp_path: Path):
    settings = load(tmp_path)

    assert settings == Settings()
    assert settings.sources == {}
    assert settings.url == ".locktender/locktender.db"
    assert settings.worker_lease_us == 10 * SECOND
    assert settings.heartbeat_us == 2 * SECOND
    assert (settings.leader_lease_us, settings.leader_renew_us) == (5 * SECOND, SECOND)
    assert (settings.offer_ttl_us, settings.poll_us) == (2 * SECOND, SECOND)
    assert (settings.async_permits, settings.thread_permits, settings.total_permits) == (
        1_000,
        8,
        -1,
    )
    assert settings.process_permits >= 1
    assert (settings.claim_batch, settings.memory_high) == (500, 0.8)
    assert settings.grace_us == 30 * SECOND
    assert settings.idle_exit_us is settings.max_lifetime_us is settings.max_tasks is None
    assert settings.dispatch_deadline_us == 4 * 3600 * SECOND
    assert settings.limits().max_active == 10_000
    assert settings.limits().max_concurrent_runs == 10


def test_every_key_fills_a_field_and_every_field_has_a_key():
    fields = {field.name for field in msgspec.structs.fields(Settings)} - {"sources"}

    assert {key.field for key in KEYS.values()} == fields


def test_each_source_overrides_the_one_before(tmp_path: Path):
    write(tmp_path, 'grace = "5s"\nheartbeat = "1s"\npoll = 0.5\n')

    settings = load(
        tmp_path,
        {"LOCKTENDER_HEARTBEAT": "1.5", "LOCKTENDER_POLL": "2s"},
        {"poll": "3s", "grace": None},
    )

    assert settings.grace_us == 5 * SECOND
    assert settings.heartbeat_us == 1_500_000
    assert settings.poll_us == 3 * SECOND
    assert settings.sources == {
        "grace": f"{tmp_path / 'locktender.toml'}: grace",
        "heartbeat": "LOCKTENDER_HEARTBEAT",
        "poll": "override poll",
    }


def test_the_nearest_file_upwards_is_used(tmp_path: Path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    write(tmp_path, "claim_batch = 1")
    write(tmp_path / "a", "[project]\nname = 'locktender-user'\n", "pyproject.toml")

    assert load(below).claim_batch == 1

    write(tmp_path / "a", "[tool.locktender]\nclaim_batch = 2\n", "pyproject.toml")
    settings = load(below)

    assert settings.claim_batch == 2
    assert settings.sources["claim_batch"].endswith("pyproject.toml: tool.locktender.claim_batch")


@pytest.mark.parametrize(
    "text",
    [
        "[tool.locktender]\nclaim_batch = 2",
        "[project]\nname = 'x'\n\n  [ tool . 'locktender' ]\nclaim_batch = 2",
        '["tool".locktender]\nclaim_batch = 2',
        "[tool]\nlocktender = {claim_batch = 2}",
        "[tool]\nlocktender.claim_batch = 2",
        "tool.locktender.claim_batch = 2",
        "tool = {other = {}, locktender = {claim_batch = 2}}",
    ],
)
def test_a_project_file_may_write_our_table_as_toml_allows(tmp_path: Path, text: str):
    write(tmp_path, text, "pyproject.toml")

    assert load(tmp_path).claim_batch == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
@pytest.mark.parametrize("name", ["locktender.toml", "pyproject.toml"])
def test_a_strangers_file_above_is_ignored_and_named(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    project = tmp_path / "project"
    project.mkdir()
    planted = tmp_path / name
    planted.write_text(("[tool.locktender]\n" if "py" in name else "") + "max_active = 5\n")
    os.chown(planted, 65_534, 65_534)
    assert load(project).max_active == 10_000
    assert str(planted) in caplog.text
    assert load(tmp_path).max_active == 5  # the folder it is started in is its own choice
    os.chown(project, 65_534, 65_534)  # as in a container: root works in a user's project
    assert load(project).max_active == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_strangers_pipe_or_huge_file_above_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    project = tmp_path / "project"
    project.mkdir()
    planted = tmp_path / "locktender.toml"
    os.mkfifo(planted)
    os.chown(planted, 65_534, 65_534)
    assert load(project).max_active == 10_000
    assert str(planted) in caplog.text
    planted.unlink()
    with planted.open("wb") as file:
        file.truncate(1 << 40)  # read whole, it would not fit into memory
    os.chown(planted, 65_534, 65_534)
    assert load(project).max_active == 10_000
    os.chown(planted, 0, 0)
    with pytest.raises(InvalidSettings, match="larger than 10 MB"):
        load(project)


def test_a_settings_file_that_is_no_file_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "locktender.toml")
    with pytest.raises(InvalidSettings, match="not a regular file"):
        load(tmp_path)


def test_paths_of_a_file_above_belong_to_its_directory(tmp_path: Path):
    below = tmp_path / "sub"
    below.mkdir()
    write(tmp_path, 'work_dir = "scratch"')

    settings = load(below)
    given = load(below, {"LOCKTENDER_URL": "mine.db"})
    remote = load(below, overrides={"url": "postgresql://h/db"})

    assert settings.url == str(tmp_path / ".locktender/locktender.db")
    assert settings.work_dir == str(tmp_path / "scratch")
    assert given.url == "mine.db"
    assert remote.url == "postgresql://h/db"


def test_two_files_in_one_directory_are_refused(tmp_path: Path):
    write(tmp_path, "poll = 1")
    write(tmp_path, "[tool.locktender]\npoll = 2\n", "pyproject.toml")

    message = refused(tmp_path)

    assert str(tmp_path / "locktender.toml") in message
    assert str(tmp_path / "pyproject.toml") in message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"worker_lease": "4s"}, ["worker_lease (4s)", "heartbeat (2s)"]),
        ({"worker_lease": "3s", "heartbeat": "1.5s"}, ["worker_lease (3s)", "heartbeat (1.5s)"]),
        ({"leader_lease": "2s"}, ["leader_lease (2s)", "leader_renew (1s)"]),
        ({"leader_renew": "10s"}, ["leader_lease (5s)", "leader_renew (10s)"]),
        ({"blob_over": "3MB"}, ["blob_over", "max_value"]),
        (
            {"labels": {"gpu": ["a100"]}, "worker_labels": {"gpx": "a100"}},
            ["gpx", "Did you mean 'gpu'?"],
        ),
        (
            {"labels": {"gpu": ["a100"]}, "worker_labels": {"gpu": "a10"}},
            ["gpu=a10", "Did you mean 'a100'?"],
        ),
    ],
)
def test_b14_contradictions_name_both_sides(
    tmp_path: Path, overrides: dict[str, object], words: list[str]
):
    message = refused(tmp_path, {}, overrides)

    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"start_timeout": "500ms", "leader_lease": "200ms", "leader_renew": "50ms"},
         ["start_timeout (500ms) must not be below poll (1s)"]),
        ({"start_timeout": "5s"},
         ["start_timeout (5s) must be more than leader_lease (5s)", "takes over", "above 5s"]),
        ({"leader_lease": "2m"},
         ["start_timeout (1m00s) must be more than leader_lease (2m00s)"]),
        ({"provisioned_idle_exit": "900ms"},
         ["provisioned_idle_exit (900ms) must not be below poll (1s)", "first task"]),
        ({"poll": "2m"}, ["start_timeout (1m00s)", "provisioned_idle_exit (1m00s)", "poll (2m00s)"]),
        ({"max_lifetime": "1s"}, ["max_lifetime (1s) must be more than poll (1s)"]),
        ({"dispatch_deadline": "5s"},
         ["dispatch_deadline (5s) must be more than provision_interval (5s)"]),
        ({"provision_interval": "5h"},
         ["dispatch_deadline (4h00m) must be more than provision_interval (5h00m)"]),
    ],
)  # fmt: skip
def test_b14_conflicting_provision_settings_name_both(
    tmp_path: Path, overrides: dict[str, object], words: list[str]
):
    message = refused(tmp_path, {}, {**overrides, "max_workers": 3})

    assert all(word in message for word in words), message
    # without a provisioner none of it matters
    assert load(tmp_path, {}, overrides).max_workers == 0


@pytest.mark.parametrize(
    "overrides",
    [
        {"start_timeout": "5.1s"},
        {"provisioned_idle_exit": "1s"},
        {"provision_interval": "1m", "provision_cooldown": "1s"},
        {"provisioned_idle_exit": "2s", "leader_lease": "20s"},
        {"provisioned_idle_exit": "2s", "worker_lease": "30s", "heartbeat": "5s"},
        {"start_timeout": "6s", "worker_lease": "30s"},
        {"max_lifetime": "none", "max_tasks": 1},
    ],
)
def test_b14_what_works_is_not_refused(tmp_path: Path, overrides: dict[str, object]):
    assert load(tmp_path, {}, {**overrides, "max_workers": 3}).max_workers == 3


def test_tables_may_be_given_as_text(tmp_path: Path):
    settings = load(tmp_path, {}, {"worker_labels": "gpu=a100,zone=eu", "pools": '{"db": 2}'})

    assert settings.worker_labels == {"gpu": "a100", "zone": "eu"}
    assert settings.pools == {"db": PoolRule(limit=2)}
    assert "worker_labels" in refused(tmp_path, {}, {"worker_labels": "gpu"})


def test_b14_all_contradictions_are_told_at_once(tmp_path: Path):
    message = refused(tmp_path, {}, {"worker_lease": "1s", "leader_lease": "1s"})

    assert "worker_lease" in message
    assert "leader_lease" in message


def test_b14_holds_for_settings_made_directly():
    with pytest.raises(InvalidSettings, match=r"worker_lease .1s. .* heartbeat .2s."):
        Settings(worker_lease_us=SECOND)
    with pytest.raises(InvalidSettings):
        msgspec.structs.replace(Settings(), heartbeat_us=9 * SECOND)


def test_unknown_keys_say_where_and_suggest(tmp_path: Path):
    write(tmp_path, "heartbeet = 1")
    message = refused(tmp_path)
    assert f"{tmp_path / 'locktender.toml'}: heartbeet" in message
    assert "Did you mean 'heartbeat'?" in message

    write(tmp_path, "[limits]\nmax_activ = 1")
    message = refused(tmp_path)
    assert "limits.max_activ" in message
    assert "'max_active'" in message

    write(tmp_path, "[limit]\nmax_active = 1")
    assert "'limits'" in refused(tmp_path)

    write(tmp_path, "[limits]\ngrace = 1")
    assert "Move it out of [limits]" in refused(tmp_path)

    write(tmp_path, "")
    message = refused(tmp_path, {"LOCKTENDER_THREAD_PERMIT": "3"})
    assert "LOCKTENDER_THREAD_PERMIT is not a setting" in message
    assert "'LOCKTENDER_THREAD_PERMITS'" in message
    assert "'LOCKTENDER_WORKER_LEASE'" in refused(tmp_path, {"LOCKTENDER_LEASE": "3"})

    message = refused(tmp_path, {}, {"pol": 3})
    assert "Did you mean 'poll'?" in message


def test_variables_of_others_and_empty_ones_are_left_alone(tmp_path: Path):
    environ = {"PATH": "x", "LOCKTENDER_TEST_POSTGRES": "dsn", "LOCKTENDER_GRACE": " "}

    assert load(tmp_path, environ) == Settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("async_permits", -2),
        ("thread_permits", -1),
        ("process_permits", -2),
        ("total_permits", 0),
        ("total_permits", -2),
        ("claim_batch", 0),
        ("claim_batch", True),
        ("claim_batch", 1.5),
        ("claim_batch", "three"),
        ("latency_threshold", -1),
        ("latency_threshold", "-5ms"),
        ("latency_threshold", 0),
        ("memory_high", -0.1),
        ("memory_high", 80),
        ("memory_high", True),
        ("memory_high", float("nan")),
        ("grace", -1),
        ("grace", "soon"),
        ("poll", 0),
        ("max_tasks", 0),
        ("max_active", 0),
        ("max_concurrent_runs", 0),
        ("max_concurrent_runs", -2),
        ("max_bypass", -1),
        ("max_starts_per_cycle", 0),
        ("placement", "random"),
        ("log_level", "loud"),
        ("strict_pools", "perhaps"),
        ("strict_pools", 1),
        ("url", ""),
        ("url", 5),
        ("work_dir", "a\0b"),
        ("blob_over", "many"),
        ("max_value", -1),
        ("pools", 4),
        ("pools", {"db": 0}),
        ("pools", {"db": {"limit": 1, "burst": 3}}),
        ("pools", {"db": {"limits": 1}}),
        ("pools", {"../db": 1}),
        ("pools", {"db": {"lease": "0s"}}),
        ("tags", {"tenant": {"per_valu": True}}),
        ("tags", {"tenant=acme": {"per_value": True}}),
        ("tags", {"tenant=*": {"per_value": False}}),
        ("tags", {"tenant=*": 1, "tenant": {"per_value": True, "limit": 2}}),
        ("tags", {"tenant": 0}),
        ("fair", {"key": "tenant", "weights": {"acme": 0}}),
        ("fair", {"keys": "tenant"}),
        ("labels", {"gpu/x": []}),
        ("worker_labels", {"gpu": 1.5}),
    ],
)
def test_a_bad_value_is_refused_with_its_key(tmp_path: Path, key: str, value: object):
    message = refused(tmp_path, {}, {key: value})

    assert message.startswith(key)
    assert not message.startswith(f"{key}: {key}")


def test_a_key_that_nobody_knows_is_named_as_it_was_written(tmp_path: Path):
    message = refused(tmp_path, {}, {"worker_lese": "5s"})

    assert message.startswith("worker_lese is not a setting.")
    assert "Did you mean 'worker_lease'?" in message


def test_none_unsets(tmp_path: Path):
    write(tmp_path, 'idle_exit = "5m"\nqueue_timeout = "1m"\nmax_tasks = 5\n')

    settings = load(tmp_path, {"LOCKTENDER_IDLE_EXIT": "none", "LOCKTENDER_MAX_TASKS": "none"})

    assert settings.idle_exit_us is None
    assert settings.max_tasks is None
    assert settings.queue_timeout_us == 60 * SECOND


def test_tables_of_a_file(tmp_path: Path):
    write(
        tmp_path,
        """
        worker_labels = {gpu = "a100"}
        [limits]
        max_concurrent_runs = -1
        max_active = 15
        fair = {key = "tenant", weights = {acme = 3}}
        age_boost = "1m"
        [limits.tags]
        team = 5
        "team=search" = {limit = 2, max_active = 9}
        tenant = {limit = 1, per_value = true}
        [pools]
        db = 4
        "api[*]" = {limit = 2, lease = "1m", rate = "100/1m", burst = 5}
        [labels]
        gpu = ["a100", "h100"]
        zone = "*"
        """,
    )

    settings = load(tmp_path)
    limits = settings.limits()

    assert (limits.max_concurrent_runs, limits.max_active) == (-1, 15)
    assert limits.fair == Fair("tenant", {"acme": 3})
    assert limits.age_boost_us == 60 * SECOND
    assert set(limits.tags) == {
        TagRule("team", limit=5),
        TagRule("team", "search", limit=2, max_active=9),
        TagRule("tenant", per_value=True, limit=1),
    }
    assert limits.pools == {
        "db": PoolRule(limit=4),
        "api[*]": PoolRule(limit=2, lease_us=60 * SECOND, rate=Rate(100, 60 * SECOND, 5)),
    }
    assert settings.labels == {"gpu": ("a100", "h100"), "zone": ()}
    assert settings.worker_labels == {"gpu": "a100"}
    assert settings.sources["pools.db"].endswith("locktender.toml: pools")


def test_a_key_twice_in_one_file_is_refused(tmp_path: Path):
    write(tmp_path, "max_active = 5\n[limits]\nmax_active = 6\n")

    assert "both have a value" in refused(tmp_path)


def test_tables_of_variables_are_merged_by_name(tmp_path: Path):
    write(tmp_path, "[pools]\ndb = 4\napi = 2\n")

    settings = load(
        tmp_path,
        {
            "LOCKTENDER_POOLS": "db=1,gpu=3",
            "LOCKTENDER_TAGS": "tenant=*=1,team=search=2",
            "LOCKTENDER_WORKER_LABELS": '{"zone": "eu"}',
            "LOCKTENDER_FAIR": "tenant",
            "LOCKTENDER_STRICT_POOLS": "yes",
            "LOCKTENDER_MEMORY_HIGH": "0.5",
        },
    )

    assert settings.pools == {
        "db": PoolRule(limit=1), "api": PoolRule(limit=2), "gpu": PoolRule(limit=3)
    }  # fmt: skip
    assert settings.sources["pools.db"] == "LOCKTENDER_POOLS"
    assert settings.sources["pools.api"].endswith("locktender.toml: pools")
    assert settings.tags == (
        TagRule("tenant", per_value=True, limit=1),
        TagRule("team", "search", limit=2),
    )
    assert settings.worker_labels == {"zone": "eu"}
    assert settings.fair == Fair("tenant")
    assert settings.strict_pools is True
    assert settings.memory_high == 0.5


@pytest.mark.parametrize("text", ["db", "{not json", "db=four"])
def test_a_bad_table_in_a_variable_names_the_variable(tmp_path: Path, text: str):
    assert "LOCKTENDER_POOLS" in refused(tmp_path, {"LOCKTENDER_POOLS": text})


@pytest.mark.parametrize("text", ["poll = ", "= 3", "[limits\n", "poll = 1\npoll = 2"])
def test_a_broken_file_is_named(tmp_path: Path, text: str):
    path = write(tmp_path, text)

    assert f"{path} is not valid TOML" in refused(tmp_path)


def test_a_file_that_is_no_file_is_named(tmp_path: Path):
    (tmp_path / "locktender.toml").mkdir()

    assert "locktender.toml cannot be read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("async_permits", -2, "or -1 for unlimited. Got -2. e.g. 100; 0 is unlimited too."),
        ("thread_permits", -1, "0: this worker runs no such steps."),
        ("total_permits", 0, "locktender workers drain"),
    ],
)
def test_what_a_worker_may_have_is_said_in_its_own_words(
    tmp_path: Path, key: str, value: int, says: str
):
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path, {}, {key: value})
    assert says in str(caught.value)
    assert "pause" not in str(caught.value)


def test_unlimited_permits_are_written_as_everywhere_else(tmp_path: Path):
    assert load(tmp_path, {}, {"async_permits": -1}).permits()["async"] == -1
    assert load(tmp_path, {"LOCKTENDER_ASYNC_PERMITS": "-1"}).permits()["async"] == -1


def test_permits_as_announced(tmp_path: Path):
    settings = load(tmp_path, {}, {"async_permits": 0, "thread_permits": 0, "process_permits": 2})

    assert settings.permits() == {"async": -1, "thread": 0, "process": 2}


def test_without_a_file_no_toml_parser_is_imported(tmp_path: Path):
    code = (
        "import sys; from locktender.base.config import load; load(sys.argv[1]);"
        "print('tomllib' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "text"),
    [("locktender.toml", ""), ("pyproject.toml", "[tool.locktender]\n")],
)
def test_settings_above_the_temporary_folder_are_found(tmp_path: Path, name: str, text: str):
    """Else they would apply to every command that a test runs."""
    folder = tmp_path / "not made yet" / "tmp"
    write(tmp_path, "[tool.other]\n", "pyproject.toml")
    assert settings_above(folder) is None
    path = write(tmp_path, text, name)
    assert str(path) in (settings_above(folder) or "")
    write(tmp_path, "grace =", "locktender.toml")
    assert "is not valid TOML" in (settings_above(folder) or "")
