"""`import locktender` is cheap, and every public name is there when it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import locktender

MAX_MODULES = 40
HEAVY = ["asyncio", "sqlite3", "msgspec", "typer", "rich", "inspect"]


def _fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_heavy():
    loaded = json.loads(_fresh("import locktender, sys, json; print(json.dumps([*sys.modules]))"))
    assert not set(HEAVY) & set(loaded)


def test_defining_flows_does_not_load_the_engine():
    code = "from locktender import flow, step; import sys, json; print(json.dumps([*sys.modules]))"
    loaded = json.loads(_fresh(code))
    assert not {"sqlite3", "typer", "rich", "locktender.engine"} & set(loaded)


def test_importing_the_package_loads_next_to_nothing():
    """How long it takes is the benchmark's; what takes long is to load many modules."""
    code = "import sys; before = {*sys.modules}; import locktender; print(*{*sys.modules} - before)"
    assert len(_fresh(code).split()) <= MAX_MODULES


@pytest.mark.parametrize("name", locktender.__all__)
def test_every_public_name_can_be_had(name: str):
    assert getattr(locktender, name) is not None
    assert name in dir(locktender)


def test_dir_lists_the_public_names_alone():
    assert dir(locktender) == locktender.__all__


def test_a_name_that_is_not_there_says_so():
    with pytest.raises(AttributeError, match="no attribute 'embeded'"):
        locktender.embeded  # noqa: B018


def test_public_names_are_sorted_and_have_one_home():
    assert sorted(locktender.__all__) == locktender.__all__
    assert set(locktender.__all__) == set(locktender._HOME_OF)  # pyright: ignore[reportPrivateUsage]
