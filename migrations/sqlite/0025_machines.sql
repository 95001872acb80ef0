-- What machines hold of the host, whoever owns them: one ledger, so that no MiB is promised to a VM and to a sandbox.

CREATE TABLE machines (
    owner_id TEXT NOT NULL,
    owner_kind TEXT NOT NULL CHECK (owner_kind IN ('vm', 'sandbox', 'template')),
    machines INTEGER NOT NULL,
    vcpu INTEGER NOT NULL,
    memory_mb INTEGER NOT NULL,
    PRIMARY KEY (owner_id, owner_kind)
);

INSERT INTO machines (owner_id, owner_kind, machines, vcpu, memory_mb)
SELECT id, 'vm', 1, vcpu, memory_mb FROM vms WHERE reserved = 1;

INSERT INTO machines (owner_id, owner_kind, machines, vcpu, memory_mb)
SELECT id, 'sandbox', 1, vcpu, memory_mb FROM sandboxes WHERE reserved = 1;

INSERT INTO machines (owner_id, owner_kind, machines, vcpu, memory_mb)
SELECT id, 'template', machines, vcpu, memory_mb FROM sandbox_templates WHERE machines > 0;
