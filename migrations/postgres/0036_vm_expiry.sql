-- VMs with a time to live: when it is over.

ALTER TABLE vms ADD COLUMN expires_at BIGINT;
