-- name: status_runs
-- Runs by state.
SELECT state, count(*) FROM locktender.run GROUP BY state

-- name: status_rows
-- How much there is of everything else.
SELECT
    (SELECT count(*) FROM locktender.task), (SELECT count(*) FROM locktender.event),
    (SELECT count(*) FROM locktender.graph), (SELECT count(*) FROM locktender.queue),
    (SELECT count(*) FROM locktender.request)

-- name: status_ends
-- When the first and the last run were queued.
SELECT
    (SELECT queued_at FROM locktender.run ORDER BY seq LIMIT 1),
    (SELECT queued_at FROM locktender.run ORDER BY seq DESC LIMIT 1)
