"""A user's file that may change while an engine runs it.

Reloading is all or nothing: the file and the siblings it imports are run anew,
and only if all of that works do the new definitions take the place of the old
ones. Attempts that run go on with the code they started with.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from pathlib import Path
from types import ModuleType

from locktender.cli.load_flow import Target, flows_of, load_source
from locktender.flows.registry import registry

_OURS = str(Path(__file__).parent.parent.resolve())
Stamp = tuple[int, int]


class ReloadedFile:
    """A file (or module) under watch."""

    def __init__(self, target: Target) -> None:
        # A file changed twice within a second would be taken from its cached form.
        sys.dont_write_bytecode = True
        self._target = target
        before = set(sys.modules)
        self.module: ModuleType = load_source(target)
        self._folder = Path(self.module.__file__ or ".").resolve().parent
        self._names = self._own(before)
        self._stamps = self._look()

    @property
    def flows(self) -> list[str]:
        return sorted(flows_of(self.module))

    @property
    def uses_processes(self) -> bool:
        """Child processes keep the modules they have imported: new code needs new children."""
        return any(
            step.executor == "process" and step.module in self._names
            for step in registry.steps.values()
        )

    def changed(self) -> bool:
        """Whether a file has changed since this was last asked."""
        stamps = self._look()
        found, self._stamps = stamps != self._stamps, stamps
        return found

    def reload(self) -> None:
        """Runs the files anew. Raises what is wrong with them; then everything is as before."""
        modules = {name: sys.modules.pop(name) for name in self._names if name in sys.modules}
        steps, flows = dict(registry.steps), dict(registry.flows)
        for known in (registry.steps, registry.flows):
            for name in [name for name, each in known.items() if each.module in self._names]:
                del known[name]
        linecache.checkcache()
        importlib.invalidate_caches()
        before = set(sys.modules)
        try:
            module = load_source(self._target)
        except BaseException:
            for name in self._own(before):
                sys.modules.pop(name, None)
            sys.modules.update(modules)
            registry.steps.clear()
            registry.steps.update(steps)
            registry.flows.clear()
            registry.flows.update(flows)
            raise
        self.module = module
        self._names = self._own(before)
        self._stamps = self._look()

    def _own(self, before: set[str]) -> set[str]:
        """Modules that came with the file and live beside it."""
        return {
            name for name, module in list(sys.modules.items())
            if name not in before and self._is_own(module)
        } | {self.module.__name__}  # fmt: skip

    def _is_own(self, module: ModuleType) -> bool:
        file: str | None = getattr(module, "__file__", None)
        if file is None:
            return False
        path = Path(file).resolve()
        return (
            path.is_relative_to(self._folder)
            and not path.is_relative_to(_OURS)
            and "site-packages" not in path.parts
        )

    def _look(self) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}
        for name in self._names:
            file: str | None = getattr(sys.modules.get(name), "__file__", None)
            if file is not None:
                try:
                    stat = Path(file).stat()
                except OSError:  # an editor is about to put the new file in place
                    continue
                stamps[file] = (stat.st_mtime_ns, stat.st_size)
        return stamps
