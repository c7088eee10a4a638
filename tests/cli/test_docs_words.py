"""Pages can be read once: short sentences, and none of the phrases that had to be read twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.doc_blocks import ROOT, pages
from tools.site import api, lists

MAX_WORDS = 25
"""Of an average sentence."""
REFUSED = (
    "whoever", "who stands still", "what it has in hand", "a word that never arrived", "is not one.",
    "takes nothing behind it", "for whoever does", "are not recut", "nobody's patience", "simply", "obviously",
    "just works", "of course",
)  # fmt: skip


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def sentences(text: str) -> list[list[str]]:
    """Words of each sentence of the prose; a row of a table and an entry of a list end one, too."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^\|[-| :]*\|$", "", text, flags=re.MULTILINE)
    parts: list[str] = []
    for block in re.split(r"\n\s*\n|^(?=[#|]|\s*[-*] |\s*\d+\. )", text, flags=re.MULTILINE):
        lines = block.strip("#-* |").replace("|", ". ")
        parts += re.split(r"(?<=[.!?:;])\s+", " ".join(lines.split()))
    return [words for part in parts if len(words := part.split()) > 2]


@pytest.mark.parametrize("page", pages(), ids=name)
def test_an_average_sentence_is_short(page: Path):
    found = sentences(page.read_text(encoding="utf-8"))
    average = sum(map(len, found)) / max(1, len(found))
    assert average <= MAX_WORDS, max(found, key=len)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_no_phrase_has_to_be_read_twice(page: Path):
    text = " ".join(page.read_text(encoding="utf-8").lower().split())
    assert [phrase for phrase in REFUSED if phrase in text] == []


def test_pages_made_from_the_code_are_plain_too():
    made = {path: text for each in (lists, api) for path, text in each.pages()}
    assert len(made) > 10
    for path, text in made.items():
        found = sentences(text)
        assert sum(map(len, found)) / len(found) <= MAX_WORDS, path
        plain = " ".join(text.lower().split())
        assert [phrase for phrase in REFUSED if phrase in plain] == [], path


def test_long_sentences_are_counted():
    assert sentences("One two three four. Five six seven!\n\n| a b c | d |\n") == [
        ["One", "two", "three", "four."],
        ["Five", "six", "seven!"],
        ["a", "b", "c", "."],
    ]


def test_the_architecture_page_is_read_in_ten_minutes():
    words = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split()
    assert len(words) <= 1_200
