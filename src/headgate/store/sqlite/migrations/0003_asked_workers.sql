-- Workers that a leader asked for, from before it asks until they are gone: the next leader counts them too.
CREATE TABLE asked_worker (
    name TEXT PRIMARY KEY,
    asked_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    joined_at INTEGER NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

-- One row: what the provisioner of the leader of that term is doing.
CREATE TABLE provisioner (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    term INTEGER NOT NULL,
    said BLOB NOT NULL
);
