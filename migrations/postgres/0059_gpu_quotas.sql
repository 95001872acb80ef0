-- How many GPUs the VMs and sandboxes of a project may have, and of all projects of an organization together.
ALTER TABLE quotas ADD COLUMN gpus BIGINT;
ALTER TABLE org_quotas ADD COLUMN gpus BIGINT;
