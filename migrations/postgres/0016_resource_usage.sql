-- What machines, disks and snapshots took: a ledger of intervals, each with the size and the price it had. And what an
-- hour costs at present.

CREATE TABLE resource_usage (
    id            TEXT PRIMARY KEY,
    org_id        TEXT NOT NULL,
    project_id    TEXT NOT NULL,
    resource_type TEXT NOT NULL,              -- vm, root_disk, disk, sandbox, snapshot
    resource_id   TEXT NOT NULL,              -- stays when the resource is gone
    name          TEXT NOT NULL,
    size          TEXT,                       -- of a machine
    vcpu          BIGINT NOT NULL,
    memory_mb     BIGINT NOT NULL,
    gpus          BIGINT NOT NULL,
    bytes         BIGINT NOT NULL,            -- of a disk or snapshot
    rate          BIGINT NOT NULL,            -- what an hour costs, in billionths
    since         BIGINT NOT NULL,
    until         BIGINT NOT NULL,            -- 9223372036854775807 while it goes on
    cost          BIGINT NOT NULL             -- in billionths; 0 while it goes on
);
CREATE UNIQUE INDEX resource_usage_open ON resource_usage (resource_id, resource_type)
    WHERE until = 9223372036854775807;
CREATE INDEX resource_usage_of_project ON resource_usage (project_id, until, since, cost);
CREATE INDEX resource_usage_of_org ON resource_usage (org_id, until, since, cost);
-- In the order in which lines are read.
CREATE INDEX resource_usage_lines_of_project ON resource_usage (project_id, id, until, since);
CREATE INDEX resource_usage_lines_of_org ON resource_usage (org_id, id, until, since);

-- What an hour costs from now on, in billionths: written at every start from the configuration.
CREATE TABLE resource_prices (
    id             TEXT PRIMARY KEY,          -- plan:ID, disk, sandbox, snapshot
    vcpu_hour      BIGINT NOT NULL,
    memory_gb_hour BIGINT NOT NULL,
    gpu_hour       BIGINT NOT NULL,
    disk_gb_hour   BIGINT NOT NULL
);
