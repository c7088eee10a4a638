-- What bodies logged: one row per attempt that logged anything, written by its worker before its end.
CREATE TABLE log (
    task INTEGER NOT NULL,
    token INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (task, token)
);

-- The trace of whoever submitted the run (W3C traceparent).
ALTER TABLE run ADD COLUMN trace TEXT;
