-- A root disk may be made anew in place: until it is, what is there of it is what goes.

ALTER TABLE disks ADD COLUMN anew INTEGER NOT NULL DEFAULT 0;
