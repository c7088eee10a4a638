"""Advance: a graph and its finished tasks give what is ready, what is skipped and how the run ends.

Derived from rows and idempotent: `RunGraph` rebuilt over the rows of a run
asks for exactly what is still missing, so a new leader may repeat a half-done
cycle. It knows nothing of gates: what it requests, the ledger admits.

A node is *waiting* until everything it needs has ended, then *active* until
its tasks have, then ok, failed or skipped. Skipped has two kinds: by a
condition (nothing is wrong) and because something it needs failed (*tainted*).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from locktender.base import codec
from locktender.base.errors import LocktenderError
from locktender.base.graph import Graph
from locktender.base.ids import MAX_TASKS_PER_RUN
from locktender.base.model import Failure
from locktender.base.states import TaskState
from locktender.kernel import render
from locktender.kernel.node_state import (
    NOTHING,
    PLAIN,
    SLICE,
    TAINTED,
    Advance,
    Existing,
    NodeState,
    Phase,
    Skipped,
    TaskRequest,
    check_size,
    cleans_up,
    failure_before,
    passed_on,
    passes_on,
    run_through,
    source_of,
    whole_needs,
    why_not,
)
from locktender.kernel.render import NULL, RenderScope


class RunGraph:
    """One run on its way through its graph."""

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, bytes],
        consts: Sequence[bytes],
        tags: Mapping[str, str],
    ) -> None:
        self.graph = graph
        self.scope: RenderScope = RenderScope(params, consts, tags, self._output)
        self.steps: list[NodeState] = [
            NodeState(index, node) for index, node in enumerate(graph.nodes)
        ]
        self.failure: Failure | None = None
        self.stopping: bool = False
        self.failing: bool = False
        self.forced: bool = False
        self._open = len(self.steps)
        self._ordinals = 0
        self._existing: dict[tuple[int, int], Existing] = {}
        self._work: list[int] = []
        """A heap: of what becomes ready together, what the flow calls first is requested first."""
        self._out = Advance()
        for step in self.steps:
            step.source = source_of(step.node, graph.nodes)
            step.whole = whole_needs(step.node, step.source)
            for needed in sorted(step.whole):
                step.waits += 1
                self.steps[needed].dependents.append(step.index)
            if step.source is not None:
                step.waits += 1
                self.steps[step.source].followers.append(step.index)

    # -- what happens ------------------------------------------------------------------------------

    def begin(
        self, existing: Sequence[Existing] = (), *, stopping: bool = False, failing: bool = False
    ) -> Advance:
        """Start, or pick up from rows that are already there (of a run that is being ended: as `stop`)."""
        return run_through(self.beginning(existing, stopping=stopping, failing=failing))

    def beginning(
        self, existing: Sequence[Existing] = (), *, stopping: bool = False, failing: bool = False
    ) -> Generator[None, None, Advance]:
        """`begin` with a break after so many rows and after each node."""
        self.stopping, self.failing = stopping, failing
        for number, row in enumerate(existing, 1):
            if not number % SLICE:
                yield
            self._existing[row.node, row.idx] = row
            self._ordinals = max(self._ordinals, row.ordinal + 1)
            step = self.steps[row.node]
            if row.again:
                step.again.append(row)
                if row.idx == PLAIN and step.mapped:
                    continue  # The row of a map that was skipped whole has no place among its items.
            else:
                step.had_rows = True
            step.base = row.ordinal - max(row.idx, 0)
            step.total = max(step.total, row.idx + 1)
        for step in self.steps:
            if step.base >= 0 and step.source is not None:
                # It may have rows for a few items only: the rest of its block stays its own.
                self._ordinals = max(self._ordinals, step.base + self._root(step).total)
        for step in self.steps:
            if step.waits == 0:
                heappush(self._work, step.index)
        while self._work:
            self._start_next()
            yield
        return self._settle()

    def _root(self, step: NodeState) -> NodeState:
        while step.source is not None:
            step = self.steps[step.source]
        return step

    def completed(self, node: int, idx: int, output: bytes | None) -> Advance:
        self._item_ended(self.steps[node], idx, NULL if output is None else output)
        return self._settle()

    def failed(self, node: int, idx: int, failure: Failure) -> Advance:
        """A task failed, timed out or was lost for good."""
        self._item_failed(self.steps[node], idx, failure)
        return self._settle()

    def dropped(self, node: int, idx: int) -> Advance:
        """A task ended without having had its chance: cancelled, or skipped while it waited."""
        self._item_dropped(self.steps[node], idx)
        return self._settle()

    def stop(self, *, force: bool = False, failing: bool = False) -> Advance:
        """The run is being ended: nothing new starts but clean-up, and not even that by force.

        `failing`: because it failed, so that what runs after a failure is clean-up, too.
        """
        self.stopping, self.failing = True, failing
        self.forced = self.forced or force
        for step in self.steps:
            # What waits is skipped when its turn comes: a clean-up behind it must not start while
            # something that both follow still runs.
            follows = step.mapped and step.phase is Phase.ACTIVE and step.source is not None
            if follows and not self._may_clean_up(step):
                self._close(step)
        return self._settle()

    @property
    def finished(self) -> bool:
        return self._open == 0

    def verdict(self) -> tuple[bool, bytes | None, Failure | None]:
        """(succeeded, result, failure) of a finished run."""
        failure = self.failure
        if failure is None:
            failure = next(
                (step.failure for step in self.steps if step.phase is Phase.FAILED), None
            )
        if failure is not None:
            return False, None, failure
        if self.graph.result is None:
            return True, NULL, None
        try:
            return True, render.render(self.graph.result, self.scope), None
        except (LocktenderError, LookupError, ValueError) as error:
            return False, None, Failure("result", f"the flow's result cannot be made: {error}")

    # -- nodes -------------------------------------------------------------------------------------

    def _settle(self) -> Advance:
        while self._work:
            self._start_next()
        if self._out.nothing:
            return NOTHING
        out, self._out = self._out, Advance()
        return out

    def _start_next(self) -> None:
        step = self.steps[heappop(self._work)]
        if step.phase is Phase.WAITING and step.waits == 0:
            self._start(step)

    def _start(self, step: NodeState) -> None:
        row = self._existing.get((step.index, PLAIN)) if self._existing else None
        if row is not None and row.state == TaskState.SKIPPED and not row.again:
            tainted = row.error is not None and _failure(row.error).type == TAINTED
            self._skip(step, "", tainted=tainted)
            return
        if self.stopping and not step.had_rows and not self._may_clean_up(step):
            self._skip_after_source(step, "the run is ending", tainted=True)
            return
        verdict = why_not(step, self.steps)
        if verdict is not None:
            reason, tainted = verdict
            self._skip_after_source(step, reason, tainted=tainted)
            return
        what = "condition"
        try:
            if step.node.when is not None and not render.holds(step.node.when, self.scope):
                self._skip_after_source(step, "its condition is false", tainted=False)
                return
            what = "input"
            step.phase = Phase.ACTIVE
            if step.mapped:
                self._expand(step)
            else:
                step.total = 1
                self._claim(step, 1)
                failure = failure_before(step, self.steps)
                self._ask(step, PLAIN, render.call(step.node, self.scope, failure), None)
        except (LocktenderError, LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
            step.phase = Phase.WAITING
            self._break(step, what, error)

    def _may_clean_up(self, step: NodeState) -> bool:
        return not self.forced and cleans_up(step.node, failed=self.failing)

    def _expand(self, step: NodeState) -> None:
        node = step.node
        if step.source is not None:
            self._expand_follower(step, self.steps[step.source])
            return
        assert node.over is not None  # noqa: S101
        elements = codec.split_list(render.render(node.over, self.scope))
        check_size(node, len(elements))
        self._open_items(step, len(elements))
        for follower in step.followers:
            self._ready(follower)
        if not elements:
            self._end(step)
        for idx, element in enumerate(elements):
            self._take_item(step, idx, element)

    def _expand_follower(self, step: NodeState, source: NodeState) -> None:
        self._open_items(step, source.total)
        if self.stopping and not self._may_clean_up(step):
            self._close(step)
        for follower in step.followers:
            self._ready(follower)
        early, step.early = step.early, []
        for idx in early:
            self._follow(step, idx)
        if step.total == 0:
            self._end(step)

    def _open_items(self, step: NodeState, count: int) -> None:
        # What can fail comes first: a broken map counts as never expanded, so nobody waits for its items.
        self._share(step)
        self._claim(step, count)
        step.total = count
        step.items = list[bytes | None]([None]) * count
        step.expanded = True

    def _share(self, step: NodeState) -> None:
        common = render.shared(step.node, self.scope)
        if common is not None and not step.had_rows:
            self._out.shared.append((step.index, common))

    def _claim(self, step: NodeState, count: int) -> None:
        """Give the node its block of ordinals; one that has rows keeps the block it had."""
        if step.again and step.base >= 0 and count > self._root(step).total:
            raise ValueError(
                f"it had {self._root(step).total:,} items when the run was first tried and has {count:,} now;"
                " a retry keeps the place of each item: submit the run anew"
            )
        if step.base < 0:
            if self._ordinals + count > MAX_TASKS_PER_RUN:
                raise ValueError(f"a run has at most {MAX_TASKS_PER_RUN:,} tasks")
            step.base = self._ordinals
            self._ordinals += count

    def _ask(self, step: NodeState, idx: int, value: bytes, item: bytes | None) -> None:
        row = self._existing.pop((step.index, idx), None) if self._existing else None
        if row is None or row.again:
            self._out.requests.append(
                TaskRequest(step.index, idx, step.base + max(idx, 0), value, item)
            )
        elif row.final:
            self._replay(step, row)

    def _replay(self, step: NodeState, row: Existing) -> None:
        """A task that ended before this leader's time."""
        match row.state:
            case TaskState.COMPLETED:
                self._item_ended(step, row.idx, NULL if row.output is None else row.output)
            case TaskState.FAILED | TaskState.TIMED_OUT:
                failure = Failure("unknown", "") if row.error is None else _failure(row.error)
                self._item_failed(step, row.idx, failure)
            case _:
                self._item_dropped(step, row.idx)

    # -- items -------------------------------------------------------------------------------------

    def _item_ended(self, step: NodeState, idx: int, output: bytes) -> None:
        step.ended += 1
        if step.items is None:
            step.output = output
        else:
            step.items[idx] = output
            for follower in step.followers:
                self._follow(self.steps[follower], idx)
        if step.ended == step.total:
            self._end(step)

    def _item_failed(self, step: NodeState, idx: int, failure: Failure) -> None:
        failure = msgspec.structs.replace(failure, node=step.node.name, traceback=None)
        if step.items is not None and step.node.on_error == "collect":
            self._item_ended(step, idx, codec.error_value(failure))
            return
        step.failed += 1
        step.failure = step.failure or failure
        self._close(step)
        self._item_missing(step, idx)
        if self.graph.fail == "fast":
            self._out.stop = True

    def _item_dropped(self, step: NodeState, idx: int) -> None:
        step.missing += 1
        self._item_missing(step, idx)

    def _item_missing(self, step: NodeState, idx: int) -> None:
        step.ended += 1
        for follower in step.followers:
            self._follow(self.steps[follower], idx)
        if step.ended == step.total:
            self._end(step)

    def _close(self, step: NodeState) -> None:
        if step.mapped and not step.closed:
            step.closed = True
            self._out.closing.append(step.index)

    def _follow(self, step: NodeState, idx: int) -> None:
        """Item `idx` of its source has ended: its own may be asked for."""
        if step.phase is Phase.WAITING or not step.expanded:
            step.early.append(idx)
            return
        if step.phase is not Phase.ACTIVE or step.source is None:
            return
        source = self.steps[step.source]
        value = None if source.items is None else source.items[idx]
        if value is None and step.node.run_if != "success" and not self.forced:
            value = NULL
        if value is None or (step.closed and not passes_on(step.node, value)):
            self._skip_item(step, idx)
        else:
            self._take_item(step, idx, value)

    def _take_item(self, step: NodeState, idx: int, item: bytes) -> None:
        if not passes_on(step.node, item):
            self._ask(step, idx, item, item)
            return
        row = self._existing.pop((step.index, idx), None) if self._existing else None
        if row is None or row.again:
            self._out.skips.append(passed_on(step, idx, item))
        self._item_ended(step, idx, item)

    def _skip_item(self, step: NodeState, idx: int) -> None:
        row = self._existing.pop((step.index, idx), None) if self._existing else None
        if row is not None and not row.again:
            if row.final:
                self._replay(step, row)
            return
        ordinal = step.base + max(idx, 0)
        reason = "what it follows did not succeed"
        self._out.skips.append(Skipped(step.index, idx, ordinal, reason, tainted=True))
        self._item_dropped(step, idx)

    def _end(self, step: NodeState) -> None:
        if step.phase is not Phase.ACTIVE:
            return
        if step.failed:
            step.phase = Phase.FAILED
        elif step.missing:
            step.phase = Phase.TAINTED
        else:
            step.phase = Phase.OK
        self._leave(step)

    def _skip_after_source(self, step: NodeState, reason: str, *, tainted: bool) -> None:
        """Skip, but not while the map it follows has items in flight: a clean-up behind it would meet them."""
        source = None if step.source is None else self.steps[step.source]
        if source is not None and source.phase is Phase.ACTIVE:
            step.waits += 1
            source.dependents.append(step.index)
        else:
            self._skip(step, reason, tainted=tainted)

    def _skip(self, step: NodeState, reason: str, *, tainted: bool) -> None:
        step.phase = Phase.TAINTED if tainted else Phase.SKIPPED
        row = self._existing.pop((step.index, PLAIN), None) if self._existing else None
        if step.again:
            self._out.skips += [
                Skipped(step.index, each.idx, each.ordinal, reason, tainted) for each in step.again
            ]
        elif row is None:
            self._claim(step, 1)
            ordinal = step.base
            self._out.skips.append(Skipped(step.index, PLAIN, ordinal, reason, tainted))
        for follower in step.followers:
            self._ready(follower)
        self._leave(step)

    def _break(self, step: NodeState, what: str, error: Exception) -> None:
        """The flow's own logic is wrong (a condition, a map over no list, a pool's key): the run fails."""
        self.failure = self.failure or Failure(
            f"flow_{what}", f"{step.node.name}: {error}", node=step.node.name, retryable=False
        )
        step.failure = self.failure
        self._skip(step, f"its {what} is broken: {error}", tainted=True)
        self._out.stop = True

    def _leave(self, step: NodeState) -> None:
        self._open -= 1
        for dependent in step.dependents:
            self._ready(dependent)

    def _ready(self, index: int) -> None:
        step = self.steps[index]
        step.waits -= 1
        if step.waits == 0:
            heappush(self._work, index)

    def _output(self, node: int) -> bytes:
        """A node's output as a value; nothing (null) where it has none."""
        step = self.steps[node]
        if step.phase is not Phase.OK and not (
            step.mapped and step.phase in (Phase.FAILED, Phase.TAINTED)
        ):
            return NULL
        if step.items is None:
            return NULL if step.output is None else step.output
        if step.output is None:
            step.output = codec.join_list([NULL if item is None else item for item in step.items])
        return step.output


_failure = msgspec.json.Decoder(Failure).decode
