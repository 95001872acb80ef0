-- How many projects an organization may have. The column of projects is there for the same list of limits, and empty.
ALTER TABLE org_quotas ADD COLUMN projects BIGINT;
ALTER TABLE quotas ADD COLUMN projects BIGINT;
