-- A disk that is brought to another host has its place there before it comes. Since when it cannot be brought is noted, so
-- that its VM does not wait for ever.

ALTER TABLE disks ADD COLUMN to_host_id TEXT;
ALTER TABLE disks ADD COLUMN stuck_since INTEGER;
