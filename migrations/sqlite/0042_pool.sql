-- A VM may have an address of its own that others reach, of those that the operator named.

ALTER TABLE machines ADD COLUMN pool_address TEXT;
CREATE UNIQUE INDEX machines_by_pool_address ON machines (host_id, pool_address) WHERE pool_address IS NOT NULL;
