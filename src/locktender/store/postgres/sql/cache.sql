-- name: cached_find
-- Results that are kept under these keys.
SELECT c.key, c.step, c.flow, c.scope, c.task, c.made_at, c.expires_at, c.size, c.output
FROM locktender.cached_result c WHERE c.key = ANY($1::text[])

-- name: cached_add
-- Keep results, in the place of those under the same keys.
INSERT INTO locktender.cached_result (key, step, flow, scope, task, made_at, expires_at, size, output)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bytea[]
) WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (key) DO UPDATE SET
    step = excluded.step, flow = excluded.flow, scope = excluded.scope, task = excluded.task,
    made_at = excluded.made_at, expires_at = excluded.expires_at, size = excluded.size, output = excluded.output

-- name: cached_clear
-- Forget the results of steps, of flows, of both, or all.
DELETE FROM locktender.cached_result c USING unnest($1::text[], $2::text[]) v (step, flow)
WHERE (v.step IS NULL OR c.step = v.step) AND (v.flow IS NULL OR c.flow = v.flow)
    AND EXISTS (SELECT 1 FROM fence)

-- name: cached_expire
-- Forget results whose time has passed, so many at a time.
DELETE FROM locktender.cached_result WHERE key IN (
    SELECT key FROM locktender.cached_result WHERE expires_at <= $1::bigint LIMIT $2::bigint
)
RETURNING key

-- name: cached_bound
-- Forget the oldest results beyond so many of them and so many bytes, so many at a time.
DELETE FROM locktender.cached_result WHERE key IN (
    SELECT key FROM (
        SELECT key, made_at, count(*) OVER newer AS n, sum(size) OVER newer AS bytes
        FROM locktender.cached_result
        WINDOW newer AS (ORDER BY made_at DESC, key ROWS UNBOUNDED PRECEDING)
    ) c WHERE n > $1::bigint OR bytes > $2::bigint ORDER BY made_at LIMIT $3::bigint
)
RETURNING key

-- name: cached_total
-- How many results are kept, and their bytes.
SELECT count(*), coalesce(sum(size), 0)::bigint FROM locktender.cached_result

-- name: cached_list
-- Results that are kept, the newest first, without their values.
SELECT key, step, flow, scope, task, made_at, expires_at, size, ''::bytea
FROM locktender.cached_result
WHERE ($1::text IS NULL OR step = $1) AND ($2::text IS NULL OR flow = $2) AND expires_at > $3::bigint
ORDER BY made_at DESC, key LIMIT $4::bigint

-- name: cached_get
-- Results whose key begins so.
SELECT key, step, flow, scope, task, made_at, expires_at, size, output
FROM locktender.cached_result WHERE starts_with(key, $1) AND expires_at > $2::bigint ORDER BY key LIMIT 2
