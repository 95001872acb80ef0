-- A disk that is made of a file which was sent, until it is: its id is that disk's.
CREATE TABLE disk_imports (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX disk_imports_with_work ON disk_imports (work_at) WHERE work_at IS NOT NULL;
