-- Images that projects make of their root disks. An image is made of a snapshot that belongs to it (disk_snapshots.project_image_id),
-- which nobody sees and which goes once the image is there. placed_at says since when something of it may be on the host.

CREATE TABLE project_images (
    id            TEXT PRIMARY KEY,
    org_id        TEXT NOT NULL REFERENCES orgs (id),
    project_id    TEXT NOT NULL REFERENCES projects (id),
    name          TEXT NOT NULL,
    disk_id       TEXT NOT NULL,              -- may be gone
    snapshot_id   TEXT NOT NULL,              -- goes once the image is there
    image_id      TEXT NOT NULL,              -- what the disk was cloned from
    region_id     TEXT NOT NULL,
    size_gb       BIGINT NOT NULL,            -- of the disk at that time
    os            TEXT NOT NULL,              -- this and the next three are known once it is ready
    version       TEXT NOT NULL,
    virtual_size  BIGINT NOT NULL,
    min_memory_mb BIGINT NOT NULL,
    login_user    TEXT NOT NULL,
    status        TEXT NOT NULL,
    message       TEXT,
    placed_at     BIGINT,
    work_at       BIGINT,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    deleted_at    BIGINT
);
CREATE INDEX project_images_of_project ON project_images (project_id, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX project_images_in_region ON project_images (region_id) WHERE deleted_at IS NULL;
CREATE INDEX project_images_with_work ON project_images (work_at) WHERE work_at IS NOT NULL;

ALTER TABLE disk_snapshots ADD COLUMN project_image_id TEXT;
