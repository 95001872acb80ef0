-- A data disk comes to a machine that runs and leaves it: which of the two, and since when. A machine says for how many it
-- has places; one that an older version started has none.

ALTER TABLE disks ADD COLUMN moving TEXT;
ALTER TABLE disks ADD COLUMN moving_since BIGINT;
ALTER TABLE vms ADD COLUMN disk_places BIGINT NOT NULL DEFAULT 0;
