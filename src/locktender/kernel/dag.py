"""The graph of a run: with its finished tasks it gives what is ready, what is skipped and how the run ends.

Derived from rows and idempotent: `RunGraph` rebuilt over the rows of a run
asks for exactly what is still missing, so a new leader may repeat a half-done
cycle. It knows nothing of gates: what it requests, the ledger admits.

A node is *waiting* until everything it needs has ended, then *active* until
its tasks have, then ok, failed or skipped. Skipped has two kinds: by a
condition (nothing is wrong) and because something it needs failed (*tainted*).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from locktender.base import codec
from locktender.base.errors import LocktenderError
from locktender.base.graph import Graph
from locktender.base.model import Failure
from locktender.base.states import TaskState
from locktender.kernel import render
from locktender.kernel.expansion import Backlog, ItemBudget, Ordinals
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
    Wiring,
    check_size,
    cleans_up,
    drop_output,
    element_of,
    failure_before,
    has_ended,
    has_started,
    keep_output,
    now_due,
    passed_on,
    passes_on,
    run_through,
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
        budget: ItemBudget | None = None,
        wiring: Wiring | None = None,
    ) -> None:
        self.graph = graph
        self.backlog: Backlog = Backlog(budget)
        self.steps: list[NodeState] = (wiring or Wiring()).first_states(graph)
        self.scope: RenderScope = RenderScope(params, consts, tags, self.steps)
        self.failure: Failure | None = None
        self.stopping: bool = False
        self.failing: bool = False
        self.forced: bool = False
        self._open = len(self.steps)
        self._ordinals = Ordinals(self.steps)
        self._existing: dict[tuple[int, int], Existing] = {}
        self._work: list[int] = []
        """A heap: of what becomes ready together, what the flow calls first is requested first."""
        self._advance: Advance | None = None
        """What follows from the change that is worked in; None: nothing yet."""

    # -- what happens ------------------------------------------------------------------------------

    def begin(
        self, existing: Sequence[Existing] = (), *, stopping: bool = False, failing: bool = False
    ) -> Advance:
        """Start, or pick up from rows that are already there (of a run that is being ended: as `stop`)."""
        if existing or stopping:
            return run_through(self.beginning(existing, stopping=stopping, failing=failing))
        # Sorted, so it is a heap.
        self._work = [step.index for step in self.steps if step.waits == 0]
        return self._settle()

    def beginning(
        self, existing: Sequence[Existing] = (), *, stopping: bool = False, failing: bool = False
    ) -> Generator[None, None, Advance]:
        """`begin` with a break after so many rows and after each node."""
        self.stopping, self.failing = stopping, failing
        for number, row in enumerate(existing, 1):
            if not number % SLICE:
                yield
            self._existing[row.node, row.idx] = row
            self._ordinals.next = max(self._ordinals.next, row.ordinal + 1)
            step = self.steps[row.node]
            if row.again:
                step.again = step.again or []
                step.again.append(row)
                if row.idx == PLAIN and step.mapped:
                    continue  # The row of a map that was skipped whole has no place among its items.
            else:
                step.had_rows = True
            step.base = row.ordinal - max(row.idx, 0)
            step.total = max(step.total, row.idx + 1)
        self._ordinals.keep_blocks()
        for step in self.steps:
            if step.waits == 0:
                heappush(self._work, step.index)
        while self._work:
            self._start_next()
            yield
        return self._settle()

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

    def go_on(self, items: Iterable[tuple[NodeState, Sequence[int]]]) -> Advance:
        """Ask for further items of maps that are expanded in slices: those that its backlog hands out."""
        for step, indexes in items:
            self._take_several(step, indexes)
            if step.behind is None:
                step.elements = ()
                if step.source is not None:
                    drop_output(self.steps[step.source], self.steps)
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
        failed = (step.failure for step in self.steps if step.phase is Phase.FAILED)
        failure = self.failure or next(failed, None)
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
        advance, self._advance = self._advance, None
        return NOTHING if advance is None else advance

    @property
    def _out(self) -> Advance:
        # Made late: most ends of a map's items, and the end of a run's last step, bring nothing.
        if self._advance is None:
            self._advance = Advance()
        return self._advance

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
                self._ordinals.claim(step, 1)
                failure = failure_before(step, self.steps)
                self._ask(step, PLAIN, render.call(step.node, self.scope, failure), None)
            has_started(step, self.steps)
        except (LocktenderError, LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
            step.phase = Phase.WAITING
            self._break(step, what, error)

    def _may_clean_up(self, step: NodeState) -> bool:
        return not self.forced and cleans_up(step.node, failed=self.failing)

    def _expand(self, step: NodeState) -> None:
        if step.source is None:
            assert step.node.over is not None  # noqa: S101
            elements = codec.split_list(render.render(step.node.over, self.scope))
            check_size(step.node, len(elements))
            self._open_items(step, len(elements))
            step.elements, indexes = elements, range(len(elements))
        else:
            self._open_items(step, self.steps[step.source].total)
            if self.stopping and not self._may_clean_up(step):
                self._close(step)
            indexes = now_due(step)
        for follower in step.followers:
            self._ready(follower)
        self._take_first(step, indexes)
        if step.total == 0:
            self._end(step)

    def _take_first(self, step: NodeState, indexes: Sequence[int]) -> None:
        """Items of a map that is opened: those that have rows, and as many others as this cycle may ask for."""
        rows = self._existing
        if rows:
            known = [i for i in indexes if (row := rows.get((step.index, i))) and not row.again]
            # All of them: one that failed closes the map, and then no other may be asked for.
            for idx in known:
                self._take(step, idx)
            indexes = sorted(set(indexes).difference(known))
        count = self.backlog.budget.grant(len(indexes))
        if count < len(indexes):
            self.backlog.put(step, indexes[count:])
            last = step.total - 1
            if step.source is None and indexes[-1] == last and (step.index, last) not in rows:
                self._out.reserved.append((step.index, last, step.base + last))
        self._take_several(step, indexes[:count])
        if not step.behind:
            step.elements = ()

    def _open_items(self, step: NodeState, count: int) -> None:
        # What can fail comes first: a broken map counts as never expanded, so no step waits for its items.
        common = render.shared(step.node, self.scope)
        if common is not None and not step.had_rows:
            self._out.shared.append((step.index, common))
        self._ordinals.claim(step, count)
        step.total = count
        step.items = list[bytes | None]([None]) * count
        step.expanded = True

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
        if step.items is not None:
            step.items[idx] = output
            for follower in step.followers:
                self._follow(self.steps[follower], idx)
        keep_output(step, idx, output, self.steps)
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
        step.early = step.early or []
        heappush(step.early, idx)
        due = now_due(step) if step.phase is Phase.ACTIVE and step.expanded else ()
        if step.behind:
            step.behind.extend(due)
        elif len(due) == 1:
            self._take(step, due[0])
        elif due:
            self._take_first(step, due)

    def _take_several(self, step: NodeState, indexes: Sequence[int]) -> None:
        """As `_take` of each. Most are items of a list that is there, and are asked for without asking more."""
        simple = step.source is None and not (step.closed or self.stopping or self._existing)
        for idx in indexes:
            if simple and not codec.is_error(item := step.elements[idx]):
                request = TaskRequest(step.index, idx, step.base + idx, item, item)
                self._out.requests.append(request)
            else:
                self._take(step, idx)

    def _take(self, step: NodeState, idx: int) -> None:
        """Ask for an item, or skip it."""
        closed, reason = step.closed, "what it follows did not succeed"
        if step.source is None:
            reason = "another item failed"
            if self.stopping and not self._may_clean_up(step):
                closed, reason = True, "the run is ending"
        value = element_of(step, idx, self.steps)
        if value is None and step.node.run_if != "success" and not self.forced:
            value = NULL
        if value is None or (closed and not passes_on(step.node, value)):
            self._skip_item(step, idx, reason)
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

    def _skip_item(self, step: NodeState, idx: int, reason: str) -> None:
        row = self._existing.pop((step.index, idx), None) if self._existing else None
        if row is not None and not row.again:
            if row.final:
                self._replay(step, row)
            return
        self._out.skips.append(Skipped(step.index, idx, step.base + idx, reason, tainted=True))
        self._item_dropped(step, idx)

    def _end(self, step: NodeState) -> None:
        if step.phase is not Phase.ACTIVE:
            return
        failed = Phase.FAILED if step.failed else Phase.TAINTED if step.missing else None
        step.phase = failed or Phase.OK
        self._leave(step)

    def _skip_after_source(self, step: NodeState, reason: str, *, tainted: bool) -> None:
        """Skip, but not while the map it follows has items in flight: a clean-up behind it would meet them."""
        source = None if step.source is None else self.steps[step.source]
        if source is not None and source.phase is Phase.ACTIVE:
            step.waits += 1
            source.dependents = (*source.dependents, step.index)
        else:
            self._skip(step, reason, tainted=tainted)

    def _skip(self, step: NodeState, reason: str, *, tainted: bool) -> None:
        step.phase = Phase.TAINTED if tainted else Phase.SKIPPED
        row = self._existing.pop((step.index, PLAIN), None) if self._existing else None
        if step.again:
            self._out.skips += [
                Skipped(step.index, each.idx, each.ordinal, reason, tainted) for each in step.again
            ]
        elif row is None and not step.had_rows:
            self._ordinals.claim(step, 1)
            self._out.skips.append(Skipped(step.index, PLAIN, step.base, reason, tainted))
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
        has_ended(step, self.steps)
        for dependent in step.dependents:
            self._ready(dependent)

    def _ready(self, index: int) -> None:
        step = self.steps[index]
        step.waits -= 1
        if step.waits == 0:
            heappush(self._work, index)


_failure = msgspec.json.Decoder(Failure).decode
