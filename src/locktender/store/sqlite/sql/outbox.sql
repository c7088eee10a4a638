-- name: outbox_open
-- What applications submitted and no leader has taken up, in order.
SELECT n, id, at, body, answer, answered_at FROM outbox WHERE answer IS NULL ORDER BY n LIMIT ?

-- name: outbox_get
-- One submission.
SELECT n, id, at, body, answer, answered_at FROM outbox WHERE id = ?

-- name: outbox_newest
-- Submissions that are no runs, the newest first.
SELECT n, id, at, body, answer, answered_at FROM outbox ORDER BY n DESC LIMIT ?

-- name: outbox_used
-- Whether there is anything to take up.
SELECT 1 FROM outbox LIMIT 1

-- name: outbox_lock
-- Those of these entries that still have no answer.
SELECT id FROM outbox WHERE id IN (SELECT value FROM json_each(?)) AND answer IS NULL

-- name: outbox_answer
-- Why there is no run of it.
UPDATE outbox SET answer = ?, answered_at = locktender_now() WHERE id = ?

-- name: outbox_remove
-- They have become runs.
DELETE FROM outbox WHERE id IN (SELECT value FROM json_each(?))

-- name: outbox_prune
-- Answers that are old.
DELETE FROM outbox WHERE answer IS NOT NULL AND answered_at < ?
