-- Workers that a leader asked for, from before it asks until they are gone: the next leader counts them too.
CREATE TABLE headgate.asked_worker (
    name text PRIMARY KEY,
    asked_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    joined_at bigint NOT NULL,
    body bytea NOT NULL
);

-- One row: what the provisioner of the leader of that term is doing.
CREATE TABLE headgate.provisioner (
    one integer PRIMARY KEY CHECK (one = 1),
    term bigint NOT NULL,
    said bytea NOT NULL
);
