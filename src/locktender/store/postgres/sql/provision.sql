-- name: asked_add
-- Names of workers that are about to be asked for; a repetition changes nothing.
INSERT INTO locktender.asked_worker (name, asked_at, expires_at, joined_at, body)
SELECT v.name, clock.now, clock.now + $3::bigint, 0, v.body
FROM unnest($1::text[], $2::bytea[]) v (name, body), clock
WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (name) DO NOTHING

-- name: asked_joined
-- The worker of this name is there.
UPDATE locktender.asked_worker a SET joined_at = clock.now FROM clock
WHERE a.name = $1 AND a.joined_at = 0 AND EXISTS (SELECT 1 FROM fence)

-- name: asked_remove
-- Remove workers that ended, or that are no longer waited for.
DELETE FROM locktender.asked_worker WHERE name = ANY($1::text[]) AND EXISTS (SELECT 1 FROM fence)

-- name: asked_list
-- Every worker that was asked for and is not known to be gone.
SELECT name, asked_at, expires_at, joined_at, body FROM locktender.asked_worker ORDER BY name COLLATE "C"

-- name: provisioner_set_status
-- What the leader's provisioner is doing.
INSERT INTO locktender.provisioner (one, term, status)
SELECT 1, $1::bigint, $2::bytea WHERE EXISTS (SELECT 1 FROM fence)
ON CONFLICT (one) DO UPDATE SET term = excluded.term, status = excluded.status

-- name: provisioner_status
-- What it is doing, if it is still the leader's.
SELECT p.status FROM locktender.provisioner p JOIN locktender.leader l ON l.term = p.term
