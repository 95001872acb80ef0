-- Disks may lie in a store that several hosts reach: which one, by its name, for ever. Of a host it is known which stores it
-- reaches, and why it does not reach the others.

ALTER TABLE disks ADD COLUMN store TEXT;
ALTER TABLE hosts ADD COLUMN stores TEXT NOT NULL DEFAULT '{}';
CREATE INDEX disks_in_stores ON disks (store) WHERE store IS NOT NULL AND deleted_at IS NULL;
