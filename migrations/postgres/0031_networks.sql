-- Networks of a project, and which VMs and sandboxes belong to them. A member's machine and its name are told by its own
-- rows. A snapshot keeps which networks its sandbox belonged to, for those that are made of it.

CREATE TABLE networks (
    id         TEXT PRIMARY KEY,
    org_id     TEXT NOT NULL REFERENCES orgs (id),
    project_id TEXT NOT NULL REFERENCES projects (id),
    name       TEXT NOT NULL,
    cidr       TEXT NOT NULL,
    revision   BIGINT NOT NULL,             -- grows with every change that the host is to know of
    told       BIGINT NOT NULL DEFAULT 0,   -- the revision that the host was told last
    work_at    BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    deleted_at BIGINT
);
CREATE UNIQUE INDEX networks_by_name ON networks (project_id, name) WHERE deleted_at IS NULL;
CREATE INDEX networks_of_project ON networks (project_id, created_at DESC, id DESC);
CREATE INDEX networks_with_work ON networks (work_at) WHERE work_at IS NOT NULL;

CREATE TABLE network_members (
    network_id TEXT NOT NULL REFERENCES networks (id),
    owner_kind TEXT NOT NULL CHECK (owner_kind IN ('vm', 'sandbox')),
    owner_id   TEXT NOT NULL,
    place      BIGINT NOT NULL,             -- among the networks of its owner
    address    TEXT NOT NULL,
    PRIMARY KEY (owner_id, owner_kind, place)
);
CREATE UNIQUE INDEX network_members_by_address ON network_members (network_id, address);

ALTER TABLE sandbox_snapshots ADD COLUMN network_ids TEXT NOT NULL DEFAULT '[]'; -- JSON
ALTER TABLE quotas ADD COLUMN networks BIGINT;
ALTER TABLE org_quotas ADD COLUMN networks BIGINT;
