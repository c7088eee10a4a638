"""docs/writing-flows.md as a newcomer uses it: every example is run, and the defaults it names are true."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import locktender

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "writing-flows.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_example_runs(number: int, tmp_path: Path):
    block = BLOCKS[number]
    is_test = "def test_" in block
    name = "test_example.py" if is_test else "example.py"
    (tmp_path / name).write_text(block)
    module = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []
    done = subprocess.run(
        [sys.executable, *module, name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if not is_test:
        expected = re.findall(r"^ *# prints: (.*)$", block, re.MULTILINE)
        assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("decorator", [locktender.step, locktender.flow])
def test_every_option_is_on_the_page(decorator: object):
    options = set(inspect.signature(decorator).parameters) - {"fn", "affinity"}  # type: ignore[arg-type]
    assert [each for each in sorted(options) if not re.search(rf"\b{each}\b", DOCS)] == []


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#\s]+)", DOCS))))
def test_every_link_leads_somewhere(link: str):
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize("anchor", sorted(set(re.findall(r"\]\(#([^)\s]+)\)", DOCS))))
def test_every_anchor_is_a_heading(anchor: str):
    headings = re.findall(r"^#+ (.*)$", DOCS, re.MULTILINE)
    assert anchor in {each.lower().replace(" ", "-") for each in headings}
