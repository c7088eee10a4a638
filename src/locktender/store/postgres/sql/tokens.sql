-- name: token_add
-- A token, or a session; nothing where a token that was not revoked has the name. One that is made with another
-- expires with that one at the latest; nothing where that one has no rights any more. Its row stays locked: who
-- revokes it then finds this one, too.
INSERT INTO locktender.token (id, name, parent, hash, body, created_at, expires_at, made_with)
SELECT $1, $2, $3, $4, $5, t.now, least(t.now + $6::bigint, m.expires_at), $7::text
FROM (SELECT locktender.locktender_now() AS now) t
LEFT JOIN (SELECT * FROM locktender.token WHERE id = $7 FOR SHARE) m ON true
WHERE $7::text IS NULL OR (m.id IS NOT NULL AND m.revoked_at IS NULL AND coalesce(m.expires_at > t.now, true))
ON CONFLICT DO NOTHING

-- name: token_get
-- Tokens and sessions by id, and the tokens that sessions were opened with.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by, made_with,
    (SELECT locktender.locktender_now())
FROM locktender.token
WHERE id = ANY($1::text[]) OR id IN (SELECT parent FROM locktender.token WHERE id = ANY($1::text[]))

-- name: token_list
-- All tokens, without sessions.
SELECT id, name, parent, hash, body, created_at, expires_at, used_at, revoked_at, revoked_by, made_with,
    (SELECT locktender.locktender_now())
FROM locktender.token WHERE parent IS NULL ORDER BY name COLLATE "C", created_at, id

-- name: token_revoke
-- A token or session that has no rights from now on, with the tokens that were made with it, and with those.
WITH RECURSIVE made (id) AS (
    SELECT $1::text UNION SELECT t.id FROM locktender.token t JOIN made m ON t.made_with = m.id
)
UPDATE locktender.token SET revoked_at = locktender.locktender_now(), revoked_by = $2
WHERE id IN (SELECT id FROM made) AND revoked_at IS NULL RETURNING id

-- name: token_use
-- When tokens were last used.
UPDATE locktender.token SET used_at = locktender.locktender_now() WHERE id = ANY($1::text[])

-- name: token_forget
-- Sessions that expired so long ago.
DELETE FROM locktender.token
WHERE parent IS NOT NULL AND expires_at < (SELECT locktender.locktender_now()) - $1::bigint

-- name: idempotency_claim
-- The first body of each key.
INSERT INTO locktender.idempotency (id, body, at)
SELECT v.id, v.body, (SELECT locktender.locktender_now()) FROM unnest($1::text[], $2::bytea[]) v (id, body)
ORDER BY v.id
ON CONFLICT DO NOTHING

-- name: idempotency_get
-- The bodies that count.
SELECT id, body FROM locktender.idempotency WHERE id = ANY($1::text[])

-- name: idempotency_forget
-- Keys of requests that were answered long ago; what another process forgets is left to it.
DELETE FROM locktender.idempotency WHERE id IN (
    SELECT id FROM locktender.idempotency WHERE at < (SELECT locktender.locktender_now()) - $1::bigint
    ORDER BY at LIMIT 1000 FOR UPDATE SKIP LOCKED
)
