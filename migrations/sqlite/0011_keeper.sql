-- Which data folder keeps this database. The machines and disks of its rows lie in that folder: a service on another one
-- would take them for lost and start them a second time.

CREATE TABLE keeper (
    id      BIGINT PRIMARY KEY,     -- 1: there is one row
    folder  TEXT NOT NULL,          -- the id in the folder's file `identity`
    path    TEXT NOT NULL,          -- where the folder lay
    host    TEXT NOT NULL,          -- the name of its host
    run     TEXT NOT NULL,          -- the run of a service that came last
    runs    BIGINT NOT NULL,        -- 0: it ended in good order
    seen_at BIGINT NOT NULL         -- when it was last seen
);
