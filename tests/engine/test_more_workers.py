"""What an engine passes to the workers that it starts, and what it accepts as a provisioner."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from locktender import Capacity, InvalidInput, Provisioned, Provisioner
from locktender.base.config import Settings, load
from locktender.client import more_workers as subject
from locktender.client.more_workers import MoreWorkers, made, more_workers, step_sources
from locktender.flows.definitions import StepDef

# -- where steps are -------------------------------------------------------------------------------


def body(x: int) -> int:
    return x


def a_step(
    module: str, file: Path | str, *, qualname: str = "body", name: str | None = None
) -> StepDef:
    step = StepDef(body, {} if name is None else {"name": name})
    step.module, step.file, step.qualname = module, str(file), qualname
    step.is_local = "<" in qualname
    stem = Path(file).stem if module == "__main__" else module
    step.name = name or f"{stem}:{qualname}"
    return step


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, file: Path | None, spec: str = "") -> None:
    module = ModuleType(name)
    module.__file__ = None if file is None else str(file)
    found: Any = SimpleNamespace(name=spec) if spec else None
    module.__spec__ = found
    monkeypatch.setitem(sys.modules, name, module)


def test_a_script_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script = tmp_path / "build.py"
    loaded(monkeypatch, "__main__", script)
    found = step_sources({"build:body": a_step("__main__", script)})
    assert found.words == (str(script),)
    assert found.steps == {"build:body"}
    assert found.roots == ()


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("shop", "shop.py"),
        ("shop.flows", "shop/flows.py"),
        ("shop", "shop/__init__.py"),
        ("shop.deep.flows", "shop/deep/flows.cpython-311-x86_64-linux-gnu.so"),
    ],
)
def test_a_module_is_named_by_import_and_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, file: str
):
    loaded(monkeypatch, module, tmp_path / file)
    found = step_sources({"one": a_step(module, tmp_path / file)})
    assert found.words == ("--app", module)
    assert found.roots == (str(tmp_path),)


def test_installed_modules_need_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    installed = Path(sys.prefix) / "lib" / "installed_flows.py"
    loaded(monkeypatch, "shop", tmp_path / "shop.py")
    loaded(monkeypatch, "installed_flows", installed)
    found = step_sources(
        {
            "one": a_step("shop", tmp_path / "shop.py"),
            "two": a_step("installed_flows", installed),
            "three": a_step("shop", tmp_path / "shop.py", qualname="other"),
        }
    )
    assert found.words == ("--app", "shop", "--app", "installed_flows")
    assert found.roots == ()


def test_what_no_other_process_can_load_is_left_out_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    loaded(monkeypatch, "__main__", tmp_path / "flows.py", spec="shop.flows")
    loaded(monkeypatch, "frozen_flows", None)
    loaded(monkeypatch, "elsewhere", tmp_path / "another_name.py")
    found = step_sources(
        {
            "typed": a_step("__main__", "<stdin>"),
            "local": a_step("shop", tmp_path / "shop.py", qualname="test.<locals>.body"),
            "frozen": a_step("frozen_flows", "frozen"),
            "gone": a_step("never_loaded", tmp_path / "never_loaded.py"),
            "moved": a_step("elsewhere", tmp_path / "another_name.py"),
            "by -m": a_step("__main__", tmp_path / "flows.py"),
        }
    )
    assert found.words == ()
    assert found.steps == set()
    said = [
        "at a prompt",
        "inside a function",
        "in no file",
        "in no file",
        "not where",
        "python -m",
    ]
    assert [word in why for word, why in zip(said, found.left_out.values(), strict=True)] == [
        True
    ] * 6


def test_a_module_run_with_m_is_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / "shop" / "flows.py"
    loaded(monkeypatch, "__main__", file, spec="shop.flows")
    found = step_sources({"mine": a_step("__main__", file, name="mine")})
    assert found.words == ("--app", "shop.flows")


# -- what a worker is told -------------------------------------------------------------------------


def command_of(more: MoreWorkers) -> list[str]:
    provisioner: Any = more._provisioner  # pyright: ignore[reportPrivateUsage]
    return provisioner._command


def test_a_worker_is_given_settings_but_not_limits(tmp_path: Path):
    settings = load(
        tmp_path,
        {"LOCKTENDER_CLAIM_BATCH": "7"},
        {
            "max_workers": 2,
            "total_permits": 1,
            "heartbeat": "1s",
            "latency_threshold": "none",
            "exit_when_stuck": True,
            "worker_labels": {"zone": "a=b,c"},
            "max_concurrent_runs": 3,
            "pools": {"db": 1},
            "url": "postgresql://me:hunter2@db/x",
        },
    )
    command = command_of(subject.local_workers(settings, ["flows.py"]))
    sets = {command[at + 1] for at, word in enumerate(command) if word == "--set"}
    assert sets == {
        "total_permits=1",
        "heartbeat=1000000us",
        "latency_threshold=none",
        "exit_when_stuck=true",
        'worker_labels={"zone":"a=b,c"}',
        "grace=30000000us",
        "idle_exit=60000000us",
    }
    # and what it is told it reads as it was meant
    told = dict(each.split("=", 1) for each in sets)
    assert load(tmp_path, {}, {"worker_labels": told["worker_labels"]}).worker_labels == {
        "zone": "a=b,c"
    }


def test_idle_exit_without_effect_is_refused(tmp_path: Path):
    settings = load(tmp_path, {}, {"max_workers": 2, "idle_exit": "5s"})
    with pytest.raises(InvalidInput, match=r"idle_exit .* provisioned_idle_exit"):
        subject.local_workers(settings, ["flows.py"])
    # in a file it is for workers started by hand
    by_file = load(tmp_path, {"LOCKTENDER_IDLE_EXIT": "5s"}, {"max_workers": 2})
    assert "idle_exit=60000000us" in command_of(subject.local_workers(by_file, ["flows.py"]))


# -- an engine in a program ------------------------------------------------------------------------


def test_without_a_maximum_nobody_is_started(tmp_path: Path):
    assert more_workers(load(tmp_path), None) is None


def none_here(monkeypatch: pytest.MonkeyPatch, steps: dict[str, StepDef]) -> None:
    monkeypatch.setattr(subject, "registry", SimpleNamespace(steps=steps))


def test_an_unusable_max_workers_argument_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    settings = load(tmp_path, {}, {"max_workers": 2})
    none_here(monkeypatch, {})
    with pytest.raises(InvalidInput, match="no step is defined yet"):
        more_workers(settings, None)
    none_here(monkeypatch, {"<stdin>:body": a_step("__main__", "<stdin>")})
    with pytest.raises(InvalidInput, match=r"<stdin>:body \(it was typed at a prompt") as caught:
        more_workers(settings, None)
    assert "Put them into a file" in str(caught.value)


def test_an_unusable_max_workers_of_settings_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    none_here(monkeypatch, {})
    settings = load(tmp_path, {"LOCKTENDER_MAX_WORKERS": "2"})
    with caplog.at_level(logging.WARNING):
        assert more_workers(settings, None) is None
    assert "LOCKTENDER_MAX_WORKERS" in caplog.text
    assert "no step is defined yet" in caplog.text


def test_a_worker_that_was_started_on_overflow_starts_no_others(tmp_path: Path):
    settings = load(tmp_path, {"LOCKTENDER_PROVISION": "engine-1"}, {"max_workers": 2})
    with pytest.raises(InvalidInput, match=r"itself a worker .*engine-1.*__main__"):
        more_workers(settings, None)


# -- a provisioner of one's own --------------------------------------------------------------------


class Own:
    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings
        self.closed = 0

    def capacity(self, needs: Mapping[str, str]) -> Capacity | None:
        return None

    async def request(
        self, n: int, needs: Mapping[str, str], reason: str, names: Sequence[str]
    ) -> list[str]:
        return []

    async def list(self) -> list[Provisioned]:
        return []

    async def release(self, name: str) -> None: ...

    async def close(self) -> None:
        self.closed += 1


class Plain(Own):
    def request(self, *_: object) -> list[str]:  # type: ignore[override]  # pyright: ignore
        return []


class Slow(Own):
    async def capacity(self, needs: Mapping[str, str]) -> Capacity | None:  # type: ignore[override]  # pyright: ignore
        return None


class Closing(Own):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def close(self) -> None:
        raise self._error


async def later(_: Settings) -> Provisioner:
    return Own()


def maker(settings: Settings) -> Provisioner:
    return Own(settings)


def nothing(_: Settings) -> None: ...


def of_nothing() -> Provisioner:
    return Own()


def test_a_provisioner_is_given_or_made_from_settings():
    settings, ready = Settings(max_workers=2), Own()
    assert made(ready, settings) is ready
    for each in (Own, maker):
        found: Any = made(each, settings)
        assert isinstance(found, Own)
        assert found.settings is settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "int is not a provisioner: it has no capacity, request, list, release, close"),
        ("machines:own", "str is not a provisioner"),
        (object, "object is not a provisioner: it must take the settings"),
        (of_nothing, "must take the settings"),
        (nothing, "NoneType is not a provisioner"),
        (later, "it must be made without async"),
        (SimpleNamespace(request=Own().request), "it has no capacity, list, release, close"),
        (Plain(), "Plain is not a provisioner: request must be async"),
        (Slow(), "capacity must not be async"),
    ],
)
def test_an_invalid_provisioner_is_refused_at_once(given: Any, words: str):
    with pytest.raises(InvalidInput) as caught:
        made(given, Settings(max_workers=2))
    assert words in caught.value.message


def test_a_provisioner_without_a_maximum_would_never_be_asked(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"how many .*max_workers=3.*locktender.toml"):
        more_workers(load(tmp_path), Own())
    assert more_workers(load(tmp_path, {}, {"max_workers": 1}), Own()) is not None


async def test_closing_is_bounded_and_never_raises(caplog: pytest.LogCaptureFixture):
    settings = Settings(max_workers=1)
    ready = Own()
    more = MoreWorkers(ready, settings)
    await more.close()
    await more.close()
    assert ready.closed == 1
    await MoreWorkers(Closing(RuntimeError("no route")), settings).close(0)
    assert "failed to close: no route" in caplog.text
