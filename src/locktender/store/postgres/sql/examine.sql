-- name: runs_end
-- The last of a part of all runs, newest first.
SELECT seq FROM locktender.run WHERE seq < $1 ORDER BY seq DESC LIMIT 1 OFFSET $2

-- name: runs_end_by_state
-- The same of runs in these states: of each the part is whole.
SELECT max(r.seq)
FROM unnest($3::text[]) s (state) CROSS JOIN LATERAL (
    SELECT run.seq FROM locktender.run
    WHERE (run.state, run.seq) >= (s.state, 0) AND (run.state, run.seq) < (s.state, $1::bigint)
    ORDER BY run.state DESC, run.seq DESC LIMIT 1 OFFSET $2
) r

-- name: ids_end
-- The last of a part of the ids in a range.
SELECT id FROM locktender.run WHERE id COLLATE "C" >= $1 AND id COLLATE "C" < $2
ORDER BY id COLLATE "C" LIMIT 1 OFFSET $3

-- name: ids_part
-- Of a part of the ids in a range, runs with these tags.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM locktender.run r WHERE r.id COLLATE "C" >= $1 AND r.id COLLATE "C" <= $2
    AND (CASE WHEN position($3::text IN r.tags) > 0 THEN r.tags::jsonb @> $4::text::jsonb ELSE false END)
ORDER BY r.id COLLATE "C" LIMIT $5

-- name: queue_end
-- The last of a part of the queue.
SELECT rank1, rank2, run FROM locktender.queue WHERE (rank1, rank2, run) > ($1, $2, $3)
ORDER BY rank1, rank2, run LIMIT 1 OFFSET $4

-- name: queue_part
-- Of a part of the queue, runs with these tags, each with its place in the part.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace,
    q.place
FROM (
    SELECT run, row_number() OVER (ORDER BY rank1, rank2, run) AS place FROM locktender.queue
    WHERE (rank1, rank2, run) > ($1, $2, $3) AND (rank1, rank2, run) <= ($4, $5, $6)
) q
CROSS JOIN LATERAL (SELECT * FROM locktender.run WHERE run.seq = q.run OFFSET 0) r
WHERE (CASE WHEN position($7::text IN r.tags) > 0 THEN r.tags::jsonb @> $8::text::jsonb ELSE false END)
ORDER BY q.place LIMIT $9

-- name: events_end
-- The last of a part of the history, the last event first.
SELECT seq FROM locktender.event WHERE seq < $1 ORDER BY seq DESC LIMIT 1 OFFSET $2

-- name: events_part
-- Of a part of the history, what concerns runs with these tags; without tags all of it, also of no run.
SELECT e.seq, e.at, e.term, e.cycle, e.actor, e.run, e.body
FROM (SELECT * FROM locktender.event WHERE seq < $1 AND seq >= $2 ORDER BY seq DESC) e
LEFT JOIN LATERAL (SELECT tags FROM locktender.run WHERE run.seq = e.run OFFSET 0) r ON true
WHERE $4::text = '{}'
    OR (CASE WHEN position($3::text IN r.tags) > 0 THEN r.tags::jsonb @> $4::text::jsonb ELSE false END)
ORDER BY e.seq DESC LIMIT $5

-- name: waits_end
-- The last of a part of the waits for events.
SELECT until, task FROM locktender.event_wait WHERE (until, task) > ($1, $2)
ORDER BY until, task LIMIT 1 OFFSET $3

-- name: waits_part
-- Of a part of the waits for events, those of runs with these tags.
SELECT w.task, w.run, w.name, w.match::text, w.since, w.until, r.id, r.flow
FROM (
    SELECT * FROM locktender.event_wait WHERE (until, task) > ($1, $2) AND (until, task) <= ($3, $4)
    ORDER BY until, task
) w
CROSS JOIN LATERAL (SELECT id, flow, state, tags FROM locktender.run WHERE run.seq = w.run OFFSET 0) r
WHERE r.state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out') AND (CASE WHEN position($5::text IN r.tags) > 0 THEN r.tags::jsonb @> $6::text::jsonb ELSE false END)
ORDER BY w.until, w.task LIMIT $7
