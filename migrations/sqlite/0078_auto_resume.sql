-- Whether requests to a sandbox that is paused resume it.

ALTER TABLE sandboxes ADD COLUMN auto_resume INTEGER NOT NULL DEFAULT 0;
