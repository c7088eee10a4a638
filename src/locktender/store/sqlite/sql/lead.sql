-- name: leader
-- Who leads.
SELECT term, owner, expires_at, cycle, seq, locktender_now() FROM leader

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
