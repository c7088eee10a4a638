-- name: mail_target
-- The run that an event is sent to, how much is in its mailbox, whether the event was sent before, and whether the
-- wait that it answers stands (task 0: any).
SELECT
    r.seq, r.state,
    (SELECT count(*) FROM locktender.mail m WHERE m.run = r.seq
        AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = r.seq AND t.n = m.n)),
    EXISTS (SELECT 1 FROM locktender.mail m WHERE m.run = r.seq AND m.name = $2 AND m.id = $3),
    $4::bigint = 0 OR EXISTS (
        SELECT 1 FROM locktender.event_wait w WHERE w.task = $4 AND w.run = r.seq AND w.since = $5::bigint
    )
FROM locktender.run r WHERE r.id = $1

-- name: mail_sent
-- Whether an event was sent to a topic before.
SELECT EXISTS (SELECT 1 FROM locktender.mail WHERE run = 0 AND name = $1 AND id = $2)

-- name: mail_add
-- Store an event; its number.
INSERT INTO locktender.mail (run, name, id, match, at, payload, task)
VALUES ($1::bigint, $2, $3, $4::text::jsonb, $5::bigint, $6, $7::bigint) RETURNING n

-- name: mail_forget
-- Events of a topic that no run can get any more.
DELETE FROM locktender.mail WHERE run = 0 AND name = $1 AND at < $2::bigint

-- name: mail_ready
-- Of these runs: each task that waits for an event, and the first that it can take.
SELECT w.run, w.task, m.n, m.name, m.payload
FROM locktender.event_wait w
JOIN locktender.mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM locktender.mail d WHERE d.run = w.run AND d.name = w.name
                AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM locktender.mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM locktender.run r WHERE r.seq = w.run)
                AND w.match @> d.match
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
WHERE w.run = ANY($1::bigint[])
ORDER BY m.n, w.task

-- name: mailed_runs
-- Those of these runs that wait, and have mail that a task of them can take.
SELECT run FROM locktender.waiting WHERE run = ANY($1::bigint[]) AND EXISTS (
    SELECT 1 FROM locktender.event_wait w JOIN locktender.mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM locktender.mail d WHERE d.run = w.run AND d.name = w.name
                AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM locktender.mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM locktender.run r WHERE r.seq = w.run)
                AND w.match @> d.match
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
    WHERE w.run = waiting.run
)

-- name: all_mailed_runs
-- The same, of all runs that wait.
SELECT run FROM locktender.waiting WHERE run IN (
    SELECT w.run FROM locktender.event_wait w JOIN locktender.mail m ON m.n = (
        SELECT min(m.n) FROM (
            SELECT min(d.n) AS n FROM locktender.mail d WHERE d.run = w.run AND d.name = w.name
                AND d.task IN (0, w.task)
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
            UNION ALL
            SELECT min(d.n) FROM locktender.mail d WHERE d.run = 0 AND d.name = w.name
                AND d.at >= (SELECT r.queued_at FROM locktender.run r WHERE r.seq = w.run)
                AND w.match @> d.match
                AND NOT EXISTS (SELECT 1 FROM locktender.mail_taken t WHERE t.run = w.run AND t.n = d.n)
        ) m
    )
)

-- name: wake_now
-- These waiting runs are to be woken now.
UPDATE locktender.waiting SET wake_at = $2::bigint WHERE run = ANY($1::bigint[]) AND wake_at > $2::bigint

-- name: topic_waiters
-- Runs with a task that waits for these events of topics.
SELECT DISTINCT w.run FROM locktender.mail d JOIN locktender.event_wait w ON w.name = d.name
WHERE d.n = ANY($1::bigint[]) AND w.match @> d.match

-- name: event_wait_add
-- Tasks that wait for an event from now on.
INSERT INTO locktender.event_wait (task, run, name, match, since, until)
SELECT v.task, v.run, v.name, v.match::jsonb, v.since, v.until
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
    v (task, run, name, match, since, until)
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (task) DO UPDATE SET name = excluded.name, match = excluded.match, since = excluded.since,
    until = excluded.until

-- name: event_wait_remove
-- Tasks that wait no more.
DELETE FROM locktender.event_wait WHERE task = ANY($1::bigint[]) AND EXISTS (SELECT 1 FROM fence)

-- name: mail_take
-- Events that runs have consumed.
INSERT INTO locktender.mail_taken (run, n, task)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WHERE EXISTS (SELECT 1 FROM fence)

-- name: event_waits
-- Tasks that wait for an event, those that time out first before others.
SELECT w.task, w.run, w.name, w.match::text, w.since, w.until, r.id, r.flow
FROM locktender.event_wait w CROSS JOIN LATERAL (
    SELECT r.id, r.flow FROM locktender.run r WHERE r.seq = w.run AND r.state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out') LIMIT 1
) r
ORDER BY w.until, w.task LIMIT $1::bigint

-- name: event_waits_of
-- The same of one run.
SELECT w.task, w.run, w.name, w.match::text, w.since, w.until, r.id, r.flow
FROM (SELECT seq, id, flow FROM locktender.run WHERE id = $1 AND (state NOT IN ('cancelled', 'failed', 'succeeded', 'timed_out')) IS TRUE LIMIT 1) r
CROSS JOIN LATERAL (SELECT * FROM locktender.event_wait w WHERE w.run = r.seq ORDER BY w.task LIMIT $2::bigint) w
ORDER BY w.until, w.task

-- name: event_key
-- By which tokens are signed.
SELECT secret FROM locktender.event_key WHERE id = 1

-- name: event_key_add
-- Unless another was faster.
INSERT INTO locktender.event_key (id, secret) VALUES (1, $1) ON CONFLICT (id) DO NOTHING
