-- name: mail_target
-- The run that an event is sent to, how much is in its mailbox, whether the event was sent before, and whether the
-- wait that it answers stands (task 0: any).
SELECT
    r.seq, r.state,
    (SELECT count(*) FROM mail m WHERE m.run = r.seq
        AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = r.seq AND t.n = m.n)),
    EXISTS (SELECT 1 FROM mail m WHERE m.run = r.seq AND m.name = ?2 AND m.id = ?3),
    ?4 = 0 OR EXISTS (SELECT 1 FROM event_wait w WHERE w.task = ?4 AND w.run = r.seq AND w.since = ?5)
FROM run r WHERE r.id = ?1

-- name: mail_sent
-- Whether an event was sent to a topic before.
SELECT EXISTS (SELECT 1 FROM mail WHERE run = 0 AND name = ?1 AND id = ?2)

-- name: mail_add
-- Store an event; its number.
INSERT INTO mail (run, name, id, match, at, payload, task) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING n

-- name: mail_forget
-- Events of a topic that no run can get any more.
DELETE FROM mail WHERE run = 0 AND name = ?1 AND at < ?2

-- name: mail_ready
-- Of these runs: each task that waits for an event, and the first that it can take.
SELECT w.run, w.task, m.n, m.name, m.payload
FROM json_each(?) v CROSS JOIN event_wait w ON w.run = v.value
JOIN mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM mail d WHERE d.run = w.run AND d.name = w.name AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM run r WHERE r.seq = w.run)
                AND CASE WHEN json_valid(d.match) AND json_valid(w.match) THEN NOT EXISTS (
                    SELECT 1 FROM json_each(d.match) e WHERE json_extract(w.match, e.fullkey) IS NOT e.value
                ) END
                AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
ORDER BY m.n, w.task

-- name: mailed_runs
-- Those of these runs that wait, and have mail that a task of them can take.
SELECT run FROM waiting WHERE run IN (SELECT value FROM json_each(?1)) AND EXISTS (
    SELECT 1 FROM event_wait w JOIN mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM mail d WHERE d.run = w.run AND d.name = w.name AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM run r WHERE r.seq = w.run)
                AND CASE WHEN json_valid(d.match) AND json_valid(w.match) THEN NOT EXISTS (
                    SELECT 1 FROM json_each(d.match) e WHERE json_extract(w.match, e.fullkey) IS NOT e.value
                ) END
                AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
    WHERE w.run = waiting.run
)

-- name: all_mailed_runs
-- The same, of all runs that wait.
SELECT run FROM waiting WHERE run IN (
    SELECT w.run FROM event_wait w JOIN mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM mail d WHERE d.run = w.run AND d.name = w.name AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM run r WHERE r.seq = w.run)
                AND CASE WHEN json_valid(d.match) AND json_valid(w.match) THEN NOT EXISTS (
                    SELECT 1 FROM json_each(d.match) e WHERE json_extract(w.match, e.fullkey) IS NOT e.value
                ) END
                AND NOT EXISTS (SELECT 1 FROM mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
)

-- name: wake_now
-- These waiting runs are to be woken now.
UPDATE waiting SET wake_at = ?2 WHERE run IN (SELECT value FROM json_each(?1)) AND wake_at > ?2

-- name: topic_waiters
-- Runs with a task that waits for these events of topics.
SELECT DISTINCT w.run FROM json_each(?) v CROSS JOIN mail d ON d.n = v.value
JOIN event_wait w ON w.name = d.name
WHERE CASE WHEN json_valid(d.match) AND json_valid(w.match) THEN NOT EXISTS (
    SELECT 1 FROM json_each(d.match) e WHERE json_extract(w.match, e.fullkey) IS NOT e.value
) END

-- name: event_wait_add
-- Tasks that wait for an event from now on.
INSERT INTO event_wait (task, run, name, match, since, until) VALUES /*rows*/ (?, ?, ?, ?, ?, ?)
ON CONFLICT (task) DO UPDATE SET name = excluded.name, match = excluded.match, since = excluded.since,
    until = excluded.until

-- name: event_wait_remove
-- Tasks that wait no more.
DELETE FROM event_wait WHERE task IN (SELECT value FROM json_each(?))

-- name: mail_take
-- Events that runs have consumed.
INSERT INTO mail_taken (run, n, task) VALUES /*rows*/ (?, ?, ?)

-- name: event_waits
-- Tasks that wait for an event, those that time out first before others.
SELECT w.task, w.run, w.name, w.match, w.since, w.until, r.id, r.flow
FROM event_wait w CROSS JOIN run r ON r.seq = w.run WHERE r.state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out')
ORDER BY w.until, w.task LIMIT ?

-- name: event_waits_of
-- The same of one run.
SELECT w.task, w.run, w.name, w.match, w.since, w.until, r.id, r.flow
FROM run r CROSS JOIN event_wait w ON w.run = r.seq WHERE r.id = ? AND r.state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out')
ORDER BY w.until, w.task LIMIT ?

-- name: event_key
-- By which tokens are signed.
SELECT secret FROM event_key WHERE id = 1

-- name: event_key_add
-- Unless another was faster.
INSERT INTO event_key (id, secret) VALUES (1, ?) ON CONFLICT (id) DO NOTHING
