"""docs/writing-flows.md as a newcomer uses it: every option is named, every link leads somewhere."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import locktender

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "writing-flows.md").read_text()


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
