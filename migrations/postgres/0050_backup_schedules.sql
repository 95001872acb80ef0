-- Schedules of backups.

CREATE TABLE backup_schedules (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    name        TEXT NOT NULL,
    disk_id     TEXT,                         -- of this disk, or
    kind        TEXT,                         -- which is for this: root, data
    vm_id       TEXT,                         -- of all disks of this VM
    every       TEXT NOT NULL,                -- a span, or times in the form of cron
    keep        BIGINT NOT NULL,
    enabled     BIGINT NOT NULL,
    anchor_at   BIGINT NOT NULL,              -- from which a span is counted
    last_at     BIGINT,
    next_at     BIGINT,
    message     TEXT,
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX backup_schedules_of_project ON backup_schedules (project_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX backup_schedules_with_work ON backup_schedules (work_at) WHERE work_at IS NOT NULL;
