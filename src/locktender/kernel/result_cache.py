"""Results of steps that are kept: their keys, and what a leader has to look up, store and clear.

Results are rows; the kernel keeps none of them. A task whose result may be kept stands in no line until the leader
has looked its key up (`put_cached` in `kernel/waiting_runs.py`): found, the task is completed without an attempt;
else it goes to its gates. A lookup comes in the turn after the commit that requests the task: its row is there.

One leader decides on lookups, stores and clears, one after another, and what it reads is not older than its last
commit. So a hit never names a result that was cleared or replaced before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from locktender.base import codec
from locktender.base.changes import CachedResult
from locktender.base.commits import CacheClear
from locktender.base.errors import InvalidInput
from locktender.base.events import NO_RUN, Change
from locktender.base.graph import CacheRule
from locktender.base.ids import run_of
from locktender.kernel import render
from locktender.kernel.commit_builder import CommitBuilder
from locktender.kernel.entries import TaskEntry
from locktender.kernel.node_state import PLAIN
from locktender.kernel.render import RenderScope

MAX_LOOKUPS = 1_000
"""Keys that are read at a time."""
MAX_SPLIT = 64
"""Maps whose computed keys are kept apart; above this they are split again."""
_sorted = msgspec.json.Encoder(order="sorted").encode
_load = msgspec.json.Decoder().decode
_read_key = msgspec.json.Decoder(str).decode


class ResultCache:
    def __init__(self) -> None:
        self.wanted: dict[int, TaskEntry] = {}
        """Tasks whose key is to be looked up, in the order of their requests."""
        self._opened: dict[int, TaskEntry] = {}
        """Those of this cycle: their rows come with its commit."""
        self._made: dict[str, CachedResult] = {}
        """Results of this cycle that are to be stored."""
        self._cleared: list[CacheClear] = []
        self._split: dict[tuple[int, int, int], Sequence[bytes]] = {}

    # -- keys --------------------------------------------------------------------------------------

    def prepare(self, entry: TaskEntry, scope: RenderScope, item: bytes | None) -> None:
        """The key of a task whose result may be kept, and whether it is looked up."""
        rule = entry.spec.cache
        assert rule is not None  # noqa: S101
        run = entry.run
        # Looked up once, before its first offer. Who retries a run wants its steps to run.
        fresh = not (entry.attempt or entry.offers or run.row.generation)
        entry.unread = fresh and run.placed
        if rule.key is not None:
            told = self._computed(entry, rule.key, scope)
        else:
            # Of an item only what differs from the others is stored.
            plain = entry.idx == PLAIN and entry.input is not None
            call = entry.input if plain else render.call(entry.spec, scope, item)
            told = _arguments(rule, call or b"")
        parts = (
            *("1", entry.spec.step, entry.spec.signature),
            run.row.flow if rule.scope == "flow" else "",
            ",".join(rule.by),
        )
        digest = hashlib.sha256(_sorted(parts))
        digest.update(told)
        entry.cache_key = digest.hexdigest()

    def _computed(self, entry: TaskEntry, node: int, scope: RenderScope) -> bytes:
        """What the node before it has computed for it."""
        if entry.idx == PLAIN:
            return _key_of(scope.output(node))
        of = (entry.run.seq, entry.run.row.generation, node)
        if of not in self._split:
            if len(self._split) >= MAX_SPLIT:
                self._split.clear()
            self._split[of] = codec.split_list(scope.output(node))
        return _key_of(self._split[of][entry.idx])

    # -- lookups -----------------------------------------------------------------------------------

    def want(self, entry: TaskEntry) -> None:
        """It stands in no line until its key was looked up."""
        self._opened[entry.id] = entry

    def asked(self) -> list[TaskEntry]:
        """Tasks whose keys are to be read now. None while results are being cleared: they are read after that."""
        return [] if self._cleared else list(islice(self.wanted.values(), MAX_LOOKUPS))

    def unread(self) -> list[TaskEntry]:
        """All tasks whose keys were not looked up."""
        return [*self.wanted.values(), *self._opened.values()]

    # -- stores and clears -------------------------------------------------------------------------

    def keep(self, entry: TaskEntry, output: bytes, now: int) -> None:
        """An attempt has completed: its result is stored with the commit."""
        rule, key = entry.spec.cache, entry.cache_key
        if rule is None or key is None:
            return
        blob = codec.is_blob(output)
        self._made[key] = CachedResult(
            key,
            entry.spec.step,
            entry.run.row.flow,
            rule.scope,
            entry.id,
            now,
            now + rule.ttl_us,
            len(output) if blob is None else blob[1],
            output,
        )

    def clear(self, step: str | None, flow: str | None) -> None:
        self._cleared.append(CacheClear(step, flow))

    def end_cycle(self, builder: CommitBuilder) -> None:
        """The commit is complete: what is read behind it knows the tasks that it requests."""
        if self._opened:
            self.wanted |= self._opened
            self._opened = {}
        if self._cleared:
            # What ends in the same commit is not stored: it may have been made of what is to be forgotten.
            for step, flow in self._cleared:
                data = {"step": step, "flow": flow}
                builder.record(NO_RUN, Change("cache", 0, "", "cleared", 0, data))
            builder.commit.cache_cleared, self._cleared = self._cleared, []
            self._made.clear()
        for made in self._made.values():
            builder.commit.cache_stored.append(made)
            data = {"key": made.key, "step": made.step, "flow": made.flow}
            change = Change(
                "cache", made.task, "", "stored", 0, {**data, "expires_at": made.expires_at}
            )
            builder.record(run_of(made.task), change)
        self._made.clear()


def _key_of(value: bytes) -> bytes:
    if codec.is_error(value):
        error = codec.decode(value, codec.StepError)
        raise InvalidInput(f"its cache key could not be computed: {error}", field="cache_key")
    return _read_key(value).encode()


def _arguments(rule: CacheRule, call: bytes) -> bytes:
    """The arguments that tell calls apart, by parameter, in a form that does not depend on how they were given."""
    args, kwargs = codec.read_call(call)
    given: dict[str, bytes] = {name: raw.encode() for name, raw in rule.defaults.items()}
    for index, raw in enumerate(args):
        given[rule.names[index] if index < len(rule.names) else f"*{index}"] = raw
    given |= kwargs
    return _canonical({name: given[name] for name in rule.by} if rule.by else given)


def _canonical(given: Mapping[str, bytes]) -> bytes:
    return _sorted({name: _load(raw) for name, raw in given.items()})
