-- name: history_position
-- The end of the history.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0)

-- name: runs_executing
-- Runs that execute, by seq.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run WHERE state IN ('running', 'cancelling') ORDER BY seq

-- name: runs_held
-- Runs that are held, by seq.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run WHERE state = 'held' ORDER BY seq

-- name: runs_unknown
-- Runs in no state that there is, by ranges of the index on states: no other read finds them.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run
WHERE seq IN (
    SELECT seq FROM run WHERE state < 'cancelled'
    UNION ALL
    SELECT seq FROM run WHERE state > 'cancelled' AND state < 'cancelling'
    UNION ALL
    SELECT seq FROM run WHERE state > 'cancelling' AND state < 'failed'
    UNION ALL
    SELECT seq FROM run WHERE state > 'failed' AND state < 'held'
    UNION ALL
    SELECT seq FROM run WHERE state > 'held' AND state < 'queued'
    UNION ALL
    SELECT seq FROM run WHERE state > 'queued' AND state < 'running'
    UNION ALL
    SELECT seq FROM run WHERE state > 'running' AND state < 'succeeded'
    UNION ALL
    SELECT seq FROM run WHERE state > 'succeeded' AND state < 'timed_out'
    UNION ALL
    SELECT seq FROM run WHERE state > 'timed_out' AND state < 'waiting'
    UNION ALL
    SELECT seq FROM run WHERE state > 'waiting'
)
ORDER BY seq

-- name: runs_misplaced
-- Queued runs in a lane that there cannot be (a text stands behind all numbers), and those of the oldest that
-- the queue does not have.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM (
    SELECT run FROM queue WHERE lane < 1 OR lane > 144115188075855872
    UNION
    SELECT o.seq FROM (
        SELECT seq, lane, rank1, rank2 FROM run WHERE state = 'queued' ORDER BY seq LIMIT ?
    ) o
    WHERE NOT EXISTS (
        SELECT 1 FROM queue q
        WHERE q.lane = o.lane AND q.rank1 = o.rank1 AND q.rank2 = o.rank2 AND q.run = o.seq
    )
) q CROSS JOIN run r ON r.seq = q.run
WHERE r.state = 'queued'
ORDER BY r.seq

-- name: tasks_held
-- Tasks of held runs that are in flight, by id. One in no state that there is counts if it holds slots.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM run r CROSS JOIN task t
WHERE r.state = 'held'
    AND t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
    AND (
        t.state IN ('scheduled', 'running')
        OR (t.held IS NOT NULL AND t.state NOT IN (
            'pending', 'requested', 'completed', 'failed', 'cancelled', 'timed_out', 'abandoned',
            'handed_back', 'skipped'
        ))
    )
ORDER BY t.id

-- name: run_by_id
-- One run.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run WHERE id = ?

-- name: run_states
-- The states of these runs, as far as they exist.
SELECT seq, state FROM run WHERE seq IN (SELECT value FROM json_each(?))

-- name: run_labels
-- Ids, flows and tags of these runs, as far as they exist.
SELECT seq, id, flow, tags FROM run WHERE seq IN (SELECT value FROM json_each(?))

-- name: runs_queued_by_seq
-- Of these runs, those that are queued.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run WHERE seq IN (SELECT value FROM json_each(?)) AND state = 'queued' ORDER BY seq

-- name: runs_overdue
-- Queued runs whose deadline has passed. By itself SQLite would read all queued runs, each second.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run INDEXED BY run_deadline WHERE state = 'queued' AND deadline_at IS NOT NULL AND deadline_at <= ?
ORDER BY deadline_at, seq LIMIT ?

-- name: runs_by_prefix
-- Runs whose id lies in a range, by id.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run WHERE id >= ? AND id < ? ORDER BY id LIMIT ?

-- name: runs_failed_lately
-- Runs that failed or timed out, the one that ended last first.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run INDEXED BY run_failed WHERE state IN ('failed', 'timed_out') AND kind <> 'hold'
ORDER BY ended_at DESC LIMIT ?

-- name: runs_with_key
-- Runs that have a key, newest first.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run WHERE key = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3

-- name: runs_filtered
-- Runs by flow and tags, newest first.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM run
WHERE seq < ?1 AND seq >= ?6 AND ?2 IS NULL AND (kind <> 'hold' OR ?3 IS NOT NULL)
    AND (?3 IS NULL OR flow = ?3) AND instr(tags, ?7)
    AND NOT EXISTS (
        SELECT 1 FROM json_each(?4) want WHERE NOT EXISTS (
            SELECT 1 FROM json_each(iif(json_valid(run.tags), run.tags, '{}')) have
            WHERE have.key = want.key AND have.value = want.value
        )
    )
ORDER BY seq DESC LIMIT ?5

-- name: runs_filtered_by_state
-- The same where states are named: the newest of each, by the index on them.
SELECT
    run.seq, run.id, flow, graph, params, consts, tags, priority, run.key, kind, generation, state,
    verdict, lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM json_each(?2) s CROSS JOIN run
WHERE run.seq IN (
    SELECT r.seq FROM run r
    WHERE r.state = s.value AND r.seq < ?1 AND r.seq >= ?6
        AND (r.kind <> 'hold' OR ?3 IS NOT NULL)
        AND (?3 IS NULL OR r.flow = ?3) AND instr(r.tags, ?7)
        AND NOT EXISTS (
            SELECT 1 FROM json_each(?4) want WHERE NOT EXISTS (
                SELECT 1 FROM json_each(iif(json_valid(r.tags), r.tags, '{}')) have
                WHERE have.key = want.key AND have.value = want.value
            )
        )
    ORDER BY r.seq DESC LIMIT ?5
)
ORDER BY run.seq DESC LIMIT ?5

-- name: graphs_executing
-- Graphs of the runs that execute.
SELECT hash, body FROM graph
WHERE hash IN (SELECT graph FROM run WHERE state IN ('running', 'cancelling'))

-- name: graph_get
-- One graph.
SELECT body FROM graph WHERE hash = ?

-- name: tasks_executing
-- All tasks of the runs that execute, by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM run r CROSS JOIN task t
WHERE r.state IN ('running', 'cancelling')
    AND t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
ORDER BY t.id

-- name: tasks_executing_count
-- How many tasks the executing runs have, at most so many.
SELECT count(*) FROM (
    SELECT 1 FROM run r CROSS JOIN task t
    WHERE r.state IN ('running', 'cancelling')
        AND t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
    LIMIT ?
)

-- name: answer_get
-- What the leader answered.
SELECT body FROM answer WHERE question = ?

-- name: tasks_of_run
-- All tasks of one run, by id.
SELECT
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
FROM task WHERE id >= ?1 << 20 AND id < (?1 + 1) << 20 ORDER BY id

-- name: tasks_counted
-- How many tasks of one run are in which state, by step.
SELECT node, state, count(*) FROM task WHERE id >= ?1 << 20 AND id < (?1 + 1) << 20 GROUP BY node, state

-- name: tasks_some
-- Tasks of one run behind a number, of some steps and in some states (null: all), by id.
SELECT
    id, node, idx, state, attempt, tries, abandons, offers, token, worker, held, input, output,
    error, requested_at, scheduled_at, started_at, ended_at, not_before, eligible_at
FROM task
WHERE id >= max(?1 << 20, ?2 + 1) AND id < (?1 + 1) << 20
    AND (?3 IS NULL OR node IN (SELECT value FROM json_each(?3)))
    AND (?4 IS NULL OR state IN (SELECT value FROM json_each(?4)))
ORDER BY id LIMIT ?5

-- name: ended_tasks
-- How these tasks have ended.
SELECT t.id, t.token, t.state, t.output, t.error
FROM json_each(?) v CROSS JOIN task t ON t.id = v.value

-- name: logs_list
-- What attempts of a run logged, by task and token.
SELECT task, token, attempt, body, lines, last_at FROM log
WHERE task >= ?1 << 20 AND task < (?1 + 1) << 20 AND (?2 IS NULL OR task = ?2)
    AND (task, token) > (?3, ?4)
ORDER BY task, token LIMIT ?5

-- name: logs_newest
-- Attempts of a run that have logged, the one with the newest line first; behind a place.
SELECT l.task, l.token, l.attempt, l.body, l.lines, l.last_at, t.node, t.idx
FROM log l JOIN task t ON t.id = l.task
WHERE l.task >> 20 = ?1
    AND (l.last_at, l.task, l.token) < (?2, ?3, ?4)
ORDER BY l.last_at DESC, l.task DESC, l.token DESC LIMIT ?5

-- name: logs_newest_of_task
-- The same of one task.
SELECT l.task, l.token, l.attempt, l.body, l.lines, l.last_at, t.node, t.idx
FROM log l JOIN task t ON t.id = l.task
WHERE l.task = ?1
    AND (l.last_at, l.task, l.token) < (?2, ?3, ?4)
ORDER BY l.last_at DESC, l.task DESC, l.token DESC LIMIT ?5

-- name: log_total
-- How many attempts of a run have logged, and how many lines; of a bounded number of them.
SELECT count(*), coalesce(sum(lines), 0) FROM (
    SELECT lines FROM log
    WHERE task >= ?1 << 20 AND task < (?1 + 1) << 20 AND (?2 IS NULL OR task = ?2)
    LIMIT ?3
) l

-- name: log_counts
-- How many lines each attempt of a run has logged.
SELECT task, token, lines FROM log
WHERE task >= ?1 << 20 AND task < (?1 + 1) << 20 AND (?2 IS NULL OR task = ?2)

-- name: workers_list
-- All workers.
SELECT w.id, w.body, w.since, w.lease_until, s.unanswered, s.until
FROM worker w LEFT JOIN silence s ON s.worker = w.id ORDER BY w.since, w.id

-- name: workers_version
-- Changes when a worker joins, leaves or describes itself anew.
SELECT coalesce((SELECT value FROM meta WHERE name = 'workers_version'), 0)

-- name: bucket_list
-- The state of rates.
SELECT pool, tat FROM bucket ORDER BY pool

-- name: unplaced_list
-- Executing runs without a place.
SELECT run FROM unplaced ORDER BY run

-- name: kept_list
-- Runs that have begun, have no place now, and keep it at some limits of tags.
SELECT u.run, r.id, r.tags, u.keeps, r.started_at FROM unplaced u CROSS JOIN run r ON r.seq = u.run
WHERE u.keeps IS NOT NULL AND r.state IN ('waiting', 'queued', 'running', 'cancelling') AND r.started_at <> 0
ORDER BY u.run

-- name: linger_list
-- Slots of dead workers that their pool's lease still holds.
SELECT task, token, pool, slots, until, worker FROM linger ORDER BY task, token, pool

-- name: reservation_list
-- Slots kept free for waiters.
SELECT task, pool, slots FROM reservation ORDER BY task, pool

-- name: last_run
-- The highest number of a run.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0)

-- name: lanes_queued
-- Lanes that have queued runs: one seek per lane, however long they are.
WITH RECURSIVE l (lane) AS (
    SELECT min(lane) FROM queue
    UNION ALL
    SELECT (SELECT min(lane) FROM queue WHERE lane > l.lane) FROM l WHERE l.lane IS NOT NULL
)
SELECT lane FROM l WHERE lane IS NOT NULL

-- name: request_list
-- What clients ask, oldest first.
SELECT seq, body, taken FROM request ORDER BY seq LIMIT ?

-- name: stop_list
-- Stop orders not yet obeyed.
SELECT worker, task, token, kind, reason FROM orders WHERE kind = 'stop' ORDER BY task

-- name: events_after
-- What others committed, in commit order.
SELECT seq, at, term, cycle, actor, run, body FROM event
WHERE seq > ?1 AND actor <> ?2 AND (?3 IS NULL OR run = ?3) ORDER BY seq LIMIT ?4

-- name: events_all
-- The history.
SELECT seq, at, term, cycle, actor, run, body FROM event WHERE seq > ? ORDER BY seq LIMIT ?

-- name: events_newest
-- The end of the history, the last first.
SELECT seq, at, term, cycle, actor, run, body FROM event
WHERE seq > ? ORDER BY seq DESC LIMIT ?

-- name: events_of_run
-- The history of one run.
SELECT seq, at, term, cycle, actor, run, body FROM event
WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: heads
-- The first runs of each lane: the work is what is returned, not what is queued. A place of no run counts as none:
-- a lane that answers with fewer runs than it was asked for has no more.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM (
    SELECT r.seq, r.rank1, r.rank2,
        row_number() OVER (PARTITION BY r.lane ORDER BY r.rank1, r.rank2, r.seq) AS place
    FROM json_each(?1) v CROSS JOIN run r
    WHERE r.seq IN (
        SELECT run FROM queue
        WHERE lane = v.value AND EXISTS (SELECT 1 FROM run WHERE run.seq = queue.run)
        ORDER BY rank1, rank2, run LIMIT ?2
    )
    ORDER BY place, rank1, rank2, seq LIMIT ?3
) h CROSS JOIN run r ON r.seq = h.seq
ORDER BY r.lane, r.rank1, r.rank2, r.seq

-- name: queue_list
-- Queued runs in their global order, behind the place of one of them.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM (
    SELECT rank1, rank2, run FROM queue WHERE (rank1, rank2, run) > (?2, ?3, ?4)
    ORDER BY rank1, rank2, run LIMIT ?1
) q
CROSS JOIN run r ON r.seq = q.run
ORDER BY q.rank1, q.rank2, q.run

-- name: rank_of
-- Where a run stands in the order, or stood when it was queued.
SELECT rank1, rank2, seq FROM run WHERE seq = ?

-- name: queue_by_lane
-- The longest lanes of the queue, with what they wait for and how many runs.
SELECT l.signature, q.waiting
FROM (SELECT lane, count(*) AS waiting FROM queue GROUP BY lane ORDER BY waiting DESC LIMIT ?) q
JOIN lane l ON l.id = q.lane

-- name: runs_lately
-- Of the newest runs (?1) the states and times of those queued since ?2, or started or ended since ?3; the last row
-- says how many are the newest, and when the oldest of them was queued.
WITH newest AS MATERIALIZED (
    SELECT seq, state, queued_at, started_at, ended_at FROM run WHERE kind <> 'hold' ORDER BY seq DESC LIMIT ?1
)
SELECT seq, state, queued_at, started_at, ended_at FROM newest
WHERE queued_at >= ?2 OR started_at >= ?3 OR ended_at >= ?3
UNION ALL
SELECT 0, '', count(*), coalesce(min(queued_at), 0), 0 FROM newest
ORDER BY 1 DESC

-- name: queue_place
-- Where a queued run stands in its lane.
SELECT lane, rank1, rank2 FROM run WHERE seq = ? AND state = 'queued'

-- name: queue_counts
-- A run's lane; how many are read before and behind it, and how many of them are no holds; how many stand before
-- it in its lane; how many are queued in all.
SELECT
    (SELECT signature FROM lane WHERE id = ?1),
    a.counted, coalesce(a.flows, 0), b.counted, coalesce(b.flows, 0),
    (SELECT count(*) FROM (
        SELECT 1 FROM queue WHERE lane = ?1 AND (rank1, rank2, run) < (?2, ?3, ?4) LIMIT ?5
    )),
    (SELECT admitted - closed FROM counter WHERE name = '')
    - (SELECT count(*) FROM run WHERE state IN ('running', 'cancelling', 'held') AND kind <> 'hold')
FROM (
    SELECT count(*) AS counted, sum(lane IS NOT (SELECT id FROM lane WHERE signature = ?6)) AS flows
    FROM (
        SELECT lane FROM queue WHERE (rank1, rank2, run) < (?2, ?3, ?4)
        ORDER BY rank1 DESC, rank2 DESC, run DESC LIMIT ?5
    )
) a CROSS JOIN (
    SELECT count(*) AS counted, sum(lane IS NOT (SELECT id FROM lane WHERE signature = ?6)) AS flows
    FROM (
        SELECT lane FROM queue WHERE (rank1, rank2, run) > (?2, ?3, ?4)
        ORDER BY rank1, rank2, run LIMIT ?5
    )
) b

-- name: queue_before
-- Queued runs before a place, by lane and rank.
SELECT l.signature, g.rank1, g.waiting, g.waiting
FROM (
    SELECT q.lane, q.rank1, count(*) AS waiting
    FROM (
        SELECT lane, rank1 FROM queue WHERE (rank1, rank2, run) < (?1, ?2, ?3)
        ORDER BY rank1 DESC, rank2 DESC, run DESC LIMIT ?4
    ) q
    GROUP BY q.lane, q.rank1 LIMIT ?5
) g JOIN lane l ON l.id = g.lane

-- name: queue_line
-- Queued runs but those of lower priority than one of them, by lane: how many, and how many before its place.
SELECT l.signature, g.rank1, g.waiting, g.older
FROM (
    SELECT q.lane, q.rank1, count(*) AS waiting,
        sum((q.rank1, q.rank2, q.run) < (?2, ?3, ?4)) AS older
    FROM (
        SELECT * FROM (
            SELECT lane, rank1, rank2, run FROM queue WHERE lane = ?1 AND rank1 <= ?2 LIMIT ?5
        )
        UNION ALL
        SELECT * FROM (
            SELECT lane, rank1, rank2, run FROM queue WHERE lane <> ?1 AND rank1 <= ?2 LIMIT ?5
        )
    ) q
    GROUP BY q.lane, q.rank1
    ORDER BY q.lane <> ?1 LIMIT ?6
) g JOIN lane l ON l.id = g.lane

-- name: runs_placed
-- Runs that execute, or are held and have something in flight, by seq; without their values.
SELECT
    r.seq, r.id, r.flow, r.graph, CAST('{}' AS BLOB), CAST('[]' AS BLOB), r.tags, r.priority, r.key,
    r.kind, r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, NULL, NULL, NULL
FROM run r
WHERE r.state IN ('running', 'cancelling', 'held') AND r.kind = 'flow'
    AND (r.state <> 'held' OR EXISTS (
        SELECT 1 FROM task t WHERE t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
            AND (
                t.state IN ('scheduled', 'running')
                OR (t.held IS NOT NULL AND t.state NOT IN (
                    'pending', 'requested', 'completed', 'failed', 'cancelled', 'timed_out',
                    'abandoned', 'handed_back', 'skipped'
                ))
            )
    ))
ORDER BY r.seq

-- name: runs_lasted
-- How long runs of a run's flow lasted, among the newest that ended.
SELECT e.ended_at - e.started_at
FROM (
    SELECT * FROM (
        SELECT flow, started_at, ended_at FROM run WHERE state = 'succeeded' ORDER BY seq DESC LIMIT ?2
    )
    UNION ALL
    SELECT * FROM (
        SELECT flow, started_at, ended_at FROM run WHERE state = 'failed' ORDER BY seq DESC LIMIT ?2
    )
) e
WHERE e.flow = (SELECT flow FROM run WHERE seq = ?1) AND e.started_at > 0 AND e.ended_at > 0

-- name: counter_list
-- All counters.
SELECT name, admitted, closed FROM counter

-- name: run_counts
-- Runs that are queued, that execute, and that wait for their time.
SELECT
    (SELECT count(*) FROM queue),
    (SELECT count(*) FROM run WHERE state IN ('running', 'cancelling')),
    (SELECT count(*) FROM run WHERE state = 'waiting')

-- name: open_runs
-- Runs that are queued, that execute, are held, and wait; those that count under the admission ceiling; and when
-- the run was queued that has waited longest, found by the first of each priority.
WITH RECURSIVE priorities (rank1, n) AS (
    SELECT min(q.rank1), 1 FROM queue q
    UNION ALL
    SELECT (SELECT min(q.rank1) FROM queue q WHERE q.rank1 > p.rank1), p.n + 1
    FROM priorities p WHERE p.rank1 IS NOT NULL AND p.n < 100
), heads (run) AS (
    SELECT (SELECT q.run FROM queue q WHERE q.rank1 = p.rank1 ORDER BY q.rank2, q.run LIMIT 1)
    FROM priorities p WHERE p.rank1 IS NOT NULL
)
SELECT
    (SELECT count(*) FROM queue),
    (SELECT count(*) FROM run WHERE state IN ('running', 'cancelling')),
    (SELECT count(*) FROM run WHERE state = 'held'),
    (SELECT count(*) FROM waiting),
    (SELECT admitted - closed FROM counter WHERE name = ''),
    coalesce((SELECT min(r.queued_at) FROM run r WHERE r.seq IN (SELECT run FROM heads)), 0)

-- name: slots_held
-- What tasks in flight hold, and how many of them hold the same.
SELECT t.held, count(*)
FROM run r CROSS JOIN task t
WHERE r.state IN ('running', 'cancelling', 'held')
    AND t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
    AND t.state IN ('scheduled', 'running') AND t.held IS NOT NULL
GROUP BY t.held
