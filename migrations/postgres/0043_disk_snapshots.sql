-- Snapshots of disks. A snapshot outlives its disk, so it has what is to be known of that. Its disk's owner makes it:
-- begun_at says that something of it may be on the host, look_at when to look again how far that is.

CREATE TABLE disk_snapshots (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    name        TEXT NOT NULL,
    disk_id     TEXT NOT NULL,                -- may be gone
    kind        TEXT NOT NULL,                -- root, data
    type        TEXT NOT NULL,                -- block, filesystem
    size_gb     BIGINT NOT NULL,              -- of the disk at that time
    bytes       BIGINT,                       -- what it takes on the host, once it is ready
    region_id   TEXT NOT NULL,
    image_id    TEXT,                         -- of a root disk
    login_user  TEXT,                         -- of a root disk
    status      TEXT NOT NULL,
    message     TEXT,
    begun_at    BIGINT,
    look_at     BIGINT,
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX disk_snapshots_of_project ON disk_snapshots (project_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX disk_snapshots_in_region ON disk_snapshots (region_id) WHERE deleted_at IS NULL;
CREATE INDEX disk_snapshots_of_disk ON disk_snapshots (disk_id) WHERE deleted_at IS NULL;
CREATE INDEX disk_snapshots_with_work ON disk_snapshots (work_at) WHERE work_at IS NOT NULL;
