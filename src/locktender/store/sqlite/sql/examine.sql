-- name: runs_end
-- The last of a part of all runs, newest first.
SELECT seq FROM run WHERE seq < ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2

-- name: runs_end_by_state
-- The same of runs in these states: of each the part is whole.
SELECT max((
    SELECT r.seq FROM run r WHERE r.state = s.value AND r.seq < ?1 ORDER BY r.seq DESC LIMIT 1 OFFSET ?2
))
FROM json_each(?3) s

-- name: ids_end
-- The last of a part of the ids in a range.
SELECT id FROM run WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT 1 OFFSET ?3

-- name: ids_part
-- Of a part of the ids in a range, runs with these tags.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace
FROM run r WHERE r.id >= ?1 AND r.id <= ?2
    AND instr(r.tags, ?3) AND NOT EXISTS (
        SELECT 1 FROM json_each(?4) want WHERE NOT EXISTS (
            SELECT 1 FROM json_each(iif(json_valid(r.tags), r.tags, '{}')) have
            WHERE have.key = want.key AND have.value = want.value
        )
    )
ORDER BY r.id LIMIT ?5

-- name: queue_end
-- The last of a part of the queue.
SELECT rank1, rank2, run FROM queue WHERE (rank1, rank2, run) > (?1, ?2, ?3)
ORDER BY rank1, rank2, run LIMIT 1 OFFSET ?4

-- name: queue_part
-- Of a part of the queue, runs with these tags, each with its place in the part.
SELECT
    r.seq, r.id, r.flow, r.graph, r.params, r.consts, r.tags, r.priority, r.key, r.kind,
    r.generation, r.state, r.verdict, r.lane, r.waits_for, r.queued_at, r.started_at, r.ended_at,
    r.deadline_at, r.queue_timeout_us, r.dispatch_deadline_us, r.output, r.error, r.trace,
    q.place
FROM (
    SELECT run, row_number() OVER (ORDER BY rank1, rank2, run) AS place FROM queue
    WHERE (rank1, rank2, run) > (?1, ?2, ?3) AND (rank1, rank2, run) <= (?4, ?5, ?6)
) q CROSS JOIN run r ON r.seq = q.run
WHERE instr(r.tags, ?7) AND NOT EXISTS (
        SELECT 1 FROM json_each(?8) want WHERE NOT EXISTS (
            SELECT 1 FROM json_each(iif(json_valid(r.tags), r.tags, '{}')) have
            WHERE have.key = want.key AND have.value = want.value
        )
    )
ORDER BY q.place LIMIT ?9

-- name: events_end
-- The last of a part of the history, the last event first.
SELECT seq FROM event WHERE seq < ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2

-- name: events_part
-- Of a part of the history, what concerns runs with these tags; without tags all of it, also of no run.
SELECT e.seq, e.at, e.term, e.cycle, e.actor, e.run, e.body
FROM event e LEFT JOIN run r ON r.seq = e.run
WHERE e.seq < ?1 AND e.seq >= ?2 AND (
        ?4 = '{}' OR instr(r.tags, ?3) AND NOT EXISTS (
            SELECT 1 FROM json_each(?4) want WHERE NOT EXISTS (
                SELECT 1 FROM json_each(iif(json_valid(r.tags), r.tags, '{}')) have
                WHERE have.key = want.key AND have.value = want.value
            )
        )
    )
ORDER BY e.seq DESC LIMIT ?5

-- name: waits_end
-- The last of a part of the waits for events.
SELECT until, task FROM event_wait WHERE (until, task) > (?1, ?2) ORDER BY until, task LIMIT 1 OFFSET ?3

-- name: waits_part
-- Of a part of the waits for events, those of runs with these tags.
SELECT w.task, w.run, w.name, w.match, w.since, w.until, r.id, r.flow
FROM event_wait w CROSS JOIN run r ON r.seq = w.run
WHERE (w.until, w.task) > (?1, ?2) AND (w.until, w.task) <= (?3, ?4) AND r.state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out')
    AND instr(r.tags, ?5) AND NOT EXISTS (
        SELECT 1 FROM json_each(?6) want WHERE NOT EXISTS (
            SELECT 1 FROM json_each(iif(json_valid(r.tags), r.tags, '{}')) have
            WHERE have.key = want.key AND have.value = want.value
        )
    )
ORDER BY w.until, w.task LIMIT ?7
