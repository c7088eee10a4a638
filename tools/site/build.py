"""Builds the site: python -m tools.site.build [--serve PORT]. The pages are in .docs/html then.

1. Copies docs/, CHANGELOG, CONTRIBUTING and SECURITY to .docs/source, with links that fit there.
2. Writes the reference pages from the code.
3. Runs Sphinx; each warning, a broken link for example, fails the build.
4. Puts the Markdown of each page beside its HTML, and writes llms.txt.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sphinx.cmd.build import main as sphinx
from tools.site import api, lists

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages that stand beside docs/ in the repository."""
ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>\n+', re.MULTILINE)
"""A place in a page that is no heading, as GitHub knows it."""
FOLDERS = {
    "learn": "Learn",
    "do": "Do",
    "coming-from": "Coming from",
    ".": "Guides",
    "reference": "Look up",
    "understand": "Understand",
    "design": "Design",
    "project": "Project",
}
"""In the order of llms.txt, with its headings."""
MAX_ABOUT = 240
_LINES = re.DOTALL | re.MULTILINE
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def build(to: Path) -> Path:
    """The folder with the HTML."""
    source, html = to / "source", to / "html"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT / "docs", source)
    shutil.copy(Path(__file__).with_name("conf.py"), source / "conf.py")
    shutil.copytree(Path(__file__).with_name("static"), source / "_static")
    for name in PROJECT:
        (source / "project").mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source / "project" / name.lower())
    (source / "project" / "examples.md").write_text(_examples(), encoding="utf-8")
    for path, text in (*api.pages(), *lists.pages()):
        (source / "reference" / path).write_text(text, encoding="utf-8")
    _list_the_rest(source)
    for page in sorted(source.rglob("*.md")):
        page.write_text(_relinked(page, source), encoding="utf-8")
    # Two processes at most: the machines that build this have two cores.
    options = ["-W", "-n", "--keep-going", "-q", "-j", "2", "-d", str(to / "doctrees")]
    if sphinx([*options, "-b", "html", str(source), str(html)]):
        raise SystemExit("the site has warnings: see above")
    _twins(source, html)
    return html


def _list_the_rest(source: Path) -> None:
    """Pages that no list of contents names: those of design/ stand with the others, the rest in the guides."""
    named = {"index"}
    for page in source.rglob("*.md"):
        for listed in re.findall(r"```{toctree}\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for line in listed.splitlines():
                if line and not line.startswith(":"):
                    titled = re.search(r"<(.+)>$", line.strip())
                    at = os.path.normpath(page.parent / (titled[1] if titled else line.strip()))
                    named.add(str(Path(at).relative_to(source)))
    pages = [each.relative_to(source).with_suffix("") for each in sorted(source.rglob("*.md"))]
    rest = [each for each in pages if str(each) not in named]
    for list_ in ("understand/index", "guides"):
        page = source / f"{list_}.md"
        design = list_ != "guides"
        lines = [
            os.path.relpath(source / each, page.parent)
            for each in rest
            if (each.parts[0] == "design") is design
        ]
        text = page.read_text(encoding="utf-8").rstrip().removesuffix("```").rstrip()
        page.write_text("\n".join([text, *lines, "```", ""]), encoding="utf-8")


def _relinked(page: Path, source: Path) -> str:
    """The text of a page with links into the repository led to their copies in the site."""
    place = page.relative_to(source)
    # Where the page stands in the repository: what its relative links start from.
    home = ROOT if place.parts[0] == "project" else (ROOT / "docs" / place).parent

    def led(found: re.Match[str]) -> str:
        target = found[2]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        meant = Path(os.path.normpath(home / target))
        if meant.is_relative_to(ROOT / "docs"):
            copy = source / meant.relative_to(ROOT / "docs")
        elif meant.name in PROJECT and meant.parent == ROOT:
            copy = source / "project" / meant.name.lower()
        elif meant == ROOT / "README.md":
            copy = source / "index.md"
        elif meant == ROOT / "examples" or meant.parent == ROOT / "examples":
            copy = source / "project" / "examples.md"
        elif meant.is_file():  # another file of the repository: a download
            copy = source / "project" / "files" / meant.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(meant, copy)
        else:
            return found[0]
        if copy.is_dir():
            copy /= "index.md"
        if copy.suffix == ".md" and copy.exists() and found[3]:
            text = copy.read_text(encoding="utf-8")
            label = f"({copy.stem}-{found[3][1:]})="
            if f'<a id="{found[3][1:]}"></a>' in text or label in text:
                return f"{found[1]}#{label[1:-2]}{found[4]}"
        return f"{found[1]}{os.path.relpath(copy, page.parent)}{found[3] or ''}{found[4]}"

    text = ANCHOR.sub(rf"({page.stem}-\1)=\n\n", page.read_text(encoding="utf-8"))
    return LINK.sub(led, text)


def _examples() -> str:
    parts = ["# Examples", "Small programs that run as they stand: `python FILE`."]
    for path in sorted((ROOT / "examples").rglob("*.py")):
        name = path.relative_to(ROOT / "examples")
        parts += [f"## {name}", f"```python\n{path.read_text(encoding='utf-8')}```"]
    return "\n\n".join(parts) + "\n"


def _twins(source: Path, html: Path) -> None:
    """`page.md` beside `page.html`, and llms.txt: the list of them, with what each is about."""
    lines = [
        "# Locktender",
        "",
        "> Durable workflows in plain Python whose limits are exact, on a SQLite file or PostgreSQL.",
    ]
    folder = ""
    for page in _ordered(source):
        place = page.relative_to(source)
        twin = html / place
        twin.parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text(encoding="utf-8")
        twin.write_text(_twin(text), encoding="utf-8")
        if str(place.parent) != folder or len(lines) == 3:
            folder = str(place.parent)
            lines += ["", f"## {FOLDERS.get(folder, folder)}", ""]
        title, about = _about(text)
        lines.append(f"- [{title}]({place.as_posix()}): {about}")
    (html / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _twin(text: str) -> str:
    """A page without what only the site's generator reads."""
    text = re.sub(r"^<!--.*?-->\n|^```{toctree}\n.*?^```\n|^:::.*?\n", "", text, flags=_LINES)
    text = re.sub(
        r"^```{image} (\S+)\n:alt: ([^\n]*)\n.*?^```\n", r"![\2](\1)\n", text, flags=_LINES
    )
    return text.rstrip() + "\n"


def _ordered(source: Path) -> Iterator[Path]:
    order = tuple(FOLDERS)
    pages = sorted(source.rglob("*.md"))
    yield from sorted(
        pages,
        key=lambda each: (
            order.index(str(each.parent.relative_to(source)))
            if str(each.parent.relative_to(source)) in order
            else len(order),
            each.name != "index.md",
            each,
        ),
    )


def _about(text: str) -> tuple[str, str]:
    """Title and first sentence."""
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    prose = re.sub(r"```.*?```|<!--.*?-->|^[#|!:(].*?$", "", text, flags=_LINES)
    words = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose).split())
    sentence = re.split(r"(?<=[.?]) ", words, maxsplit=1)[0]
    if len(sentence) > MAX_ABOUT:
        sentence = sentence[:MAX_ABOUT].rpartition(" ")[0] + " …"
    return title[1] if title else "", sentence


def serve(folder: Path, port: int) -> None:
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / ".docs")
    parser.add_argument("--serve", type=int, metavar="PORT")
    given = parser.parse_args()
    html = build(given.to)
    print(f"{html}/index.html")
    if given.serve is not None:
        serve(html, given.serve)
    return 0


if __name__ == "__main__":
    sys.exit(main())
