-- name: cached_find
-- Results that are kept under these keys.
SELECT c.key, c.step, c.flow, c.scope, c.task, c.made_at, c.expires_at, c.size, c.output
FROM json_each(?) v CROSS JOIN cached_result c ON c.key = v.value

-- name: cached_add
-- Keep results, in the place of those under the same keys.
INSERT INTO cached_result (key, step, flow, scope, task, made_at, expires_at, size, output)
VALUES /*rows*/ (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    step = excluded.step, flow = excluded.flow, scope = excluded.scope, task = excluded.task,
    made_at = excluded.made_at, expires_at = excluded.expires_at, size = excluded.size, output = excluded.output

-- name: cached_clear
-- Forget the results of a step, of a flow, of both, or all.
DELETE FROM cached_result WHERE (?1 IS NULL OR step = ?1) AND (?2 IS NULL OR flow = ?2)

-- name: cached_expire
-- Forget results whose time has passed, so many at a time.
DELETE FROM cached_result WHERE key IN (SELECT key FROM cached_result WHERE expires_at <= ?1 LIMIT ?2)

-- name: cached_bound
-- Forget the oldest results beyond so many of them and so many bytes, so many at a time.
DELETE FROM cached_result WHERE key IN (
    SELECT key FROM (
        SELECT key, made_at, count(*) OVER newer AS n, sum(size) OVER newer AS bytes FROM cached_result
        WINDOW newer AS (ORDER BY made_at DESC, key ROWS UNBOUNDED PRECEDING)
    ) WHERE n > ?1 OR bytes > ?2 ORDER BY made_at LIMIT ?3
)

-- name: cached_total
-- How many results are kept, and their bytes.
SELECT count(*), coalesce(sum(size), 0) FROM cached_result

-- name: cached_list
-- Results that are kept, the newest first, without their values.
SELECT key, step, flow, scope, task, made_at, expires_at, size, x''
FROM cached_result
WHERE (?1 IS NULL OR step = ?1) AND (?2 IS NULL OR flow = ?2) AND expires_at > ?3
ORDER BY made_at DESC, key LIMIT ?4

-- name: cached_get
-- Results whose key begins so.
SELECT key, step, flow, scope, task, made_at, expires_at, size, output
FROM cached_result WHERE key >= ?1 AND key < ?1 || 'g' AND expires_at > ?2 ORDER BY key LIMIT 2
