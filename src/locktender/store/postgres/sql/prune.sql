-- name: prune_candidates
-- The next runs by number: whether each may go (it ended before $3, all its events are checked, nobody
-- waits for it, it has no key in use and no slots that a pool's lease still holds), and its tasks. Not
-- by NOT EXISTS: within an expression the planner may read a whole table for it, once per batch.
SELECT
    c.seq, c.queued_at, c.ended_at, c.generation, c.goes,
    CASE WHEN c.goes THEN (
        SELECT count(*) FROM locktender.task t WHERE t.id >= c.seq << 20 AND t.id < (c.seq + 1) << 20
    ) ELSE 0 END
FROM (
    SELECT
        r.seq, r.queued_at, r.ended_at, r.generation,
        r.state IN ('cancelled', 'failed', 'succeeded', 'timed_out')
            AND r.ended_at > 0 AND r.ended_at < $3
            AND (SELECT true FROM locktender.run w WHERE w.waits_for = r.seq LIMIT 1) IS NULL
            AND (SELECT true FROM locktender.active_key a
                WHERE a.key = r.key AND a.run = r.seq LIMIT 1) IS NULL
            AND (SELECT true FROM locktender.linger l
                WHERE l.task >= r.seq << 20 AND l.task < (r.seq + 1) << 20 LIMIT 1) IS NULL
            AND (SELECT true FROM locktender.event e
                WHERE e.run = r.seq AND e.seq > $4 LIMIT 1) IS NULL AS goes
    FROM locktender.run r WHERE r.seq > $1 AND r.seq < $2 ORDER BY r.seq LIMIT $5
) c
ORDER BY c.seq

-- name: prune_count
-- How much history and how many tasks runs have.
SELECT
    (SELECT count(*) FROM unnest($1::bigint[]) v (run) JOIN locktender.task t
        ON t.id >= v.run << 20 AND t.id < (v.run + 1) << 20),
    (SELECT count(*) FROM unnest($1::bigint[]) v (run) JOIN locktender.event e ON e.run = v.run)

-- name: prune_tasks
-- The tasks of runs.
DELETE FROM locktender.task t USING unnest($1::bigint[]) v (run)
WHERE t.id >= v.run << 20 AND t.id < (v.run + 1) << 20

-- name: prune_logs
-- What their bodies logged.
DELETE FROM locktender.log l USING unnest($1::bigint[]) v (run)
WHERE l.task >= v.run << 20 AND l.task < (v.run + 1) << 20

-- name: prune_inputs
-- What the items of their mapped steps shared.
DELETE FROM locktender.node_input WHERE run = ANY($1::bigint[])

-- name: prune_mail
-- What was sent to them.
DELETE FROM locktender.mail WHERE run = ANY($1::bigint[])

-- name: prune_mail_taken
-- What of it they took, and of topics.
DELETE FROM locktender.mail_taken WHERE run = ANY($1::bigint[])

-- name: prune_event_waits
-- Waits of runs that ended while they were held.
DELETE FROM locktender.event_wait WHERE run = ANY($1::bigint[])

-- name: prune_orders
-- Orders for their tasks that were never obeyed.
DELETE FROM locktender.orders o USING unnest($1::bigint[]) v (run)
WHERE o.task >= v.run << 20 AND o.task < (v.run + 1) << 20

-- name: prune_events
-- Their history.
DELETE FROM locktender.event WHERE run = ANY($1::bigint[])

-- name: thin_count
-- How many of these rows there are.
SELECT count(*) FROM locktender.event WHERE run = $1 AND seq = ANY($2::bigint[])

-- name: thin_events
-- Rows of no run, or about the history ($1), by number.
DELETE FROM locktender.event WHERE run = $1 AND seq = ANY($2::bigint[])

-- name: prune_runs
-- The runs themselves.
DELETE FROM locktender.run WHERE seq = ANY($1::bigint[])

-- name: references
-- The next runs by number, with the graph each names and the values that may stand for blobs.
SELECT
    r.seq, r.graph,
    CASE WHEN position($3::bytea IN r.params) > 0 THEN r.params END,
    CASE WHEN position($3::bytea IN r.consts) > 0 THEN r.consts END,
    CASE WHEN position($3::bytea IN r.output) > 0 THEN r.output END,
    CASE WHEN position($3::bytea IN r.error) > 0 THEN r.error END
FROM locktender.run r WHERE r.seq > $1 ORDER BY r.seq LIMIT $2

-- name: references_of_tasks
-- Values of the tasks of runs in a range that may stand for blobs.
SELECT
    CASE WHEN position($3::bytea IN input) > 0 THEN input END,
    CASE WHEN position($3::bytea IN output) > 0 THEN output END,
    CASE WHEN position($3::bytea IN error) > 0 THEN error END
FROM locktender.task WHERE id >= $1::bigint << 20 AND id < ($2::bigint + 1) << 20
    AND (position($3::bytea IN input) > 0 OR position($3::bytea IN output) > 0
        OR position($3::bytea IN error) > 0)

-- name: references_of_inputs
-- The same of what items of mapped steps share.
SELECT input FROM locktender.node_input
WHERE run >= $1 AND run <= $2 AND position($3::bytea IN input) > 0

-- name: references_beside_runs
-- The same of kept results, schedules, events that were sent, and submissions that are no runs yet.
SELECT output FROM locktender.cached_result WHERE position($1::bytea IN output) > 0
UNION ALL SELECT declared FROM locktender.schedule WHERE position($1::bytea IN declared) > 0
UNION ALL SELECT live FROM locktender.schedule WHERE position($1::bytea IN live) > 0
UNION ALL SELECT payload FROM locktender.mail WHERE position($1::bytea IN payload) > 0
UNION ALL SELECT body FROM locktender.outbox WHERE answer IS NULL AND position($1::bytea IN body) > 0

-- name: graph_names
-- The next stored graphs by name.
SELECT hash FROM locktender.graph WHERE hash > $1 ORDER BY hash LIMIT $2

-- name: graphs_remove
-- Graphs that no run names; those behind $2 came after the others were looked at.
DELETE FROM locktender.graph WHERE hash = ANY($1::text[])
    AND NOT EXISTS (SELECT 1 FROM locktender.run r WHERE r.seq > $2 AND r.graph = graph.hash)
RETURNING hash

-- name: event_readers
-- Who reads the history, and how far each has come.
SELECT name, cursor, at FROM locktender.event_reader ORDER BY name

-- name: event_reader_put
-- How far a reader has come.
INSERT INTO locktender.event_reader (name, cursor, at) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET cursor = excluded.cursor, at = excluded.at

-- name: event_reader_remove
-- A reader that is not to be remembered.
DELETE FROM locktender.event_reader WHERE name = $1 RETURNING name

-- name: audit_state
-- Where the last audit ended.
SELECT seq, at, version, batches, body FROM locktender.audit_state

-- name: audit_state_put
-- Where the next audit may begin.
INSERT INTO locktender.audit_state (one, seq, at, version, batches, body) VALUES (1, $1, $2, $3, $4, $5)
ON CONFLICT (one) DO UPDATE SET
    seq = excluded.seq, at = excluded.at, version = excluded.version, batches = excluded.batches,
    body = excluded.body
