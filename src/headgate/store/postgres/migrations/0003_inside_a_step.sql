-- What bodies logged: one row per attempt that logged anything, written by its worker before its end.
CREATE TABLE headgate.log (
    task bigint NOT NULL,
    token bigint NOT NULL,
    attempt bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (task, token)
);

-- The trace of whoever submitted the run (W3C traceparent). A change of the catalogue only.
ALTER TABLE headgate.run ADD COLUMN trace text;
