-- A disk grows: what it has its place on the host for, and what it is, beside what is wanted (size_gb). A disk that was
-- never asked to grow may have neither.

ALTER TABLE disks ADD COLUMN placed_gb BIGINT;
ALTER TABLE disks ADD COLUMN made_gb BIGINT;

-- The sum of what has its place on a host is read from the index alone.
DROP INDEX disks_in_region;
CREATE INDEX disks_in_region ON disks (region_id, status, size_gb, placed_gb) WHERE deleted_at IS NULL;
