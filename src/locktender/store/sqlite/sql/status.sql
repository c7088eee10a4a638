-- name: status_runs
-- Runs by state.
SELECT state, count(*) FROM run GROUP BY state

-- name: status_rows
-- How much there is of everything else.
SELECT
    (SELECT count(*) FROM task), (SELECT count(*) FROM event), (SELECT count(*) FROM graph),
    (SELECT count(*) FROM queue), (SELECT count(*) FROM request)

-- name: status_ends
-- When the first and the last run were queued.
SELECT
    (SELECT queued_at FROM run ORDER BY seq LIMIT 1),
    (SELECT queued_at FROM run ORDER BY seq DESC LIMIT 1)
