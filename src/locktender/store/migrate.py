"""Migrations: numbered, forward, checksummed.

An engine that opens a store applies pending migrations, each in a transaction that also
records it, so two processes that start together apply each once. A client only creates
a store that does not exist: a newer one that migrated while it reads would lock older
engines out. A store that a newer locktender has migrated is refused, and so is one whose
applied migrations differ from this code's.

An unfinished copy is marked as a migration that no code knows, so every engine
refuses it, older ones included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from locktender.base.errors import NotFound, SchemaTooNew, StoreError

COPYING = 1_000_000
"""As a migration number: the store is an unfinished copy."""
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migrated(msgspec.Struct, frozen=True):
    """From which schema to which; 0: there was none."""

    before: int
    after: int


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_migrations(folder: Path) -> list[Migration]:
    """The migrations in `folder`, which must be numbered 1, 2, 3 …"""
    found: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None or int(match[1]) != len(found) + 1:
            raise ValueError(f"migration {path.name!r} should be number {len(found) + 1:04d}")
        found.append(Migration(int(match[1]), match[2], path.read_text(encoding="utf-8")))
    return found


def no_store(where: str, hint: str | None = None) -> NotFound:
    """`hint`: for a command that names the store in another way than by `--url`."""
    return NotFound(
        f"there is no store at {where} yet.",
        field="url",
        got=where,
        hint=hint or "locktender run FILE.py:flow makes one; --url names another.",
    )


def pending(
    known: Sequence[Migration], applied: Mapping[int, str], *, migrates: bool = True
) -> list[Migration]:
    """What of `known` is still to be applied, given the checksums of what was; refuses what does not fit.

    `migrates`: a store that exists may be changed.
    """
    newest = max(applied, default=0)
    if newest == COPYING:
        raise StoreError(
            "the store is a copy that was not finished.",
            field="schema",
            got="copying",
            hint="Repeat: locktender db copy FROM TO. It starts over.",
        )
    if newest > len(known):
        raise SchemaTooNew(
            f"the store has schema {newest}, this locktender knows up to {len(known)}.",
            field="schema",
            got=newest,
            hint="Upgrade locktender here, or open the store with the version that wrote it.",
        )
    for migration in known[:newest]:
        if applied.get(migration.number) != migration.checksum:
            raise StoreError(
                f"migration {migration.number:04d}_{migration.name} was applied to the store"
                " in a form that differs from this code's.",
                field="schema",
                got=applied.get(migration.number),
                hint="Open the store with the locktender that wrote it; migrations never change.",
            )
    if newest and newest < len(known) and not migrates:
        raise StoreError(
            f"the store has schema {newest}, this locktender needs {len(known)}.",
            field="schema",
            got=newest,
            hint="Upgrade its engines, which migrate it, or run: locktender db migrate.",
        )
    return list(known[newest:])
