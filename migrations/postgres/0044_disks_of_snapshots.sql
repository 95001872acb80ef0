-- A disk may be made of a snapshot, which may be gone once it is made.

ALTER TABLE disks ADD COLUMN snapshot_id TEXT;
CREATE INDEX disks_of_snapshot ON disks (snapshot_id) WHERE snapshot_id IS NOT NULL AND deleted_at IS NULL;
