-- Disks, their snapshots, and images of projects lie on the host that they have their place on.

ALTER TABLE disks ADD COLUMN host_id TEXT REFERENCES hosts (id);
ALTER TABLE disk_snapshots ADD COLUMN host_id TEXT REFERENCES hosts (id);
ALTER TABLE project_images ADD COLUMN host_id TEXT REFERENCES hosts (id);
CREATE INDEX disks_of_hosts ON disks (host_id) WHERE deleted_at IS NULL;
