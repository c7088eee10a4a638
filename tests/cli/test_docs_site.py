"""`make docs`: the site is built, refuses broken links, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.support.doc_blocks import ROOT

pytestmark = pytest.mark.timeout(300)  # on a busy machine


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "tools.site.build", "--to", str(to)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return to


class Assets(HTMLParser):
    """What a page loads: scripts, styles, pictures, fonts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
        if tag in loads and given.get("rel") not in ("canonical", "next", "prev", "search"):
            self.found.append(given.get(loads[tag]) or "")


def test_nothing_is_loaded_from_elsewhere(site: Path):
    for page in (site / "html").rglob("*.html"):
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        assert [each for each in assets.found if "//" in each] == [], page
    for style in (site / "html" / "_static").rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//[^)]*", text) == [], style


def test_each_page_can_be_searched_copied_and_read_at_night(site: Path):
    page = (site / "html" / "writing-flows.html").read_text(encoding="utf-8")
    assert "copybutton.js" in page
    assert "hover: none" in (site / "html" / "_static" / "site.css").read_text(encoding="utf-8")
    assert 'href="_static/favicon.svg"' in page
    assert (site / "html" / "_static" / "favicon.svg").exists()
    assert 'data-theme="auto"' in page or "theme-toggle" in page
    assert (site / "html" / "search.html").exists()
    index = (site / "html" / "searchindex.js").read_text(encoding="utf-8")
    assert "admission_reject" in index


def test_each_page_has_a_markdown_twin_that_llms_txt_lists(site: Path):
    listed = (site / "html" / "llms.txt").read_text(encoding="utf-8")
    pages = [each.relative_to(site / "source") for each in (site / "source").rglob("*.md")]
    assert len(pages) > 50
    for page in pages:
        assert (site / "html" / page).exists(), page
        assert (site / "html" / page.with_suffix(".html")).exists(), page
        assert f"({page.as_posix()}): " in listed, page


def test_an_error_code_is_an_anchor(site: Path):
    page = (site / "html" / "reference" / "errors.html").read_text(encoding="utf-8")
    for code in ("admission_rejected", "worker_lost", "not_found"):
        assert f'id="{code.replace("_", "-")}"' in page, code


def test_a_broken_link_fails_the_build(tmp_path: Path):
    for name, text in (
        ("index.md", "# Home\n\n[gone](gone.md), [no such part](#part)\n"),
        ("conf.py", (ROOT / "tools" / "site" / "conf.py").read_text(encoding="utf-8")),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "--keep-going", "-q", "-b", "dummy"]
    done = subprocess.run(
        [*command, str(tmp_path), str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "gone.md" in done.stderr
    assert "part" in done.stderr
