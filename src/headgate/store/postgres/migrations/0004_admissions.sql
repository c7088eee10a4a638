-- Rises with everything that goes alone among submitters: who looked before it may not write after it.
INSERT INTO headgate.meta (name, value) VALUES ('admissions', 0);
