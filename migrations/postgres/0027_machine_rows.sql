-- A machine is a row of its own, whoever owns it: where it is, what it holds of its host, what it was started as. Machines
-- of before keep their ids, after which their folders and processes are named. The ledger of owners that this replaces is
-- of the same release, so that no service that was released reads it. What else moves here stays on the rows of VMs,
-- sandboxes and templates until a later release, and is read by nobody.

DROP TABLE machines;

CREATE TABLE machines (
    id         TEXT PRIMARY KEY,
    owner_kind TEXT NOT NULL CHECK (owner_kind IN ('vm', 'sandbox', 'template', 'warm')),
    owner_id   TEXT NOT NULL,
    host_id    TEXT REFERENCES hosts (id),  -- null: not put anywhere yet
    vcpu       BIGINT NOT NULL,
    memory_mb  BIGINT NOT NULL,
    reserved   BIGINT NOT NULL DEFAULT 0,   -- it holds its processors and memory of the host
    slot       BIGINT,                      -- a small number that no other machine of the host has
    address    TEXT,
    ssh_port   BIGINT,
    generation BIGINT NOT NULL DEFAULT 0,   -- starts so far
    host_boot  TEXT,                        -- the host's boot that it was started in last
    deleted_at BIGINT
);

INSERT INTO machines (id, owner_kind, owner_id, host_id, vcpu, memory_mb, reserved, address, ssh_port, generation,
    host_boot, deleted_at)
SELECT id, 'vm', id, (SELECT folder FROM keeper WHERE id = 1), vcpu, memory_mb, reserved, address, ssh_port, boot,
    host_boot, deleted_at FROM vms;

INSERT INTO machines (id, owner_kind, owner_id, host_id, vcpu, memory_mb, reserved, slot, generation, host_boot,
    deleted_at)
SELECT id, 'sandbox', id, (SELECT folder FROM keeper WHERE id = 1), vcpu, memory_mb, reserved, slot, generation,
    host_boot, deleted_at FROM sandboxes;

-- A build or a first boot that is under way begins anew, with one machine.
INSERT INTO machines (id, owner_kind, owner_id, host_id, vcpu, memory_mb, reserved, slot)
SELECT id, 'template', id, (SELECT folder FROM keeper WHERE id = 1), vcpu, memory_mb, 1, slot FROM sandbox_templates
WHERE slot IS NOT NULL AND deleted_at IS NULL;

CREATE INDEX machines_of_owner ON machines (owner_id, owner_kind);
CREATE INDEX machines_reserved ON machines (host_id, owner_kind, vcpu, memory_mb) WHERE reserved = 1;
CREATE UNIQUE INDEX machines_by_slot ON machines (host_id, slot) WHERE slot IS NOT NULL;
CREATE UNIQUE INDEX machines_by_address ON machines (host_id, address) WHERE address IS NOT NULL;
