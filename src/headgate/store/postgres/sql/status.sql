-- name: status_runs
-- Runs by state.
SELECT state, count(*) FROM headgate.run GROUP BY state

-- name: status_rows
-- How much there is of everything else.
SELECT
    (SELECT count(*) FROM headgate.task), (SELECT count(*) FROM headgate.event),
    (SELECT count(*) FROM headgate.graph), (SELECT count(*) FROM headgate.queue),
    (SELECT count(*) FROM headgate.request)

-- name: status_ends
-- When the first and the last run were queued.
SELECT
    (SELECT queued_at FROM headgate.run ORDER BY seq LIMIT 1),
    (SELECT queued_at FROM headgate.run ORDER BY seq DESC LIMIT 1)
