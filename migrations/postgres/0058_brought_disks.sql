-- A disk that is made of a backup or, where none is named, of a file which was sent, until it is: its id is that disk's. One
-- whose file is still on its way is no disk yet, and claims the room of one. What is under way goes on from here; nobody reads disk_restores and disk_imports any more.
CREATE TABLE brought_disks (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    backup_id   TEXT,
    claimed_gb  BIGINT,                 -- of one whose file is on its way
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX brought_disks_of_backup ON brought_disks (backup_id) WHERE deleted_at IS NULL;
CREATE INDEX brought_disks_with_work ON brought_disks (work_at) WHERE work_at IS NOT NULL;

INSERT INTO brought_disks (id, org_id, project_id, backup_id, work_at, created_at)
    SELECT id, org_id, project_id, backup_id, work_at, created_at FROM disk_restores WHERE deleted_at IS NULL;
INSERT INTO brought_disks (id, org_id, project_id, work_at, created_at)
    SELECT id, org_id, project_id, work_at, created_at FROM disk_imports WHERE deleted_at IS NULL;
