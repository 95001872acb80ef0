-- Identity, as far as VMs need it; machines and disks; events, audit and idempotency.
-- Times are microseconds since 1970 in UTC; truth values are 0 and 1; ids are UUIDs as text.

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE users (
    id                TEXT PRIMARY KEY,
    email             TEXT NOT NULL,          -- as given
    email_key         TEXT NOT NULL UNIQUE,   -- lower case: one account for one address
    name              TEXT,
    phone             TEXT,
    password_hash     TEXT NOT NULL,
    is_admin          BIGINT NOT NULL DEFAULT 0,
    email_verified_at BIGINT,
    created_at        BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL
);

CREATE TABLE orgs (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    slug        TEXT NOT NULL UNIQUE,
    is_personal BIGINT NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);

CREATE TABLE org_members (
    org_id     TEXT NOT NULL REFERENCES orgs (id),
    user_id    TEXT NOT NULL REFERENCES users (id),
    role       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (org_id, user_id)
);
CREATE INDEX org_members_of_user ON org_members (user_id);

CREATE TABLE projects (
    id         TEXT PRIMARY KEY,
    org_id     TEXT NOT NULL REFERENCES orgs (id),
    name       TEXT NOT NULL,
    slug       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (org_id, slug)
);

CREATE TABLE project_members (
    project_id TEXT NOT NULL REFERENCES projects (id),
    user_id    TEXT NOT NULL REFERENCES users (id),
    role       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_members_of_user ON project_members (user_id);

CREATE TABLE sessions (
    id           TEXT PRIMARY KEY,
    user_id      TEXT NOT NULL REFERENCES users (id),
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,             -- the absolute limit
    revoked_at   BIGINT,
    client       TEXT
);
CREATE INDEX sessions_of_user ON sessions (user_id);

CREATE TABLE refresh_tokens (
    hash       TEXT PRIMARY KEY,              -- SHA-256, hexadecimal
    session_id TEXT NOT NULL REFERENCES sessions (id),
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at    BIGINT,
    successor  TEXT                           -- sealed, for a second use within the grace time
);
CREATE INDEX refresh_tokens_of_session ON refresh_tokens (session_id);

CREATE TABLE signing_keys (
    kid        TEXT PRIMARY KEY,
    public_key TEXT NOT NULL,
    secret_key TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    retired_at BIGINT
);

CREATE TABLE vms (
    id                TEXT PRIMARY KEY,
    org_id            TEXT NOT NULL REFERENCES orgs (id),
    project_id        TEXT NOT NULL REFERENCES projects (id),
    name              TEXT NOT NULL,
    region_id         TEXT NOT NULL,
    vm_config_id      TEXT NOT NULL,
    vcpu              BIGINT NOT NULL,
    memory_mb         BIGINT NOT NULL,
    gpu_config_count  BIGINT NOT NULL,
    plan_id           TEXT NOT NULL,
    image_id          TEXT NOT NULL,
    login_user        TEXT NOT NULL,
    root_disk_id      TEXT NOT NULL,
    root_disk_created BIGINT NOT NULL,        -- made with the VM, not attached
    delete_root_disk  BIGINT NOT NULL,
    ssh_keys          TEXT NOT NULL,          -- JSON
    exposed_ports     TEXT NOT NULL,          -- JSON
    applied_ports     TEXT NOT NULL,          -- JSON: those the running machine has
    user_data         TEXT,
    labels            TEXT NOT NULL,          -- JSON
    restart_policy    TEXT NOT NULL,
    want              TEXT NOT NULL,
    status            TEXT NOT NULL,
    message           TEXT,
    status_since      BIGINT NOT NULL,
    attempts          BIGINT NOT NULL DEFAULT 0,
    reserved          BIGINT NOT NULL DEFAULT 0,
    address           TEXT,                   -- the public IP, held while reserved
    ssh_port          BIGINT,
    boot              BIGINT NOT NULL DEFAULT 0,
    ending            BIGINT NOT NULL DEFAULT 0, -- the present machine has to end before the next begins
    start_after       BIGINT,                 -- not to be started before
    power_off_at      BIGINT,                 -- when the power button was pressed
    host_boot         TEXT,                   -- the host's boot the machine was started in
    guest_ready       BIGINT NOT NULL DEFAULT 0,
    work_at           BIGINT,                 -- when the worker is to look again; null at rest
    created_at        BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL,
    deleted_at        BIGINT
);
-- Counting and ordering a project's VMs, and summing what is reserved, read no rows.
CREATE INDEX vms_of_project ON vms (project_id, created_at DESC, id DESC, deleted_at);
CREATE INDEX vms_with_work ON vms (work_at) WHERE work_at IS NOT NULL;
CREATE UNIQUE INDEX vms_by_address ON vms (address) WHERE address IS NOT NULL;
CREATE INDEX vms_reserved ON vms (region_id, vcpu, memory_mb) WHERE reserved = 1;

CREATE TABLE disks (
    id          TEXT PRIMARY KEY,
    org_id      TEXT NOT NULL REFERENCES orgs (id),
    project_id  TEXT NOT NULL REFERENCES projects (id),
    kind        TEXT NOT NULL,                -- root, data
    name        TEXT NOT NULL,
    type        TEXT NOT NULL,                -- block, filesystem
    size_gb     BIGINT NOT NULL,
    region_id   TEXT NOT NULL,
    image_id    TEXT,                         -- of a root disk
    image_version TEXT,                       -- the version it was cloned from
    plan_id     TEXT,
    status      TEXT NOT NULL,
    message     TEXT,
    vm_id       TEXT REFERENCES vms (id),     -- attached to, or reserved by
    slot        BIGINT,                       -- order in the guest
    created_with TEXT,                        -- the VM it was created with
    work_at     BIGINT,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    deleted_at  BIGINT
);
CREATE INDEX disks_of_project ON disks (project_id, kind, created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX disks_in_region ON disks (region_id, status, size_gb) WHERE deleted_at IS NULL;
CREATE INDEX disks_of_vm ON disks (vm_id) WHERE vm_id IS NOT NULL;
CREATE INDEX disks_with_work ON disks (work_at) WHERE work_at IS NOT NULL;
CREATE INDEX disks_of_image ON disks (image_id) WHERE image_id IS NOT NULL AND deleted_at IS NULL;

CREATE TABLE images (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    os           TEXT NOT NULL,
    version      TEXT NOT NULL,
    login_user   TEXT NOT NULL,
    virtual_size BIGINT NOT NULL,             -- bytes
    min_memory_mb BIGINT NOT NULL,
    status       TEXT NOT NULL,               -- importing, ready, failed
    message      TEXT,
    source       TEXT,                        -- JSON of the import
    work_at      BIGINT,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    deleted_at   BIGINT
);

CREATE TABLE operations (
    id          TEXT PRIMARY KEY,
    vm_id       TEXT NOT NULL REFERENCES vms (id),
    verb        TEXT NOT NULL,
    actor       TEXT,
    status      TEXT NOT NULL,                -- running, done, failed
    message     TEXT,
    created_at  BIGINT NOT NULL,
    finished_at BIGINT
);
CREATE INDEX operations_of_vm ON operations (vm_id, created_at DESC);

CREATE TABLE events (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id TEXT NOT NULL,
    kind       TEXT NOT NULL,                 -- vm.status, vm.created, …
    subject    TEXT NOT NULL,                 -- id of the resource
    data       TEXT NOT NULL,                 -- JSON
    created_at BIGINT NOT NULL
);
CREATE INDEX events_of_project ON events (project_id, seq);

CREATE TABLE audit (
    id         TEXT PRIMARY KEY,
    org_id     TEXT,
    project_id TEXT,
    actor      TEXT,                          -- user id; null for the platform
    action     TEXT NOT NULL,
    subject    TEXT NOT NULL,
    request_id TEXT,
    data       TEXT NOT NULL,                 -- JSON
    created_at BIGINT NOT NULL
);
CREATE INDEX audit_of_org ON audit (org_id, created_at DESC);

CREATE TABLE idempotency (
    caller     TEXT NOT NULL,
    path       TEXT NOT NULL,
    key        TEXT NOT NULL,
    body_hash  TEXT NOT NULL,
    status     BIGINT,                        -- null while the first is running
    headers    TEXT,
    body       TEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (caller, path, key)
);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
