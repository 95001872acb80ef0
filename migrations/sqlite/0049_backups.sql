-- Backups of disks. A backup outlives its disk, so it has what is to be known of that. It is made from a hidden snapshot,
-- which nobody sees or pays for; begun_at says that something of it may be in the store.

CREATE TABLE backups (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    name        TEXT NOT NULL,
    disk_id     TEXT NOT NULL,                -- may be gone
    kind        TEXT NOT NULL,                -- root, data
    type        TEXT NOT NULL,                -- block, filesystem
    size_gb     BIGINT NOT NULL,              -- of the disk at that time
    region_id   TEXT NOT NULL,
    image_id    TEXT,                         -- of a root disk
    login_user  TEXT,                         -- of a root disk
    plan_id     TEXT,                         -- of a root disk
    schedule_id TEXT,                         -- that wished it; may be gone
    snapshot_id TEXT,                         -- what it is made from, until it is
    store       TEXT,                         -- where it is
    parts       BIGINT,                       -- in how many parts it is there
    size_bytes  BIGINT,                       -- what it takes there, once it is ready
    sha256      TEXT,                         -- of what is there, once it is ready
    status      TEXT NOT NULL,
    message     TEXT,
    begun_at    BIGINT,
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX backups_of_project ON backups (project_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX backups_of_schedule ON backups (schedule_id) WHERE schedule_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX backups_of_snapshot ON backups (snapshot_id) WHERE snapshot_id IS NOT NULL;
CREATE INDEX backups_with_work ON backups (work_at) WHERE work_at IS NOT NULL;

-- A disk that is made of a backup, until it is: its id is that disk's.
CREATE TABLE disk_restores (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    backup_id   TEXT NOT NULL,
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX disk_restores_of_backup ON disk_restores (backup_id) WHERE deleted_at IS NULL;
CREATE INDEX disk_restores_with_work ON disk_restores (work_at) WHERE work_at IS NOT NULL;

ALTER TABLE disk_snapshots ADD COLUMN hidden BIGINT NOT NULL DEFAULT 0;
ALTER TABLE disks ADD COLUMN backup_id TEXT;
