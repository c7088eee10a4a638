-- name: leader
-- Who leads. The last column: the history is not the one of the election, so the term is over.
SELECT term, owner, expires_at, cycle, seq, locktender.locktender_now(), limits_version,
    history IS DISTINCT FROM locktender.history_place()
FROM locktender.leader

-- name: leader_take
-- A new term.
UPDATE locktender.leader SET
    term = $1, owner = $2, expires_at = $3, cycle = -1, seq = 0, history = locktender.history_place(),
    limits_version = limits_version + $5,
    backend = CASE WHEN $4 THEN 0 ELSE pg_backend_pid() END,
    backend_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())

-- name: leader_renew
-- A longer lease in the same term.
UPDATE locktender.leader SET
    expires_at = locktender.locktender_now() + $3,
    backend = $4,
    backend_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = $4)
WHERE term = $1 AND owner = $2 AND history = locktender.history_place()
RETURNING term, owner, expires_at, expires_at - $3, cycle

-- name: leader_resign
-- Give the lease back; the term stays, so that the next one is higher.
UPDATE locktender.leader SET expires_at = 0 WHERE owner = $1 AND term = $2

-- name: leader_cycle
-- What the last commit was, to recognise its repetition.
UPDATE locktender.leader SET cycle = $1, seq = $2
