"""Rules of the layout: no public class name twice in `src`, no small module with a single importer, no long one.
The names of tests are short.

A module under 60 lines that one other module imports belongs into that module,
unless `APART` says why it stands alone. A module has at most 450 lines, the name of a test at most 60 characters.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "locktender"
SMALL_LINES = 60
MAX_LINES = 450
MAX_CHARACTERS = 60
TEST = re.compile(r"\s*(?:async )?def (test_\w+)")
APART: dict[str, str] = {
    "locktender.kernel.named_runs": "lifecycle.py is about every run, this about those submitted by name",
    "locktender.kernel.upkeep": "what the passing of time leaves behind is no part of deciding",
}
"""Module → why it stands alone."""
EXEMPT = ("locktender.kernel.gates.", "locktender.server.ui.")
"""One module per kind of gate and per page of the UI, however small."""


def modules() -> dict[str, Path]:
    source = ROOT / "src"
    return {
        ".".join(path.relative_to(source).with_suffix("").parts): path
        for path in sorted((source / PACKAGE).rglob("*.py"))
    }


def imports(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def classes_twice(trees: dict[str, ast.Module]) -> Iterator[str]:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    for name, found in sorted(homes.items()):
        if len(found) > 1:
            yield f"class {name} stands in {' and '.join(found)}: give each a name of its own"


def small_and_alone(trees: dict[str, ast.Module], known: dict[str, Path]) -> Iterator[str]:
    importers: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for name in imports(tree, known):
            importers[name].add(module)
    for module, path in known.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if path.name in ("__init__.py", "__main__.py"):
            continue
        alone = lines < SMALL_LINES and len(importers[module] - {module}) == 1
        if alone and module not in APART and not module.startswith(EXEMPT):
            (importer,) = importers[module]
            yield f"{module} has {lines} lines and one importer: merge it into {importer}"
        if module in APART and not alone:
            yield f"{module} is listed in APART of tools/check_layout.py without need: remove it there"
    yield from (f"{name} of APART does not exist" for name in APART if name not in known)


def too_long(known: dict[str, Path]) -> Iterator[str]:
    for module, path in known.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            yield f"{module} has {lines} lines, {MAX_LINES} are the most: move what does not belong"


def long_names() -> Iterator[str]:
    conformance = ROOT / "src" / "locktender" / "testing"
    for path in sorted([*(ROOT / "tests").rglob("*.py"), *conformance.rglob("*.py")]):
        for line in path.read_text(encoding="utf-8").splitlines():
            found = TEST.match(line)
            if found is not None and len(found[1]) > MAX_CHARACTERS:
                where = path.relative_to(ROOT)
                yield f"{where}: {found[1]} has {len(found[1])} characters, {MAX_CHARACTERS} are the most"


def main() -> int:
    known = modules()
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in known.items()}
    wrong = [
        *classes_twice(trees),
        *small_and_alone(trees, known),
        *too_long(known),
        *long_names(),
    ]
    for said in wrong:
        print(said)
    print(f"{len(known)} modules, {len(wrong)} against the rules of the layout")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
