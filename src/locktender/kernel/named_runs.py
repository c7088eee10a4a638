"""A run submitted by name goes on: its tracing step has completed, and its output is the graph of the flow.

One commit stores the graph, gives the run its graph and values, and requests its first tasks. The decision follows
from the completed row alone, so a leader that finds the row after a take-over decides the same. The graph comes
from another process, maybe of another release: it is checked like one from a client.
"""

from __future__ import annotations

from typing import Final

import msgspec

from locktender.base import codec, graph_check
from locktender.base.commits import RunUnfolded
from locktender.base.errors import InvalidFlow, LocktenderError
from locktender.base.events import Change
from locktender.base.graph import TRACE
from locktender.base.limits import Limits
from locktender.base.model import Failure
from locktender.base.named_runs import read_traced, unfold
from locktender.base.states import TaskState
from locktender.kernel.commit_builder import CommitBuilder
from locktender.kernel.entries import RunEntry
from locktender.kernel.node_state import PLAIN, Existing

AFTER_TRACE: Final = (Existing(0, PLAIN, 0, TaskState.COMPLETED, None, None, final=True),)
"""The rows that a run has when its graph begins: the tracing task."""


def go_on_traced(
    run: RunEntry, output: bytes | None, limits: Limits, builder: CommitBuilder
) -> Failure | None:
    """Gives `run` the graph that its tracing step returned; the failure where no run can have that graph."""
    try:
        graph, consts = unfold(run.graph, read_traced(output or b"null"))
        if graph.unfolds:
            raise InvalidFlow(
                "the traced graph is itself a graph that is to be traced.", field="graph"
            )
        graph_check.validate(graph)
        graph_check.check_pools(graph, limits)
    except (LocktenderError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        text = f"the traced graph is refused: {error}"
        return Failure("invalid_flow", text, node=TRACE, retryable=False)
    before, row = run.row.graph, run.row
    digest, body = graph_check.digest(graph)
    values = codec.join_list(consts)
    run.take_graph(graph)
    run.row = msgspec.structs.replace(row, graph=digest, consts=values)
    builder.commit.runs_unfolded.append(RunUnfolded(run.seq, digest, body, values))
    builder.record(run.seq, Change("trace", 0, before, digest, 0, {"graph": digest}))
    return None
