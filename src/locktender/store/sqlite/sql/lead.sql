-- name: leader
-- Who leads.
SELECT term, owner, expires_at, cycle, seq, locktender_now() FROM leader

-- name: last_term
-- The last term that the history knows, below a bound.
SELECT coalesce(max(term), 0) FROM event WHERE term BETWEEN 0 AND ?

-- name: leader_take
-- A new term.
UPDATE leader SET term = ?, owner = ?, expires_at = ?, cycle = -1, seq = 0

-- name: leader_renew
-- A longer lease in the same term.
UPDATE leader SET expires_at = ?

-- name: leader_resign
-- Give the lease back; the term stays, so that the next one is higher.
UPDATE leader SET expires_at = 0 WHERE owner = ? AND term = ?

-- name: leader_cycle
-- What the last commit was, to recognise its repetition.
UPDATE leader SET cycle = ?, seq = ?

-- name: run_stands
-- Where a run stands that is to be held.
SELECT state, started_at, verdict FROM run WHERE seq = ?

-- name: run_hold
-- Something of a run cannot be read, decided or written.
UPDATE run SET state = 'held', error = ? WHERE seq = ?

-- name: queue_leave
-- A queued run leaves the queue.
DELETE FROM queue WHERE (lane, rank1, rank2, run) IN (
    SELECT lane, rank1, rank2, seq FROM run WHERE seq = ?
)

-- name: queue_forget
-- The same for a run whose row may not say where it stands.
DELETE FROM queue WHERE run = ?

-- name: requests_claim
-- A leader begins to carry these requests out.
UPDATE request SET taken = min(taken, 1000) + 1 WHERE seq IN (SELECT value FROM json_each(?))

-- name: request_answered
-- A question that is answered.
DELETE FROM request WHERE seq = ?

-- name: answers_forget
-- Answers that were not read for a while.
DELETE FROM answer WHERE at < ?

-- name: answer_add
-- The leader answers a question.
INSERT OR REPLACE INTO answer (question, at, body) VALUES (?, ?, ?)
