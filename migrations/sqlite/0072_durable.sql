-- A sandbox that is paused, or a snapshot, is to outlive its host: another one that has all of it, and since when.

ALTER TABLE sandboxes ADD COLUMN durable INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN copy_host_id TEXT REFERENCES hosts (id);
ALTER TABLE sandboxes ADD COLUMN copied_at BIGINT;
CREATE INDEX sandboxes_durable ON sandboxes (id) WHERE durable = 1 AND deleted_at IS NULL;
ALTER TABLE sandbox_snapshots ADD COLUMN durable INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandbox_snapshots ADD COLUMN copy_host_id TEXT REFERENCES hosts (id);
ALTER TABLE sandbox_snapshots ADD COLUMN copied_at BIGINT;
CREATE INDEX sandbox_snapshots_durable ON sandbox_snapshots (id) WHERE durable = 1 AND deleted_at IS NULL;
-- Whether the other host that may have something of a memory has all of it.
ALTER TABLE sandbox_memories ADD COLUMN copied INTEGER NOT NULL DEFAULT 0;
