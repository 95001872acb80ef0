-- A snapshot names the store that its disk lies in, for ever, and lies there itself; a hidden one, from which something else is
-- made, is a file on a host as those of other disks, and whatever is half made of it may lie in the store, too.

ALTER TABLE disk_snapshots ADD COLUMN store TEXT;
CREATE INDEX disk_snapshots_in_stores ON disk_snapshots (store) WHERE store IS NOT NULL AND deleted_at IS NULL;
