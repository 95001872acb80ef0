-- A suspended VM has its machine's memory on the disk, and goes on with that.

ALTER TABLE vms ADD COLUMN has_memory INTEGER NOT NULL DEFAULT 0;
