-- name: leader
-- Who leads. The last column: the history is not the one of the election, so the term is over.
SELECT term, owner, expires_at, cycle, seq, locktender.locktender_now(), limits_version,
    history IS DISTINCT FROM locktender.history_place()
FROM locktender.leader WHERE one

-- name: last_term
-- The last term that the history knows, below a bound.
SELECT coalesce(max(term), 0) FROM locktender.event WHERE term BETWEEN 0 AND $1::bigint

-- name: leader_take
-- A new term. On another history the limits get a version that no process can remember of a lost part of it: no
-- store has seen as many changes as its clock shows microseconds.
UPDATE locktender.leader SET
    term = $1, owner = $2, expires_at = $3, cycle = -1, seq = 0, history = locktender.history_place(),
    limits_version = CASE WHEN $5 THEN greatest(limits_version % 4611686018427387904 + 1, $3) ELSE limits_version END,
    backend = CASE WHEN $4 THEN 0 ELSE pg_backend_pid() END,
    backend_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())

-- name: leader_renew
-- A longer lease in the same term.
UPDATE locktender.leader SET
    expires_at = locktender.locktender_now() + $3,
    backend = $4,
    backend_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = $4)
WHERE one AND term = $1 AND owner = $2 AND history = locktender.history_place()
RETURNING term, owner, expires_at, expires_at - $3, cycle

-- name: leader_resign
-- Give the lease back; the term stays, so that the next one is higher.
UPDATE locktender.leader SET expires_at = 0 WHERE owner = $1 AND term = $2

-- name: leader_cycle
-- What the last commit was, to recognise its repetition.
UPDATE locktender.leader SET cycle = $1, seq = $2

-- name: run_stands
-- Where a run stands that is to be held.
SELECT state, started_at, verdict FROM locktender.run WHERE seq = $1 FOR UPDATE

-- name: run_hold
-- Something of a run cannot be read, decided or written.
UPDATE locktender.run SET state = 'held', error = $1 WHERE seq = $2

-- name: queue_leave
-- A queued run leaves the queue.
DELETE FROM locktender.queue q USING locktender.run r
WHERE r.seq = $1 AND q.lane = r.lane AND q.rank1 = r.rank1 AND q.rank2 = r.rank2 AND q.run = r.seq
RETURNING q.run

-- name: queue_forget
-- The same for a run whose row may not say where it stands.
DELETE FROM locktender.queue WHERE run = $1

-- name: requests_claim
-- A leader begins to carry these requests out.
UPDATE locktender.request SET taken = least(taken, 1000) + 1 WHERE seq = ANY($1::bigint[])

-- name: request_answered
-- A question that is answered.
DELETE FROM locktender.request WHERE seq = $1

-- name: answers_forget
-- Answers that were not read for a while.
DELETE FROM locktender.answer WHERE at < (SELECT locktender.locktender_now()) - $1::bigint

-- name: answer_add
-- The leader answers a question.
INSERT INTO locktender.answer (question, at, body) SELECT $1::text, locktender.locktender_now(), $2::bytea
ON CONFLICT (question) DO UPDATE SET body = excluded.body
