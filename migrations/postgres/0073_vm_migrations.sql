-- A VM that goes to another host while it runs. What it holds there is a row of machines of its own, which no VM owns, until
-- the VM's machine is there.

CREATE TABLE vm_migrations (
    vm_id    TEXT PRIMARY KEY REFERENCES vms (id),
    place_id TEXT NOT NULL REFERENCES machines (id),
    host_id  TEXT NOT NULL REFERENCES hosts (id)
);

CREATE INDEX vm_migrations_to ON vm_migrations (host_id);
