-- What a VM's life leaves on its rows: deaths apart from deadlines, presses of the power button, why it stopped; what a
-- volume needs of its image; nothing of what its owner kept secret once it is gone.

ALTER TABLE vms ADD COLUMN deaths BIGINT NOT NULL DEFAULT 0;    -- in a row
ALTER TABLE vms ADD COLUMN pressed_at BIGINT;                   -- when the power button was pressed last
ALTER TABLE vms ADD COLUMN stop_reason TEXT;                    -- why it stops, where its owner did not ask
ALTER TABLE disks ADD COLUMN login_user TEXT;                   -- of the image that a root disk was cloned from

UPDATE vms SET user_data = NULL WHERE deleted_at IS NOT NULL;
UPDATE images SET source = NULL WHERE status <> 'importing';
UPDATE disks SET login_user = (SELECT images.login_user FROM images WHERE images.id = disks.image_id)
WHERE kind = 'root';
