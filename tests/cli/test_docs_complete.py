"""What the code has is documented: options, commands, settings, metrics, events and error codes."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
from tests.engine.test_public_signatures import PUBLIC
from tools.site import api, lists
from tools.site.columns import COLUMNS
from tools.site.docstrings import options

import locktender
from locktender.base.events import SUBJECTS
from locktender.base.settings_values import KEYS
from locktender.cli.error_codes import CODES, ERRORS, FAILURES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "locktender"
OPTIONAL = ("locktender.testing",)
"""Packages whose modules need what an installation may lack; no error class is there."""
THEIRS = {"args", "kwargs", "shared", "self", "cls", "fn"}
"""Arguments of the user's own function, and the function."""

ELSEWHERE = re.compile(
    r"same options|the options of\s+`@step`|as `pause` takes it|([Aa]s|those of) `submit|`submit_in"
)
"""A docstring that says where its options are described."""


def error_codes() -> dict[str, str]:
    """Code → a class that has it, of the whole package."""
    for each in walk_packages(locktender.__path__, "locktender."):
        if not each.name.startswith(OPTIONAL) and not each.name.endswith("__main__"):
            import_module(each.name)
    return {code: names[0] for code, names in lists.error_classes().items()}


def failure_types() -> dict[str, str]:
    """Type of a failure → the file that makes it: `Failure("capacity", …)`."""
    found: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        if {"simulate", "testing"} & set(path.parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Failure"):
                continue
            named = [each.value for each in node.keywords if each.arg == "type"]
            for value in [*node.args[:1], *named]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[value.value] = str(path.relative_to(ROOT))
    return found


def test_every_extra_of_the_package_is_described():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "reference" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(
        project["optional-dependencies"]
    )


def test_every_error_code_has_a_cause_and_a_fix():
    missing = {code: name for code, name in error_codes().items() if code not in ERRORS}
    assert missing == {}, "add it to src/locktender/cli/error_codes.py"
    assert [code for code in ERRORS if code not in error_codes()] == []


def test_every_failure_of_a_task_has_a_cause_and_a_fix():
    made = failure_types()
    missing = {code: path for code, path in made.items() if code not in CODES}
    assert missing == {}, "add it to src/locktender/cli/error_codes.py"
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    assert [code for code in FAILURES if text.count(f'"{code}"') < 2] == []


def test_every_setting_has_a_row_in_the_help_of_embedded():
    rows = options(locktender.embedded.__doc__ or "")
    given_otherwise = {"provision"}  # by a provisioner, to its workers
    assert [name for name in KEYS if name not in rows and name not in given_otherwise] == []
    page = lists.settings()
    assert [name for name in KEYS if f"| `{name}` |" not in page] == []


def test_every_metric_is_on_the_page_of_metrics_and_alerts():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    shown = {each.name for each in lists.metric_families()}
    missing = [name for name in sorted(shown) if not re.search(rf"`{name}(_total)?`", page)]
    assert missing == []
    made = (SOURCE / "observe" / "prometheus.py").read_text(encoding="utf-8")
    named = set(re.findall(r"\| `(locktender_\w+)`", page))
    assert [each for each in named if f'"{each.removesuffix("_total")}"' not in made] == []


def test_every_column_of_a_table_to_read_has_a_meaning():
    known = lists.table_columns()
    for name, meanings in COLUMNS.items():
        assert set(meanings) == {column for column, _, _ in known[name][1]}, name
    assert len(known) > len(COLUMNS) > 5


def test_every_command_and_option_says_what_it_does():
    for path, node in lists.command_tree().items():
        assert (node.help or "").strip(), path
        for each in node.params:
            if not getattr(each, "hidden", False):
                assert (each.help or "").strip(), f"{path}: {each.name}"


def test_every_subject_of_events_says_what_it_carries():
    assert [each for each in SUBJECTS if each not in lists.subject_data()] == []


@pytest.mark.parametrize(("name", "value"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_every_option_is_in_the_docstring(name: str, value: Any):
    if not inspect.isfunction(value):
        return
    doc = value.__doc__ or ""
    if name.rpartition(".")[2] in api.INTERNAL:
        return
    optional = [
        each.name
        for each in inspect.signature(value).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in THEIRS
    ]
    if ELSEWHERE.search(doc):
        return
    assert [each for each in optional if not re.search(rf"\b{each}\b", doc)] == []


def test_every_public_name_is_on_one_page_of_the_reference():
    text = "\n".join(page for _, page in api.pages())
    names = [*locktender.__all__, *import_module("locktender.testing").__all__]
    assert [name for name in names if text.count(f"\n## {name}\n") != 1] == []
    assert "**given" not in text
