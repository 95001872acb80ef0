-- Sandboxes, their templates and snapshots; the layers and memories they share; what they used.

CREATE TABLE sandbox_layers (
    id         TEXT PRIMARY KEY,              -- the file on the host is named after it
    parent_id  TEXT REFERENCES sandbox_layers (id),
    org_id     TEXT,                          -- null for the platform's
    project_id TEXT,
    frozen     BIGINT NOT NULL DEFAULT 0,     -- nobody writes to it any more
    state      TEXT NOT NULL,                 -- making, present, removing
    work_at    BIGINT,                        -- when to look whether somebody still needs it
    created_at BIGINT NOT NULL
);
CREATE INDEX sandbox_layers_of_parent ON sandbox_layers (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sandbox_layers_with_work ON sandbox_layers (work_at) WHERE work_at IS NOT NULL;

CREATE TABLE sandbox_memories (
    id         TEXT PRIMARY KEY,
    layer_id   TEXT NOT NULL,                 -- the state of the disk it was kept with
    kind       TEXT NOT NULL,                 -- template, snapshot, pause
    bytes      BIGINT NOT NULL DEFAULT 0,
    state      TEXT NOT NULL,                 -- present, removing
    work_at    BIGINT,
    created_at BIGINT NOT NULL
);
CREATE INDEX sandbox_memories_with_work ON sandbox_memories (work_at) WHERE work_at IS NOT NULL;

CREATE TABLE sandbox_templates (
    id             TEXT PRIMARY KEY,
    org_id         TEXT REFERENCES orgs (id),     -- null for the platform's
    project_id     TEXT REFERENCES projects (id),
    name           TEXT NOT NULL,
    status         TEXT NOT NULL,
    message        TEXT,
    source_kind    TEXT NOT NULL,                 -- image, dockerfile, from_snapshot, platform
    source         TEXT NOT NULL,
    version        TEXT,                          -- of the platform's: what its image was made from
    vcpu           BIGINT NOT NULL,
    memory_mb      BIGINT NOT NULL,
    disk_gb        BIGINT NOT NULL,
    env            TEXT NOT NULL,                 -- JSON
    start_command  TEXT,
    ready_command  TEXT,
    run_user       TEXT NOT NULL,
    workdir        TEXT,
    slot           BIGINT,                        -- while a machine works for it
    base_layer_id  TEXT REFERENCES sandbox_layers (id), -- the disk before the first boot
    layer_id       TEXT REFERENCES sandbox_layers (id), -- what sandboxes build on
    next_layer_id  TEXT REFERENCES sandbox_layers (id), -- the disk of the boot under way
    memory_id      TEXT REFERENCES sandbox_memories (id),
    next_memory_id TEXT REFERENCES sandbox_memories (id),
    warm           TEXT NOT NULL,                 -- wanted, done, failed
    build_log      TEXT,
    status_since   BIGINT NOT NULL,
    attempts       BIGINT NOT NULL DEFAULT 0,
    work_at        BIGINT,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    deleted_at     BIGINT
);
CREATE UNIQUE INDEX sandbox_templates_by_name ON sandbox_templates (project_id, name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX sandbox_templates_of_platform ON sandbox_templates (name)
    WHERE deleted_at IS NULL AND project_id IS NULL;
CREATE UNIQUE INDEX sandbox_templates_by_slot ON sandbox_templates (slot) WHERE slot IS NOT NULL;
CREATE INDEX sandbox_templates_with_work ON sandbox_templates (work_at) WHERE work_at IS NOT NULL;
CREATE INDEX sandbox_templates_on_base ON sandbox_templates (base_layer_id) WHERE base_layer_id IS NOT NULL;
CREATE INDEX sandbox_templates_on_layer ON sandbox_templates (layer_id) WHERE layer_id IS NOT NULL;
CREATE INDEX sandbox_templates_on_next ON sandbox_templates (next_layer_id) WHERE next_layer_id IS NOT NULL;

CREATE TABLE sandbox_snapshots (
    id             TEXT PRIMARY KEY,
    org_id         TEXT NOT NULL REFERENCES orgs (id),
    project_id     TEXT NOT NULL REFERENCES projects (id),
    sandbox_id     TEXT NOT NULL,                 -- stays after the sandbox is gone
    name           TEXT NOT NULL,
    status         TEXT NOT NULL,
    message        TEXT,
    hidden         BIGINT NOT NULL DEFAULT 0,     -- made by a fork
    include_memory BIGINT NOT NULL,
    layer_id       TEXT REFERENCES sandbox_layers (id),
    next_layer_id  TEXT REFERENCES sandbox_layers (id), -- while a cut is under way: the sandbox's next top
    memory_id      TEXT REFERENCES sandbox_memories (id),
    cut_at         BIGINT,                        -- when the cut began
    template_id    TEXT,
    vcpu           BIGINT NOT NULL,
    memory_mb      BIGINT NOT NULL,
    disk_gb        BIGINT NOT NULL,
    env            TEXT NOT NULL,                 -- JSON
    run_user       TEXT NOT NULL,
    workdir        TEXT,
    bytes          BIGINT NOT NULL DEFAULT 0,
    work_at        BIGINT,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    deleted_at     BIGINT
);
CREATE INDEX sandbox_snapshots_of_project ON sandbox_snapshots (project_id, created_at DESC, id DESC)
    WHERE deleted_at IS NULL;
CREATE INDEX sandbox_snapshots_of_sandbox ON sandbox_snapshots (sandbox_id, created_at) WHERE deleted_at IS NULL;
CREATE INDEX sandbox_snapshots_with_work ON sandbox_snapshots (work_at) WHERE work_at IS NOT NULL;
CREATE INDEX sandbox_snapshots_on_layer ON sandbox_snapshots (layer_id) WHERE layer_id IS NOT NULL;
CREATE INDEX sandbox_snapshots_on_next ON sandbox_snapshots (next_layer_id) WHERE next_layer_id IS NOT NULL;
CREATE INDEX sandbox_snapshots_with_memory ON sandbox_snapshots (memory_id) WHERE memory_id IS NOT NULL;

CREATE TABLE sandboxes (
    id                   TEXT PRIMARY KEY,
    org_id               TEXT NOT NULL REFERENCES orgs (id),
    project_id           TEXT NOT NULL REFERENCES projects (id),
    name                 TEXT NOT NULL,
    template_id          TEXT,                    -- what it, or its origin, was made of
    snapshot_id          TEXT,                    -- the snapshot it was made of, as its owner named it
    forked_from          TEXT,
    source_template_id   TEXT,                    -- what it is made of, until it has a disk
    source_snapshot_id   TEXT,
    slot                 BIGINT,
    phase                TEXT NOT NULL,
    wish                 TEXT NOT NULL,
    message              TEXT,
    metadata             TEXT NOT NULL,           -- JSON
    env                  TEXT NOT NULL,           -- JSON
    vcpu                 BIGINT NOT NULL,
    memory_mb            BIGINT NOT NULL,
    disk_gb              BIGINT NOT NULL,
    network              TEXT NOT NULL,           -- JSON
    applied_network      TEXT,                    -- JSON: what the running machine has
    run_user             TEXT NOT NULL,
    workdir              TEXT,
    timeout_seconds      BIGINT,
    idle_timeout_seconds BIGINT,
    on_timeout           TEXT NOT NULL,
    layer_id             TEXT REFERENCES sandbox_layers (id),
    memory_id            TEXT REFERENCES sandbox_memories (id), -- what the next machine begins with
    keep_memory          BIGINT NOT NULL DEFAULT 0,
    restore_snapshot_id  TEXT,                    -- until its disk was put onto the snapshot's
    fresh                BIGINT NOT NULL,         -- the next machine is somebody new
    reserved             BIGINT NOT NULL DEFAULT 0,
    generation           BIGINT NOT NULL DEFAULT 0,
    host_boot            TEXT,
    phase_since          BIGINT NOT NULL,
    attempts             BIGINT NOT NULL DEFAULT 0,
    deaths               BIGINT NOT NULL DEFAULT 0,
    deaths_since         BIGINT,
    again                TEXT,                    -- why it is started again
    first_ready_at       BIGINT,
    ready_since          BIGINT,
    running_micros       BIGINT NOT NULL DEFAULT 0, -- of the times it was ready before
    expires_at           BIGINT,
    life_left            BIGINT,                  -- microseconds, while it is paused
    work_at              BIGINT,
    created_at           BIGINT NOT NULL,
    updated_at           BIGINT NOT NULL,
    deleted_at           BIGINT
);
CREATE INDEX sandboxes_of_project ON sandboxes (project_id, created_at DESC, id DESC, deleted_at);
CREATE INDEX sandboxes_with_work ON sandboxes (work_at) WHERE work_at IS NOT NULL;
CREATE UNIQUE INDEX sandboxes_by_slot ON sandboxes (slot) WHERE slot IS NOT NULL;
CREATE INDEX sandboxes_reserved ON sandboxes (memory_mb) WHERE reserved = 1;
CREATE INDEX sandboxes_on_layer ON sandboxes (layer_id) WHERE layer_id IS NOT NULL;
CREATE INDEX sandboxes_with_memory ON sandboxes (memory_id) WHERE memory_id IS NOT NULL;
CREATE INDEX sandboxes_of_snapshot ON sandboxes (source_snapshot_id) WHERE source_snapshot_id IS NOT NULL;
CREATE INDEX sandboxes_of_template ON sandboxes (source_template_id) WHERE source_template_id IS NOT NULL;

-- What sandboxes used, in steps of 5, 60 and 600 seconds: sums of what is counted, the last of what is measured.
CREATE TABLE sandbox_metrics (
    sandbox_id   TEXT NOT NULL,
    step         BIGINT NOT NULL,             -- seconds
    at           BIGINT NOT NULL,             -- seconds since 1970, a multiple of the step
    covered      BIGINT NOT NULL,             -- microseconds it ran, as far as is known
    cpu          BIGINT NOT NULL,             -- microseconds of processor
    memory_bytes BIGINT NOT NULL,
    disk_bytes   BIGINT NOT NULL,
    rx_bytes     BIGINT NOT NULL,
    tx_bytes     BIGINT NOT NULL,
    processes    BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, step, at)
);
CREATE INDEX sandbox_metrics_by_age ON sandbox_metrics (step, at);
