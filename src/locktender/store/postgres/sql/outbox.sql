-- name: outbox_open
-- What applications submitted and no leader has taken up, in order.
SELECT n, id, at, body, answer, answered_at FROM locktender.outbox WHERE answer IS NULL ORDER BY n LIMIT $1

-- name: outbox_get
-- One submission.
SELECT n, id, at, body, answer, answered_at FROM locktender.outbox WHERE id = $1

-- name: outbox_newest
-- Submissions that are no runs, the newest first.
SELECT n, id, at, body, answer, answered_at FROM locktender.outbox ORDER BY n DESC LIMIT $1

-- name: outbox_used
-- Whether any application ever submitted so. A sequence is never set back.
SELECT 1 FROM locktender.outbox_n_seq WHERE is_called

-- name: outbox_lock
-- Those of these entries that still have no answer.
SELECT id FROM locktender.outbox WHERE id = ANY($1::text[]) AND answer IS NULL ORDER BY id FOR UPDATE

-- name: outbox_answer
-- Why there is no run of them.
UPDATE locktender.outbox o SET answer = v.answer, answered_at = locktender.locktender_now()
FROM unnest($1::text[], $2::bytea[]) v (id, answer) WHERE o.id = v.id

-- name: outbox_remove
-- They have become runs.
DELETE FROM locktender.outbox WHERE id = ANY($1::text[])

-- name: outbox_prune
-- Answers that are old.
DELETE FROM locktender.outbox WHERE answer IS NOT NULL AND answered_at < $1
