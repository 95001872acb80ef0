-- What all projects of an organization may have together.

CREATE TABLE org_quotas (
    org_id              TEXT PRIMARY KEY REFERENCES orgs (id),
    vms                 BIGINT,
    vcpu                BIGINT,
    memory_mb           BIGINT,
    disks               BIGINT,
    disk_gb             BIGINT,
    sandboxes           BIGINT,
    requests_per_minute BIGINT,
    tokens_per_minute   BIGINT,
    spend_per_month     BIGINT,                 -- whole units
    updated_at          BIGINT NOT NULL
);

-- What all projects of an organization spent since the beginning of a month.
CREATE INDEX inference_totals_of_org ON inference_totals (org_id, at);
