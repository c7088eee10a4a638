-- name: prune_candidates
-- The next runs by number: whether each may go (it ended before ?3, all its events are checked, nobody
-- waits for it, it has no key in use and no slots that a pool's lease still holds), and its tasks.
SELECT
    c.seq, c.queued_at, c.ended_at, c.generation, c.goes,
    CASE WHEN c.goes THEN (
        SELECT count(*) FROM task t WHERE t.id >= c.seq << 20 AND t.id < (c.seq + 1) << 20
    ) ELSE 0 END
FROM (
    SELECT
        r.seq, r.queued_at, r.ended_at, r.generation,
        r.state IN ('cancelled', 'failed', 'succeeded', 'timed_out')
            AND r.ended_at > 0 AND r.ended_at < ?3
            AND NOT EXISTS (SELECT 1 FROM run w WHERE w.waits_for = r.seq)
            AND NOT EXISTS (SELECT 1 FROM active_key a WHERE a.key = r.key AND a.run = r.seq)
            AND NOT EXISTS (
                SELECT 1 FROM linger l WHERE l.task >= r.seq << 20 AND l.task < (r.seq + 1) << 20
            )
            AND NOT EXISTS (SELECT 1 FROM event e WHERE e.run = r.seq AND e.seq > ?4) AS goes
    FROM run r WHERE r.seq > ?1 AND r.seq < ?2 ORDER BY r.seq LIMIT ?5
) c
ORDER BY c.seq

-- name: prune_count
-- How much history and how many tasks runs have.
SELECT
    (SELECT count(*) FROM json_each(?1) v CROSS JOIN task t
        ON t.id >= v.value << 20 AND t.id < (v.value + 1) << 20),
    (SELECT count(*) FROM json_each(?1) v CROSS JOIN event e ON e.run = v.value)

-- name: prune_tasks
-- The tasks of runs.
DELETE FROM task WHERE id IN (
    SELECT t.id FROM json_each(?) v CROSS JOIN task t
        ON t.id >= v.value << 20 AND t.id < (v.value + 1) << 20
)

-- name: prune_logs
-- What their bodies logged.
DELETE FROM log WHERE task IN (
    SELECT l.task FROM json_each(?) v CROSS JOIN log l
        ON l.task >= v.value << 20 AND l.task < (v.value + 1) << 20
)

-- name: prune_inputs
-- What the items of their mapped steps shared.
DELETE FROM node_input WHERE run IN (SELECT value FROM json_each(?))

-- name: prune_mail
-- What was sent to them.
DELETE FROM mail WHERE run IN (SELECT value FROM json_each(?))

-- name: prune_mail_taken
-- What of it they took, and of topics.
DELETE FROM mail_taken WHERE run IN (SELECT value FROM json_each(?))

-- name: prune_event_waits
-- Waits of runs that ended while they were held.
DELETE FROM event_wait WHERE run IN (SELECT value FROM json_each(?))

-- name: prune_orders
-- Orders for their tasks that were never obeyed.
DELETE FROM orders WHERE task IN (
    SELECT o.task FROM json_each(?) v CROSS JOIN orders o
        ON o.task >= v.value << 20 AND o.task < (v.value + 1) << 20
)

-- name: prune_events
-- Their history.
DELETE FROM event WHERE run IN (SELECT value FROM json_each(?))

-- name: thin_count
-- How many of these rows there are.
SELECT count(*) FROM event WHERE run = ?1 AND seq IN (SELECT value FROM json_each(?2))

-- name: thin_events
-- Rows of no run, or about the history (?1), by number.
DELETE FROM event WHERE run = ?1 AND seq IN (SELECT value FROM json_each(?2))

-- name: prune_runs
-- The runs themselves.
DELETE FROM run WHERE seq IN (SELECT value FROM json_each(?))

-- name: references
-- The next runs by number, with the graph each names and the values that may stand for blobs.
SELECT
    r.seq, r.graph,
    CASE WHEN instr(r.params, ?3) THEN r.params END, CASE WHEN instr(r.consts, ?3) THEN r.consts END,
    CASE WHEN instr(r.output, ?3) THEN r.output END, CASE WHEN instr(r.error, ?3) THEN r.error END
FROM run r WHERE r.seq > ?1 ORDER BY r.seq LIMIT ?2

-- name: references_of_tasks
-- Values of the tasks of runs in a range that may stand for blobs.
SELECT
    CASE WHEN instr(input, ?3) THEN input END, CASE WHEN instr(output, ?3) THEN output END,
    CASE WHEN instr(error, ?3) THEN error END
FROM task WHERE id >= ?1 << 20 AND id < (?2 + 1) << 20
    AND (instr(input, ?3) OR instr(output, ?3) OR instr(error, ?3))

-- name: references_of_inputs
-- The same of what items of mapped steps share.
SELECT input FROM node_input WHERE run >= ?1 AND run <= ?2 AND instr(input, ?3)

-- name: references_beside_runs
-- The same of kept results, schedules, events that were sent, and submissions that are no runs yet.
SELECT output FROM cached_result WHERE instr(output, ?1)
UNION ALL SELECT declared FROM schedule WHERE instr(declared, ?1)
UNION ALL SELECT live FROM schedule WHERE instr(live, ?1)
UNION ALL SELECT payload FROM mail WHERE instr(payload, ?1)
UNION ALL SELECT body FROM outbox WHERE answer IS NULL AND instr(body, ?1)

-- name: graph_names
-- The next stored graphs by name.
SELECT hash FROM graph WHERE hash > ? ORDER BY hash LIMIT ?

-- name: graphs_remove
-- Graphs that no run names; those behind ?2 came after the others were looked at.
DELETE FROM graph WHERE hash IN (SELECT value FROM json_each(?1))
    AND hash NOT IN (SELECT graph FROM run WHERE seq > ?2)

-- name: event_readers
-- Who reads the history, and how far each has come.
SELECT name, cursor, at FROM event_reader ORDER BY name

-- name: event_reader_put
-- How far a reader has come.
INSERT INTO event_reader (name, cursor, at) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET cursor = excluded.cursor, at = excluded.at

-- name: event_reader_remove
-- A reader that is not to be remembered.
DELETE FROM event_reader WHERE name = ?

-- name: audit_state
-- Where the last audit ended.
SELECT seq, at, version, batches, body FROM audit_state

-- name: audit_state_put
-- Where the next audit may begin.
INSERT INTO audit_state (one, seq, at, version, batches, body) VALUES (1, ?1, ?2, ?3, ?4, ?5)
ON CONFLICT (one) DO UPDATE SET
    seq = excluded.seq, at = excluded.at, version = excluded.version, batches = excluded.batches,
    body = excluded.body
