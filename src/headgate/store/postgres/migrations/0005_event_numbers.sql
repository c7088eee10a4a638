-- Events are numbered by their transaction's id, and another server counts those from the beginning: where
-- a dump was restored, `xid_offset` is raised until new events stand behind the old ones again.
--
-- Both functions are STABLE: what they compare is one value per statement, found by the index. The offset
-- is read as of the statement's snapshot, like everything else it goes by.
INSERT INTO headgate.meta (name, value) VALUES ('xid_offset', 0);

CREATE FUNCTION headgate.event_number(xid xid8) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (xid::text::bigint + (SELECT value FROM headgate.meta WHERE name = 'xid_offset')) << 20
$$;

-- The seq of this transaction's first event.
CREATE OR REPLACE FUNCTION headgate.event_base() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT headgate.event_number(pg_current_xact_id())
$$;

-- No event below this seq can be added any more.
CREATE OR REPLACE FUNCTION headgate.event_horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT headgate.event_number(pg_snapshot_xmin(pg_current_snapshot()))
$$;
