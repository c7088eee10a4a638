"""README.md as a newcomer uses it: the example pasted as it stands, the links followed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def links() -> list[str]:
    targets = re.findall(r"\]\(([^)#\s]+)", TEXT)
    return sorted({each for each in targets if "://" not in each})


def test_the_example_runs_as_shown(tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "build.py").write_text(blocks[0])
    done = subprocess.run(
        [sys.executable, "build.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[3, 3]"
    assert (tmp_path / ".locktender" / "locktender.db").exists()


@pytest.mark.parametrize("link", links())
def test_every_link_leads_somewhere(link: str):
    assert (ROOT / link).exists()


@pytest.mark.parametrize("page", ["README.md", "docs/deploy.md"])
def test_who_may_do_what_is_said_in_one_sentence(page: str):
    words = " ".join((ROOT / page).read_text().split())
    assert (
        "Every user and program that can open the store can read and change everything in it, of every tenant:"
        " tags and pools are limits, not permissions."
    ) in words
