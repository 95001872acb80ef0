-- Other SSH keys go to a guest that runs, where it has an agent; else at its next boot. What it may have got so far is what
-- is taken from it. Whether a machine of an earlier version has its keys nobody noted.

ALTER TABLE vms ADD COLUMN keys_state TEXT NOT NULL DEFAULT 'next_boot';
ALTER TABLE vms ADD COLUMN given_keys TEXT NOT NULL DEFAULT '[]';
UPDATE vms SET given_keys = ssh_keys;
