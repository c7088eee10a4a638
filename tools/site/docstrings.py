"""Docstrings as Markdown: rows of options become a table, indented code becomes a block."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROW = re.compile(r"([^\s,]+(?:, [^\s,]+)*) {2,}(\S.*)")
DEFAULT = re.compile(r"(\S+) {2,}(\S.*)")


class Row(NamedTuple):
    """One line of options: `retries   attempts after the first one; default 0`."""

    names: tuple[str, ...]
    default: str | None
    text: str


def blocks(doc: str) -> Iterator[list[str]]:
    """Paragraphs; lines of a table of options stay together."""
    block: list[str] = []
    for line in inspect.cleandoc(doc).splitlines():
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def rows_of(block: list[str]) -> list[Row] | None:
    """The rows of a block that is a table of options, else None."""
    found = [ROW.fullmatch(line) for line in block]
    column = next((each.start(2) for each in found if each), 0)
    if block[0].startswith(" ") or not column:
        return None
    rows: list[Row] = []
    for line, row in zip(block, found, strict=True):
        if line.startswith(" "):
            rows[-1] = rows[-1]._replace(text=f"{rows[-1].text} {line.strip()}".strip())
            continue
        # The longest name of a table may end right before the column of texts.
        named, text = (row[1], row[2]) if row else (line[: column - 1], line[column:])
        if row is None and " " not in line:  # a name longer than the column: its text is below
            named, text = line, ""
        elif row is None and line[column - 1 : column] != " ":
            return None
        names = tuple(each.strip("* ") for each in named.split(","))
        default = DEFAULT.fullmatch(text)
        rows.append(Row(names, None, text) if default is None else Row(names, *default.groups()))
    return rows


def options(doc: str) -> dict[str, Row]:
    """Option → its row, of all tables in a docstring."""
    found = [rows for block in blocks(doc) if (rows := rows_of(block)) is not None]
    return {name: row for rows in found for row in rows for name in row.names}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def markdown(doc: str, kind: str = "python") -> str:
    """A docstring as Markdown."""
    parts: list[str] = []
    for block in blocks(doc):
        rows = rows_of(block)
        if rows is not None:
            has_default = any(row.default is not None for row in rows)
            head = ("option", "default", "meaning") if has_default else ("option", "meaning")
            lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
            for row in rows:
                names = ", ".join(f"`{name}`" for name in row.names)
                cells = [names, _cell(row.text)]
                if has_default:
                    cells.insert(1, "" if row.default is None else f"`{_cell(row.default)}`")
                lines.append(f"| {' | '.join(cells)} |")
            parts.append("\n".join(lines))
        elif all(line.startswith("    ") for line in block):
            code = textwrap.dedent("\n".join(block))
            if parts and parts[-1].endswith("```"):
                parts[-1] = f"{parts[-1].removesuffix('```')}\n{code}\n```"
            else:
                parts.append(f"```{kind}\n{code}\n```")
        else:
            parts.append("\n".join(line.strip() for line in block))
    return "\n\n".join(parts)


def field_texts(cls: type[Any]) -> dict[str, str]:
    """Attribute → the docstring below it, in the source of a class, as one line."""
    return {name: " ".join(text.split()) for name, text in field_docs(cls).items()}


def field_docs(cls: type[Any]) -> dict[str, str]:
    """The same as it is written."""
    source = inspect.getsourcefile(cls)
    if source is None:
        return {}
    tree = ast.parse(Path(source).read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.ClassDef) and node.name == cls.__name__):
            continue
        for line, below in zip(node.body, [*node.body[1:], None], strict=True):
            target = line.target if isinstance(line, ast.AnnAssign) else None
            if isinstance(line, ast.Assign):  # a member of an Enum
                target = line.targets[0]
            if isinstance(target, ast.Name):
                text = ""
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    text = inspect.cleandoc(str(below.value.value))
                found[target.id] = text
    return found
