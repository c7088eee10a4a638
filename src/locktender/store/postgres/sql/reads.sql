-- name: history_position
-- Where a follower stands that has read every visible event: in which history, with which offset of its
-- numbers, and what it saw.
SELECT locktender.history_place() || ' ' || value, pg_current_snapshot()::text
FROM locktender.meta WHERE name = 'xid_offset'

-- name: runs_executing
-- Runs that execute, by seq.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE state IN ('running', 'cancelling') ORDER BY seq

-- name: runs_held
-- Runs that are held, by seq.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE state = 'held' ORDER BY seq

-- name: runs_unknown
-- Runs in no state that there is, by ranges of the index on states: no other read finds them.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run
WHERE seq IN (
    SELECT seq FROM locktender.run WHERE state < 'cancelled'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'cancelled' AND state < 'cancelling'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'cancelling' AND state < 'failed'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'failed' AND state < 'held'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'held' AND state < 'queued'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'queued' AND state < 'running'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'running' AND state < 'succeeded'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'succeeded' AND state < 'timed_out'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'timed_out' AND state < 'waiting'
    UNION ALL
    SELECT seq FROM locktender.run WHERE state > 'waiting'
)
ORDER BY seq

-- name: runs_misplaced
-- Queued runs in a lane that there cannot be, and those of the oldest that the queue does not have.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM (
    (SELECT run FROM locktender.queue WHERE lane < 1 ORDER BY lane)
    UNION ALL
    (SELECT run FROM locktender.queue WHERE lane > 144115188075855872 ORDER BY lane)
    UNION
    SELECT o.seq FROM (
        SELECT seq, lane, rank1, rank2 FROM locktender.run
        WHERE state = 'queued' ORDER BY seq LIMIT $1
    ) o
    LEFT JOIN LATERAL (
        SELECT queue.run FROM locktender.queue
        WHERE queue.lane = o.lane AND queue.rank1 = o.rank1 AND queue.rank2 = o.rank2 AND queue.run = o.seq
        OFFSET 0
    ) there ON true
    WHERE there.run IS NULL
) q
CROSS JOIN LATERAL (SELECT * FROM locktender.run WHERE run.seq = q.run OFFSET 0) r
WHERE (r.state = 'queued') IS TRUE
ORDER BY r.seq

-- name: tasks_held
-- Tasks of held runs that are in flight, by id. One in no state that there is counts if it holds slots.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM locktender.run r JOIN locktender.task t ON t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
WHERE r.state = 'held'
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
FROM locktender.run WHERE id = $1

-- name: run_states
-- The states of these runs, as far as they exist.
SELECT seq, state FROM locktender.run WHERE seq = ANY($1::bigint[])

-- name: run_labels
-- Ids, flows and tags of these runs, as far as they exist.
SELECT seq, id, flow, tags FROM locktender.run WHERE seq = ANY($1::bigint[])

-- name: runs_queued_by_seq
-- Of these runs, those that are queued.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE seq = ANY($1::bigint[]) AND (state = 'queued') IS TRUE ORDER BY seq

-- name: runs_overdue
-- Queued runs whose deadline has passed.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run
WHERE state = 'queued' AND deadline_at IS NOT NULL AND deadline_at <= (SELECT locktender.locktender_now())
ORDER BY deadline_at, seq LIMIT $1

-- name: runs_by_prefix
-- Runs whose id lies in a range, by id.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE id COLLATE "C" >= $1 AND id COLLATE "C" < $2 ORDER BY id COLLATE "C" LIMIT $3

-- name: runs_failed_lately
-- Runs that failed or timed out, the one that ended last first.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE state IN ('failed', 'timed_out') AND kind <> 'hold'
ORDER BY ended_at DESC LIMIT $1::bigint

-- name: runs_with_key
-- Runs that have a key, newest first.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run WHERE key = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3

-- name: runs_filtered
-- Runs by flow and tags, newest first.
SELECT
    seq, id, flow, graph, params, consts, tags, priority, key, kind, generation, state, verdict,
    lane, waits_for, queued_at, started_at, ended_at, deadline_at, queue_timeout_us,
    dispatch_deadline_us, output, error, trace
FROM locktender.run
WHERE seq < $1 AND seq >= $5 AND (kind <> 'hold' OR $2::text IS NOT NULL) AND ($2::text IS NULL OR flow = $2)
    AND CASE WHEN position($6::text IN tags) > 0 THEN $3::text = '{}' OR tags::jsonb @> $3::jsonb ELSE false END
ORDER BY seq DESC LIMIT $4

-- name: runs_filtered_by_state
-- The same where states are named: the newest of each, by the index on them. As a row, so that no other
-- index serves it: where nearly all runs are queued, the newest failed one is far behind them.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM unnest($7::text[]) s (state) CROSS JOIN LATERAL (
    SELECT * FROM locktender.run
    WHERE (run.state, run.seq) >= (s.state, $5::bigint) AND (run.state, run.seq) < (s.state, $1::bigint)
        AND (kind <> 'hold' OR $2::text IS NOT NULL) AND ($2::text IS NULL OR flow = $2)
        AND CASE WHEN position($6::text IN tags) > 0 THEN $3::text = '{}' OR tags::jsonb @> $3::jsonb ELSE false END
    ORDER BY run.state DESC, run.seq DESC LIMIT $4
) r
ORDER BY r.seq DESC LIMIT $4

-- name: graphs_executing
-- Graphs of the runs that execute.
SELECT hash, body FROM locktender.graph
WHERE hash IN (SELECT graph FROM locktender.run WHERE state IN ('running', 'cancelling'))

-- name: graph_get
-- One graph.
SELECT body FROM locktender.graph WHERE hash = $1

-- name: tasks_executing
-- All tasks of the runs that execute, by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM locktender.run r JOIN locktender.task t ON t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
WHERE r.state IN ('running', 'cancelling')
ORDER BY t.id

-- name: tasks_executing_count
-- How many tasks the executing runs have, at most so many.
SELECT count(*) FROM (
    SELECT 1 FROM locktender.run r JOIN locktender.task t ON t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
    WHERE r.state IN ('running', 'cancelling')
    LIMIT $1
) t

-- name: answer_get
-- What the leader answered.
SELECT body FROM locktender.answer WHERE question = $1

-- name: tasks_of_run
-- All tasks of one run, by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM locktender.task t WHERE t.id >= $1::bigint << 20 AND t.id < ($1 + 1) << 20 ORDER BY t.id

-- name: tasks_counted
-- How many tasks of one run are in which state, by step.
SELECT node, state, count(*) AS tasks FROM locktender.task
WHERE id >= $1::bigint << 20 AND id < ($1 + 1) << 20 GROUP BY node, state

-- name: tasks_some
-- Tasks of one run behind a number, of some steps and in some states (null: all), by id.
SELECT
    t.id, t.node, t.idx, t.state, t.attempt, t.tries, t.abandons, t.offers, t.token, t.worker,
    t.held, t.input, t.output, t.error, t.requested_at, t.scheduled_at, t.started_at, t.ended_at,
    t.not_before, t.eligible_at
FROM locktender.task t
WHERE t.id >= greatest($1::bigint << 20, $2::bigint + 1) AND t.id < ($1 + 1) << 20
    AND ($3::bigint[] IS NULL OR t.node = ANY($3))
    AND ($4::text[] IS NULL OR t.state = ANY($4))
ORDER BY t.id LIMIT $5

-- name: ended_tasks
-- How these tasks have ended.
SELECT t.id, t.token, t.state, t.output, t.error
FROM unnest($1::bigint[]) v (id) JOIN locktender.task t ON t.id = v.id

-- name: logs_list
-- What attempts of a run logged, by task and token.
SELECT task, token, attempt, body, lines, last_at FROM locktender.log
WHERE task >= $1::bigint << 20 AND task < ($1::bigint + 1) << 20 AND ($2::bigint IS NULL OR task = $2)
    AND (task, token) > ($3::bigint, $4::bigint)
ORDER BY task, token LIMIT $5::bigint

-- name: logs_newest
-- Attempts of a run that have logged, the one with the newest line first; behind a place.
SELECT l.task, l.token, l.attempt, l.body, l.lines, l.last_at, t.node, t.idx
FROM locktender.log l JOIN locktender.task t ON t.id = l.task
WHERE l.task >> 20 = $1::bigint
    AND (l.last_at, l.task, l.token) < ($2::bigint, $3::bigint, $4::bigint)
ORDER BY l.last_at DESC, l.task DESC, l.token DESC LIMIT $5::bigint

-- name: logs_newest_of_task
-- The same of one task.
SELECT l.task, l.token, l.attempt, l.body, l.lines, l.last_at, t.node, t.idx
FROM locktender.log l JOIN locktender.task t ON t.id = l.task
WHERE l.task = $1::bigint
    AND (l.last_at, l.task, l.token) < ($2::bigint, $3::bigint, $4::bigint)
ORDER BY l.last_at DESC, l.task DESC, l.token DESC LIMIT $5::bigint

-- name: log_total
-- How many attempts of a run have logged, and how many lines; of a bounded number of them.
SELECT count(*), coalesce(sum(lines), 0)::bigint FROM (
    SELECT lines FROM locktender.log
    WHERE task >= $1::bigint << 20 AND task < ($1::bigint + 1) << 20 AND ($2::bigint IS NULL OR task = $2::bigint)
    LIMIT $3::bigint
) l

-- name: log_counts
-- How many lines each attempt of a run has logged.
SELECT task, token, lines FROM locktender.log
WHERE task >= $1::bigint << 20 AND task < ($1::bigint + 1) << 20 AND ($2::bigint IS NULL OR task = $2)

-- name: workers_list
-- All workers.
SELECT w.id, w.body, w.since, w.lease_until, s.unanswered, s.until
FROM locktender.worker w LEFT JOIN locktender.silence s ON s.worker = w.id
ORDER BY w.since, w.id COLLATE "C"

-- name: workers_version
-- Changes when a worker joins, leaves or describes itself anew.
SELECT coalesce((SELECT value FROM locktender.workers_version), 0)

-- name: bucket_list
-- The state of rates.
SELECT pool, tat FROM locktender.bucket ORDER BY pool COLLATE "C"

-- name: reservation_list
-- Slots kept free for waiters.
SELECT task, pool, slots FROM locktender.reservation ORDER BY task, pool COLLATE "C"

-- name: unplaced_list
-- Executing runs without a place.
SELECT run FROM locktender.unplaced ORDER BY run

-- name: kept_list
-- Runs that have begun, have no place now, and keep it at some limits of tags.
SELECT u.run, r.id, r.tags, u.keeps, r.started_at
FROM locktender.unplaced u
CROSS JOIN LATERAL (SELECT * FROM locktender.run WHERE run.seq = u.run OFFSET 0) r
WHERE u.keeps IS NOT NULL AND r.state IN ('waiting', 'queued', 'running', 'cancelling') AND r.started_at <> 0
ORDER BY u.run

-- name: linger_list
-- Slots of dead workers that their pool's lease still holds.
SELECT task, token, pool, slots, until, worker FROM locktender.linger ORDER BY task, token, pool COLLATE "C"

-- name: last_run
-- The highest number of a run.
SELECT value FROM locktender.meta WHERE name = 'last_run'

-- name: lanes_queued
-- Lanes that have queued runs: one seek per lane, however long they are.
WITH RECURSIVE l (lane) AS (
    (SELECT lane FROM locktender.queue ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (SELECT q.lane FROM locktender.queue q WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1)
    FROM l WHERE l.lane IS NOT NULL
)
SELECT lane FROM l WHERE lane IS NOT NULL

-- name: request_list
-- What clients ask, oldest first.
SELECT seq, body, taken FROM locktender.request ORDER BY seq LIMIT $1

-- name: stop_list
-- Stop orders not yet obeyed.
SELECT worker, task, token, kind, reason FROM locktender.orders WHERE kind = 'stop' AND task >= 0 ORDER BY task

-- name: events_after
-- What others committed since a snapshot: events of transactions that were in progress then ($1: the first
-- number of each), and of those that began later (from $2 on). Of a page that was cut off: what stands
-- behind $3 and was visible to it (below $4, but not the transactions $5).
SELECT seq, at, term, cycle, actor, run, body FROM (
    SELECT e.* FROM unnest($1::bigint[]) o (first) CROSS JOIN LATERAL (
        SELECT seq, at, term, cycle, actor, run, body FROM locktender.event
        WHERE seq >= o.first AND seq < o.first + 1048576 AND seq > $3::bigint
            AND NOT (seq >> 20 << 20 = ANY($5::bigint[]))
            AND actor <> $6::text AND ($7::bigint IS NULL OR run = $7)
        ORDER BY seq LIMIT $8::bigint
    ) e
    UNION ALL
    (
        SELECT seq, at, term, cycle, actor, run, body FROM locktender.event
        WHERE seq >= $2::bigint AND seq > $3 AND seq < $4::bigint AND NOT (seq >> 20 << 20 = ANY($5))
            AND actor <> $6 AND ($7 IS NULL OR run = $7)
        ORDER BY seq LIMIT $8
    )
) found ORDER BY seq LIMIT $8

-- name: events_all
-- The history.
SELECT seq, at, term, cycle, actor, run, body FROM locktender.event WHERE seq > $1 ORDER BY seq LIMIT $2

-- name: events_newest
-- The end of the history, the last first.
SELECT seq, at, term, cycle, actor, run, body FROM locktender.event
WHERE seq > $1 ORDER BY seq DESC LIMIT $2

-- name: events_of_run
-- The history of one run.
SELECT seq, at, term, cycle, actor, run, body FROM locktender.event
WHERE run = $1 AND seq > $2 ORDER BY seq LIMIT $3

-- name: heads
-- The first runs of each lane: the work is what is returned, not what is queued. A place of no run counts as none:
-- a lane that answers with fewer runs than it was asked for has no more.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM (
    SELECT q.run, q.place FROM unnest($1::bigint[]) v (lane) CROSS JOIN LATERAL (
        SELECT f.rank1, f.rank2, f.run, row_number() OVER (ORDER BY f.rank1, f.rank2, f.run) AS place
        FROM (
            -- As a range, so that only the index by lane gives the order: where one lane has nearly all, a
            -- short one would be looked for in all of the queue.
            SELECT rank1, rank2, run FROM locktender.queue
            WHERE queue.lane >= v.lane AND queue.lane <= v.lane
                AND (SELECT true FROM locktender.run WHERE run.seq = queue.run)
            ORDER BY lane, rank1, rank2, run LIMIT $2
        ) f
    ) q
    ORDER BY q.place, q.rank1, q.rank2, q.run LIMIT $3
) h JOIN locktender.run r ON r.seq = h.run
ORDER BY r.lane, r.rank1, r.rank2, r.seq

-- name: queue_list
-- Queued runs in their global order, behind the place of one of them.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM (
    SELECT rank1, rank2, run FROM locktender.queue WHERE (rank1, rank2, run) > ($2, $3, $4)
    ORDER BY rank1, rank2, run LIMIT $1
) q
CROSS JOIN LATERAL (SELECT * FROM locktender.run WHERE run.seq = q.run OFFSET 0) r
ORDER BY q.rank1, q.rank2, q.run

-- name: rank_of
-- Where a run stands in the order, or stood when it was queued.
SELECT rank1, rank2, seq FROM locktender.run WHERE seq = $1

-- name: queue_by_lane
-- The longest lanes of the queue, with what they wait for and how many runs.
SELECT l.signature, q.waiting
FROM (
    SELECT lane, count(*) AS waiting FROM locktender.queue GROUP BY lane ORDER BY waiting DESC LIMIT $1
) q
JOIN locktender.lane l ON l.id = q.lane

-- name: runs_lately
-- Of the newest runs ($1) the states and times of those queued since $2, or started or ended since $3; the last row
-- says how many are the newest, and when the oldest of them was queued.
WITH newest AS MATERIALIZED (
    SELECT seq, state, queued_at, started_at, ended_at FROM locktender.run WHERE kind <> 'hold'
    ORDER BY seq DESC LIMIT $1
)
SELECT seq, state, queued_at, started_at, ended_at FROM newest
WHERE queued_at >= $2 OR started_at >= $3 OR ended_at >= $3
UNION ALL
SELECT 0, '', count(*), coalesce(min(queued_at), 0), 0 FROM newest
ORDER BY 1 DESC

-- name: queue_place
-- Where a queued run stands in its lane.
SELECT lane, rank1, rank2 FROM locktender.run WHERE seq = $1 AND state = 'queued'

-- name: queue_counts
-- A run's lane; how many are read before and behind it, and how many of them are no holds; how many stand before
-- it in its lane; how many are queued in all.
SELECT
    (SELECT signature FROM locktender.lane WHERE id = $1),
    a.counted, a.flows, b.counted, b.flows,
    -- As a row, so that only the index by lane can serve it.
    (SELECT count(*) FROM (
        SELECT 1 FROM locktender.queue
        WHERE lane >= $1 AND (lane, rank1, rank2, run) < ($1, $2::bigint, $3::bigint, $4::bigint)
        ORDER BY lane DESC, rank1 DESC, rank2 DESC, run DESC LIMIT $5
    ) q),
    (SELECT admitted FROM locktender.counter WHERE name = '')
    - (SELECT closed FROM locktender.closed WHERE name = '')
    - (SELECT count(*) FROM locktender.run
        WHERE state IN ('running', 'cancelling', 'held') AND kind <> 'hold')
FROM (
    SELECT coalesce(
        (SELECT id FROM locktender.lane WHERE digest = sha256(convert_to($6, 'UTF8'))), 0
    ) AS hold
) l
CROSS JOIN LATERAL (
    SELECT count(*) AS counted, count(*) FILTER (WHERE q.lane <> l.hold) AS flows FROM (
        SELECT lane FROM locktender.queue
        WHERE (rank1, rank2, run) < ($2::bigint, $3::bigint, $4::bigint)
        ORDER BY rank1 DESC, rank2 DESC, run DESC LIMIT $5
    ) q
) a
CROSS JOIN LATERAL (
    SELECT count(*) AS counted, count(*) FILTER (WHERE q.lane <> l.hold) AS flows FROM (
        SELECT lane FROM locktender.queue
        WHERE (rank1, rank2, run) > ($2::bigint, $3::bigint, $4::bigint)
        ORDER BY rank1, rank2, run LIMIT $5
    ) q
) b

-- name: queue_before
-- Queued runs before a place, by lane and rank.
SELECT l.signature, g.rank1, g.waiting, g.waiting AS older
FROM (
    SELECT q.lane, q.rank1, count(*) AS waiting
    FROM (
        SELECT lane, rank1 FROM locktender.queue
        WHERE (rank1, rank2, run) < ($1::bigint, $2::bigint, $3::bigint)
        ORDER BY rank1 DESC, rank2 DESC, run DESC LIMIT $4
    ) q
    GROUP BY q.lane, q.rank1 LIMIT $5
) g
CROSS JOIN LATERAL (SELECT signature FROM locktender.lane WHERE lane.id = g.lane OFFSET 0) l

-- name: queue_line
-- Queued runs but those of lower priority than one of them, by lane: how many, and how many before its place.
SELECT l.signature, g.rank1, g.waiting, g.older
FROM (
    SELECT q.lane, q.rank1, count(*) AS waiting,
        count(*) FILTER (WHERE (q.rank1, q.rank2, q.run) < ($2::bigint, $3::bigint, $4::bigint)) AS older
    FROM (
        (SELECT lane, rank1, rank2, run FROM locktender.queue
        WHERE lane = $1::bigint AND rank1 <= $2::bigint ORDER BY lane, rank1, rank2, run LIMIT $5)
        UNION ALL
        (SELECT lane, rank1, rank2, run FROM locktender.queue
        WHERE lane < $1::bigint AND rank1 <= $2::bigint ORDER BY lane, rank1, rank2, run LIMIT $5)
        UNION ALL
        (SELECT lane, rank1, rank2, run FROM locktender.queue
        WHERE lane > $1::bigint AND rank1 <= $2::bigint ORDER BY lane, rank1, rank2, run LIMIT $5)
    ) q
    GROUP BY q.lane, q.rank1
    ORDER BY q.lane <> $1::bigint LIMIT $6
) g
CROSS JOIN LATERAL (SELECT signature FROM locktender.lane WHERE lane.id = g.lane OFFSET 0) l

-- name: runs_placed
-- Runs that execute, or are held and have something in flight, by seq; without their values.
SELECT
    r.seq, r.id, r.flow, r.graph, '{}'::bytea AS params, '[]'::bytea AS consts, r.tags, r.priority,
    r.key, r.kind, r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at,
    r.ended_at, r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, NULL::bytea AS output,
    NULL::bytea AS error, NULL::text AS trace
FROM locktender.run r
WHERE r.state IN ('running', 'cancelling', 'held') AND r.kind = 'flow'
    AND (r.state <> 'held' OR EXISTS (
        SELECT 1 FROM locktender.task t WHERE t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
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
FROM unnest(ARRAY['succeeded', 'failed']) s (state)
CROSS JOIN LATERAL (
    SELECT flow, started_at, ended_at FROM locktender.run
    WHERE (run.state, run.seq) >= (s.state, 0) AND (run.state, run.seq) < (s.state, $3::bigint)
    ORDER BY run.state DESC, run.seq DESC LIMIT $2
) e
WHERE e.flow = (SELECT flow FROM locktender.run WHERE seq = $1) AND e.started_at > 0 AND e.ended_at > 0

-- name: counter_list
-- All counters.
SELECT c.name, c.admitted, coalesce(d.closed, 0)
FROM locktender.counter c LEFT JOIN locktender.closed d ON d.name = c.name

-- name: run_counts
-- Runs that are queued, that execute, and that wait for their time.
SELECT
    (SELECT count(*) FROM locktender.queue),
    (SELECT count(*) FROM locktender.run WHERE state IN ('running', 'cancelling')),
    (SELECT count(*) FROM locktender.run WHERE state = 'waiting')

-- name: open_runs
-- Runs that are queued, that execute, are held, and wait; those that count under the admission ceiling; and when
-- the run was queued that has waited longest, found by the first of each priority.
WITH RECURSIVE priorities (rank1, n) AS (
    SELECT min(q.rank1), 1 FROM locktender.queue q
    UNION ALL
    SELECT (SELECT min(q.rank1) FROM locktender.queue q WHERE q.rank1 > p.rank1), p.n + 1
    FROM priorities p WHERE p.rank1 IS NOT NULL AND p.n < 100
), heads (run) AS (
    SELECT (SELECT q.run FROM locktender.queue q WHERE q.rank1 = p.rank1 ORDER BY q.rank2, q.run LIMIT 1)
    FROM priorities p WHERE p.rank1 IS NOT NULL
)
SELECT
    (SELECT count(*) FROM locktender.queue),
    (SELECT count(*) FROM locktender.run WHERE state IN ('running', 'cancelling')),
    (SELECT count(*) FROM locktender.run WHERE state = 'held'),
    (SELECT count(*) FROM locktender.waiting),
    (
        SELECT c.admitted - coalesce(d.closed, 0)
        FROM locktender.counter c LEFT JOIN locktender.closed d ON d.name = c.name WHERE c.name = ''
    ),
    coalesce((SELECT min(r.queued_at) FROM locktender.run r WHERE r.seq IN (SELECT run FROM heads)), 0)

-- name: slots_held
-- What tasks in flight hold, and how many of them hold the same.
SELECT t.held, count(*)
FROM locktender.run r JOIN locktender.task t ON t.id >= r.seq << 20 AND t.id < (r.seq + 1) << 20
WHERE r.state IN ('running', 'cancelling', 'held')
    AND t.state IN ('scheduled', 'running') AND t.held IS NOT NULL
GROUP BY t.held
