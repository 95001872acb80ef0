-- Hosts: what machines run on. The service writes the row of its own one at every start; its id is the data folder's.

CREATE TABLE hosts (
    id         TEXT PRIMARY KEY,       -- the id in the folder's file `identity`
    name       TEXT NOT NULL,
    addresses  TEXT NOT NULL,          -- JSON: where it is reached
    regions    TEXT NOT NULL,          -- JSON: ids of those that it belongs to
    cpus       BIGINT NOT NULL,
    memory_mb  BIGINT NOT NULL,
    overcommit TEXT NOT NULL,          -- JSON: how often each MiB is promised, by who has it
    boot       TEXT,                   -- its present boot
    labels     TEXT NOT NULL,          -- JSON
    state      TEXT NOT NULL CHECK (state IN ('ready', 'draining', 'lost')),
    last_seen  BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

INSERT INTO hosts (id, name, addresses, regions, cpus, memory_mb, overcommit, labels, state, last_seen, created_at)
SELECT folder, host, '[]', '[]', 0, 0, '{}', '{}', 'ready', seen_at, seen_at FROM keeper;
