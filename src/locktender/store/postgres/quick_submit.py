"""The common submission in one round trip: a few runs without keys, under no ceiling of a tag, in known lanes.

What the other way reads before it decides (`client_verbs.py`) stands here as conditions of the statement that
writes: the limits are those that the lanes were chosen by, no id is stored, the lanes and graphs exist, the time
reckoned here is right and not before that of the last run, and the runs fit under the ceiling of all. They are
judged in the statement's snapshot, and `last_run` and `admissions` must still be as in that snapshot when their
rows are updated: a submitter that was admitted meanwhile changed one of them. So it is as if this one were alone.
Where a condition fails nothing is written, and the other way decides. Where many submit, the statement itself
waits for their lock, in a function that reads all this behind it (`may_admit`): also one round trip, and no client
round trip happens while the lock is held. The statement counts the numbers of the runs from `last_run`.
"""

from __future__ import annotations

from collections.abc import Sequence

from locktender.base.ids import MAX_RUNS
from locktender.store.admission import TOTAL, Ceilings, Drained, counter_names
from locktender.store.carried_runs import carried
from locktender.store.history import CLIENT
from locktender.store.postgres.composed_sql import Parts, columns
from locktender.store.postgres.listener import SUBMIT
from locktender.store.postgres.server_clock import ServerClock
from locktender.store.postgres.session import SUBMITTERS, PostgresSession
from locktender.store.protocol import Submit, Submitted
from locktender.store.submission import Admission, AdmissionPlan, Facts, any_delayed, likely_lanes

MAX_QUICK_RUNS = 200
"""Of more, one round trip is a small part."""
MAX_KNOWN_LANES = 10_000
RUN_COLUMNS = 20


def remember_lanes(tx: PostgresSession, lanes: dict[str, int]) -> None:
    known = tx.known.lanes
    if len(known) > MAX_KNOWN_LANES:
        known.clear()
    known |= lanes


async def submit_quickly(
    tx: PostgresSession, submits: Sequence[Submit], clock: ServerClock
) -> list[list[Submitted]] | None:
    """The answers; None where nothing was written."""
    return await _submit(tx, submits, clock, in_line=False)


async def submit_in_line(
    tx: PostgresSession, submits: Sequence[Submit], clock: ServerClock
) -> list[list[Submitted]] | None:
    """The same behind the submitters' lock."""
    return await _submit(tx, submits, clock, in_line=True)


async def _submit(
    tx: PostgresSession, submits: Sequence[Submit], clock: ServerClock, *, in_line: bool
) -> list[list[Submitted]] | None:
    runs = [run for each in submits for run in each.runs]
    version, limits = tx.known.limits
    now = clock.reckoned()
    if now is None or version < 0 or len(runs) > MAX_QUICK_RUNS:
        return None
    if any(run.key is not None for run in runs) or any_delayed(runs):
        return None
    if counter_names(limits, (run.tags for run in runs)) != {TOTAL}:
        return None
    lanes = {name: tx.known.lanes.get(name, 0) for name in likely_lanes(limits, runs)}
    if not all(lanes.values()):
        return None
    ceilings = Ceilings(limits, {}, lambda: Drained(0, None, 0))
    admission = Admission(Facts(0, 0, now, limits, {}, ceilings, {}, {}))
    unsent = {run.graph for each in submits for run in each.runs if run.graph not in each.graphs}
    answers = [admission.receive(each, unsent) for each in submits]
    if any(answer.outcome != "created" for each in answers for answer in each):
        return None
    if len(admission.new) != len(runs):
        return None  # one of them is named twice
    parts = Parts()
    parts.add("now", alias="clock")
    lock = tx.options.lock(SUBMITTERS)
    conditions = (
        *(version, [run.id for run in runs], limits.max_active, ceilings.added[TOTAL]),
        *columns(sorted((lane, name) for name, lane in lanes.items()), 2),
        *(sorted(unsent), MAX_RUNS - len(runs), now),
    )
    if in_line:
        parts.add("quick_marks_in_line", *lock, *conditions, alias="marks")
        parts.add("quick_claim_in_line", len(runs), alias="claimed")
        parts.add("quick_fence_in_line", alias="fence")
    else:
        parts.add("quick_marks", *conditions, alias="marks")
        parts.add("quick_claim", len(runs), *lock, alias="claimed")
        parts.add("quick_fence", alias="fence")
    plan = admission.plan(admission.signatures(), lanes)
    _add_rows(parts, plan, now)
    sent = {name: body for each in submits for name, body in each.graphs.items()}
    if sent:
        parts.add("graph_add", sorted(sent), [sent[name] for name in sorted(sent)])
    if ceilings.added:
        parts.add("counter_admit", *columns(sorted(ceilings.added.items()), 2))
    parts.add("quick_answer", *tx.hint(SUBMIT), len(runs), carried(plan.runs))
    rows = await tx.compose(parts)
    if not rows:
        return None
    first, told, _ = rows[0]
    clock.sync(told)
    return [
        [Submitted(answer.id, first + answer.seq, answer.outcome) for answer in each]
        for each in answers
    ]


def _add_rows(parts: Parts, plan: AdmissionPlan, now: int) -> None:
    parts.add("quick_run", *columns(plan.runs, RUN_COLUMNS))
    parts.add("quick_queue", *columns(plan.queued, 4))
    parts.add("quick_told", *columns(plan.events, 2), alias="told")
    parts.add("event_add", now, 0, 0, CLIENT)
