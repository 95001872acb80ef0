-- What has its place on a host is summed host by host, and hosts may be a thousand.
CREATE INDEX disks_coming ON disks (to_host_id) WHERE to_host_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX disk_snapshots_of_host ON disk_snapshots (host_id) WHERE deleted_at IS NULL;
CREATE INDEX project_images_of_host ON project_images (host_id) WHERE deleted_at IS NULL;
