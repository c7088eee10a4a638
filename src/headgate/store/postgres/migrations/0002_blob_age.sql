-- When a blob was last put: one that somebody has just put may not be referred to yet, and must not be
-- taken for an orphan. Blobs from before have no age: they are old. Both changes are of the catalogue
-- only, whatever the table holds.

ALTER TABLE headgate.blob ADD COLUMN put_at bigint;
ALTER TABLE headgate.blob ALTER COLUMN put_at SET DEFAULT headgate.headgate_now();
